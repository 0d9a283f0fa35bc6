package middleware

import "context"

// MarkDuplicate counts a message that a handler which keeps its idempotency keys
// itself, such as one with an inbox row in its own transaction, found to be
// handled before. Ctx is the handler's. It may be called on a nil Metrics: the
// outcome is then only known to the layers around.
func (m *Metrics) MarkDuplicate(ctx context.Context, handler string) {
	if rec := recordFrom(ctx); rec != nil {
		rec.outcome = outcomeDuplicate
	}
	m.duplicate(handler)
}
