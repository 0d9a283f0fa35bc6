// Package brokertest proves that an adapter keeps the contract of package
// broker: Watermill's universal suite, and what it never tests: crashes, drains,
// leases, delays, counts, order, malformed bytes, restarts.
//
// An adapter brings a Harness and calls two functions:
//
//	func TestMain(m *testing.M) { brokertest.Main(m, open) }
//	func TestConformance(t *testing.T) { brokertest.Run(t, harness) }
//
// Main lets the suite start the test binary again as a consumer that it can
// kill. A part of Storage that is nil says that the broker has no such thing;
// the tests that need it are then not part of the suite.
package brokertest
