//go:build !race

package sqldb_test

const raced = false
