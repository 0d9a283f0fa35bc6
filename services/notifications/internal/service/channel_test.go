package service

import (
	"context"
	"sync"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
)

// fakeChannel records what it is asked to send and answers by a function of how
// often it was asked.
type fakeChannel struct {
	idempotent bool
	// answer gets 1 for the first send. Nil takes everything.
	answer func(n int) error

	mu   sync.Mutex
	sent []app.Message
}

func (c *fakeChannel) Idempotent() bool { return c.idempotent }

func (c *fakeChannel) Send(_ context.Context, m app.Message) (string, error) {
	c.mu.Lock()
	c.sent = append(c.sent, m)
	n := len(c.sent)
	c.mu.Unlock()
	if c.answer != nil {
		if err := c.answer(n); err != nil {
			return "", err
		}
	}
	return "ref", nil
}

// keys returns the idempotency keys of all sends so far.
func (c *fakeChannel) keys() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var keys []string
	for _, m := range c.sent {
		keys = append(keys, m.Key)
	}
	return keys
}
