//go:build race

package sqldb_test

// raced says that the race detector is on, which makes SQLite's translated code
// some fifty times slower.
const raced = true
