package broker

// KeyOrdered is a Publisher that says whether its PublishBatch keeps the order
// of each key. It does when, of two entries of one call that share an ordering
// key (metadata events.KeyOrdering), the later one is never confirmed while the
// earlier one failed with anything but ErrRejected: an adapter that sends a call
// as one transaction, that stops at the first failure, or whose broker has no
// order to keep.
//
// A Publisher without this method is taken not to, and the outbox's relay gives
// it one message of a key at a time.
type KeyOrdered interface {
	KeepsKeyOrder() bool
}

// KeepsKeyOrder tells whether p says that it keeps the order of each key within
// a batch.
func KeepsKeyOrder(p Publisher) bool {
	o, ok := p.(KeyOrdered)
	return ok && o.KeepsKeyOrder()
}
