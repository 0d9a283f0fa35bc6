// Package memory is the broker that lives in the process: groups, delivery
// counts, nack delays, order per key and a retained log for new groups, with
// nothing to install. Component tests run on it.
package memory
