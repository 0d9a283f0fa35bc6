//go:build unix

package localredis

import (
	"errors"
	"syscall"
)

// alive tells whether a process with that id exists.
func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}
