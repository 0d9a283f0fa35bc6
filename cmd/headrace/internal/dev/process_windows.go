package dev

import (
	"os"
	"os/exec"
)

// On Windows the console's Ctrl-C reaches every process of the group, so the
// children hear it themselves; there is no SIGTERM to send.
func separate(*exec.Cmd) {}

func pinThread() (release func()) { return func() {} }

func terminate(p *os.Process) error { return p.Signal(os.Interrupt) }

func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	p.Release()
	return true
}
