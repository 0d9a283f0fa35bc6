package nats

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

const (
	connectTimeout = 10 * time.Second
	pingTimeout    = 3 * time.Second
	reconnectWait  = 250 * time.Millisecond
	// maxAsync is above what publishers have under way: each bounds its own.
	maxAsync = 1 << 20
)

// Broker is a broker.Broker on NATS JetStream. It is safe for concurrent use.
type Broker struct {
	cfg    Config
	conn   *natsgo.Conn
	js     jetstream.JetStream
	own    bool
	api    string // what begins the subjects of JetStream's API
	pub    *publisher
	counts *counts
	closed atomic.Bool

	mu     sync.Mutex
	topics map[string]jetstream.Stream
}

var _ broker.Broker = (*Broker)(nil)

// Open connects to NATS and returns once JetStream answers. It fails when the
// config is wrong or nothing answers before ctx ends; an error never prints the
// URL's password.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, conn: cfg.Conn, topics: make(map[string]jetstream.Stream), api: jetstream.DefaultAPIPrefix}
	where := "the connection that was handed in"
	if b.conn == nil {
		where = servers(cfg.URL)
		var err error
		if b.conn, err = connect(ctx, cfg); err != nil {
			return nil, fmt.Errorf("nats: no NATS answers at %s: start one or correct the URL: %w", where, err)
		}
		b.own = true
	}
	var err error
	opts := []jetstream.JetStreamOpt{
		jetstream.WithPublishAsyncMaxPending(maxAsync),
		jetstream.WithPublishAsyncTimeout(2 * cfg.RequestTimeout),
		jetstream.WithDefaultTimeout(cfg.RequestTimeout),
	}
	if cfg.Domain != "" {
		b.api = "$JS." + cfg.Domain + ".API."
		b.js, err = jetstream.NewWithDomain(b.conn, cfg.Domain, opts...)
	} else {
		b.js, err = jetstream.New(b.conn, opts...)
	}
	if err == nil {
		b.pub, b.counts = &publisher{b: b}, &counts{b: b}
		err = b.Ping(ctx)
	}
	if err != nil {
		_ = b.Close()
		return nil, fmt.Errorf("nats: JetStream does not answer at %s: enable it (nats-server -js), or correct URL, domain and account: %w", where, err)
	}
	return b, nil
}

// connect opens the broker's own connection.
func connect(ctx context.Context, cfg Config) (*natsgo.Conn, error) {
	timeout := connectTimeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	log := cfg.Logger
	opts := []natsgo.Option{
		natsgo.Name("headrace"),
		natsgo.Timeout(timeout),
		natsgo.MaxReconnects(-1),
		natsgo.ReconnectWait(reconnectWait),
		natsgo.ReconnectJitter(reconnectWait, reconnectWait),
		// What is sent without a connection fails at once, and is sent again by
		// whoever waits for its answer.
		natsgo.ReconnectBufSize(-1),
		natsgo.DisconnectErrHandler(func(_ *natsgo.Conn, err error) {
			if err != nil {
				log.Warn("connection to NATS lost; reconnecting", "error", err)
			}
		}),
		natsgo.ReconnectHandler(func(c *natsgo.Conn) {
			log.Info("connected to NATS again", "server", c.ConnectedServerName())
		}),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
			log.Error("NATS reports an error", "error", err)
		}),
	}
	type result struct {
		conn *natsgo.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, err := natsgo.Connect(cfg.URL, append(opts, cfg.Options...)...)
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		return r.conn, redact(cfg.URL, r.err)
	case <-ctx.Done():
		go func() {
			if r := <-done; r.conn != nil {
				r.conn.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// redact keeps a URL's secret out of the error that names it.
func redact(raw string, err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		return parse.Err
	}
	if err != nil {
		for part := range strings.SplitSeq(raw, ",") {
			if part = strings.TrimSpace(part); strings.Contains(part, "@") && strings.Contains(err.Error(), part) {
				return errors.New("malformed URL")
			}
		}
	}
	return err
}

// servers lists the hosts of a URL, without what may be secret.
func servers(raw string) string {
	var hosts []string
	for part := range strings.SplitSeq(raw, ",") {
		part = strings.TrimSpace(part)
		part = part[strings.LastIndexByte(part, '@')+1:]
		if _, host, ok := strings.Cut(part, "://"); ok {
			part = host
		}
		hosts = append(hosts, part)
	}
	return strings.Join(hosts, ", ")
}

// Name returns "nats".
func (b *Broker) Name() string { return Name }

// Features states what this broker can do.
func (b *Broker) Features() broker.Features {
	f := b.cfg.Features()
	if n := b.conn.MaxPayload(); n > 0 {
		f.MaxMessageBytes = int(n)
	}
	return f
}

// Publisher returns the broker's publisher.
func (b *Broker) Publisher() broker.Publisher { return b.pub }

// Subscriber makes a subscriber.
func (b *Broker) Subscriber(cfg broker.SubscriberConfig) (message.Subscriber, error) {
	cfg, err := cfg.Complete(b.cfg.Logger)
	if err != nil {
		return nil, err
	}
	ensure := func(ctx context.Context, topic string) error {
		return b.EnsureTopology(ctx, broker.Subscription{Topic: topic, Group: cfg.Group})
	}
	return lanes.NewSubscriber(lanes.Config{
		SubscriberConfig: cfg,
		MaxHeld:          b.cfg.MaxHeld,
		ReclaimEvery:     checkEvery,
		Heartbeat:        cfg.Lease / 3,
		DeadLetters:      b.pub,
	}, ensure, b.join), nil
}

// Admin returns the operators' view.
func (b *Broker) Admin() broker.Admin { return admin{b} }

// Ping returns nil when JetStream answers.
func (b *Broker) Ping(ctx context.Context) error {
	if b.closed.Load() {
		return fmt.Errorf("nats: %w", broker.ErrClosed)
	}
	if err := b.connected(); err != nil {
		return fmt.Errorf("nats: ping: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, min(b.cfg.RequestTimeout, pingTimeout))
	defer cancel()
	if _, err := b.js.AccountInfo(ctx); err != nil {
		return fmt.Errorf("nats: ping: %w", err)
	}
	return nil
}

// connected fails at once where a request would wait for a connection.
func (b *Broker) connected() error {
	if b.closed.Load() {
		return broker.ErrClosed
	}
	if status := b.conn.Status(); status != natsgo.CONNECTED {
		return fmt.Errorf("%w (%s)", natsgo.ErrDisconnected, strings.ToLower(status.String()))
	}
	return nil
}

// timeout bounds a request that nothing else bounds closer.
func (b *Broker) timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, b.cfg.RequestTimeout)
}

// Close closes the broker's own connection. It may be called twice.
func (b *Broker) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	if b.counts != nil {
		b.counts.close()
	}
	if b.js != nil {
		b.js.CleanupPublisher()
	}
	if b.own {
		b.conn.Close()
	}
	return nil
}
