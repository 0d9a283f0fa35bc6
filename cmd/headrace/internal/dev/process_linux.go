package dev

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// separate puts the child into a group of its own, so that the terminal's Ctrl-C
// reaches only the supervisor, which then drains the children; and lets the
// kernel end the child when the supervisor dies without a word.
func separate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}

// pinThread keeps the calling goroutine's thread alive: Pdeathsig fires when the
// thread that started the child ends, not the process.
func pinThread() (release func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

func terminate(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
