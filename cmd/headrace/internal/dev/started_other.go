//go:build !linux

package dev

// processStart is not known here.
func processStart(int) string { return "" }
