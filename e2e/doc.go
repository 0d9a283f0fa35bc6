// Package e2e holds the end-to-end tests: the three services as real processes
// on real servers, killed with SIGKILL at the worst moments. It has no code of
// its own.
package e2e
