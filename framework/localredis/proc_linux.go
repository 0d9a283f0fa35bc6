package localredis

import "syscall"

// childAttr keeps Ctrl-C from the server, so that services can drain first, and
// ends the server with this process.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
