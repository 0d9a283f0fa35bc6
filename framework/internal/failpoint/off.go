//go:build !failpoint

// Package failpoint lets a test kill the process at a named step. Without the
// build tag failpoint it is empty and costs nothing.
package failpoint

// Hit does nothing in a normal build.
func Hit(string) {}
