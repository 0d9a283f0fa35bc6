package sqltx

import (
	"context"
	"sync"
)

type hooksKey struct{}

type hooks struct {
	mu   sync.Mutex
	fns  []func()
	done bool
}

// AfterCommit has fn called once the transaction of the innermost Run that ctx
// belongs to has committed, on the goroutine of Run and before it returns. A
// rollback, also one before a replay, forgets fn. It reports whether ctx belongs
// to such a transaction; when it does not, fn is not called.
//
// fn should be short and must not panic. It is safe for concurrent use.
func AfterCommit(ctx context.Context, fn func()) bool {
	h, ok := ctx.Value(hooksKey{}).(*hooks)
	if !ok {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done {
		return false
	}
	h.fns = append(h.fns, fn)
	return true
}

func (h *hooks) run() {
	h.mu.Lock()
	fns := h.fns
	h.done = true
	h.mu.Unlock()
	for _, fn := range fns {
		fn()
	}
}
