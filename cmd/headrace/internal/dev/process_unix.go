//go:build unix && !linux

package dev

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// separate puts the child into a group of its own, so that the terminal's Ctrl-C
// reaches only the supervisor, which then drains the children.
func separate(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func pinThread() (release func()) { return func() {} }

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
