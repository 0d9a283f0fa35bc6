package dev

import (
	"bytes"
	"fmt"
	"os"
)

// processStart returns when the process began, in a form that only compares: in
// ticks after the boot. Empty: not known.
func processStart(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field is the program's name in brackets, with any characters.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const start = 22 - 3 // the fields count from 1, and these begin with the third
	if len(fields) <= start {
		return ""
	}
	return string(fields[start])
}
