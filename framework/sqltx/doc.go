// Package sqltx runs database transactions that survive what databases do to
// them: a transaction that loses to another (a serialization failure, a
// deadlock, a busy SQLite file) is rolled back and replayed as a whole. It also
// tells errors apart by their code, never by their text, so that a server that
// speaks another language behaves the same. It imports no driver.
package sqltx
