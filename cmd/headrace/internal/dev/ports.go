package dev

import (
	"context"
	"fmt"
	"net"
)

// place returns addr when it is free, else a free port on the same host, and
// whether that differs.
func place(ctx context.Context, addr string, anyPort bool) (chosen string, moved bool, err error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return "", false, fmt.Errorf("address %q: want host:port: %w", addr, err)
	}
	var lc net.ListenConfig
	if !anyPort {
		if l, err := lc.Listen(ctx, "tcp", addr); err == nil {
			l.Close()
			return addr, false, nil
		}
	}
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", false, fmt.Errorf("address %q: taken, and no other port on %q is free: %w", addr, host, err)
	}
	defer l.Close()
	return l.Addr().String(), true, nil
}
