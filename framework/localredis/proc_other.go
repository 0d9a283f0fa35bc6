//go:build !unix

package localredis

import (
	"os"
	"syscall"
)

func childAttr() *syscall.SysProcAttr { return nil }

// alive tells whether a process with that id exists.
func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	_ = p.Release()
	return true
}
