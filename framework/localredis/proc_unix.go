//go:build unix && !linux

package localredis

import "syscall"

// childAttr keeps Ctrl-C from the server, so that services can drain first.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
