package lanes

import (
	"context"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker"
)

// Subscriber is the message.Subscriber that every adapter returns. Each
// Subscribe runs a subscription of its own. Safe for concurrent use.
type Subscriber struct {
	cfg    Config
	ensure func(ctx context.Context, topic string) error
	open   func(ctx context.Context, cfg Config) (Source, error)

	mu     sync.Mutex
	pumps  map[*pump]struct{}
	closed bool
	wg     sync.WaitGroup
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// NewSubscriber makes a Subscriber. Cfg is complete but for Topic. Ensure
// creates topic and group where they are missing; open joins the group.
func NewSubscriber(cfg Config, ensure func(context.Context, string) error, open func(context.Context, Config) (Source, error)) *Subscriber {
	return &Subscriber{cfg: cfg, ensure: ensure, open: open, pumps: make(map[*pump]struct{})}
}

// SubscribeInitialize creates the topic and the group where they are missing.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	return s.ensure(context.Background(), topic)
}

// Subscribe joins the group on topic and returns the channel of its messages.
// The channel is closed at the end of the drain, which Close or the end of ctx
// begins.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, fmt.Errorf("subscribe to %q in group %q: %w", topic, s.cfg.Group, broker.ErrClosed)
	}
	s.wg.Add(1)
	s.mu.Unlock()

	cfg := s.cfg
	cfg.Topic = topic
	src, err := s.open(ctx, cfg)
	if err != nil {
		s.wg.Done()
		return nil, fmt.Errorf("subscribe to %q in group %q: %w", topic, cfg.Group, err)
	}
	p := startPump(ctx, src, cfg)
	s.mu.Lock()
	s.pumps[p] = struct{}{}
	closed := s.closed
	s.mu.Unlock()
	if closed { // Close came between
		p.beginDrain()
	}
	go func() {
		<-p.done
		s.mu.Lock()
		delete(s.pumps, p)
		s.mu.Unlock()
		s.wg.Done()
	}()
	return p.out, nil
}

// Close drains every subscription and returns once all channels are closed. A
// second call waits for the first and does nothing more.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	for p := range s.pumps {
		p.beginDrain()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
