package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

const (
	// countsKept is how long the count of a message that was never acked is known.
	countsKept = 14 * 24 * time.Hour
	// parallel bounds the requests that one call has under way.
	parallel = 16
	// sweepWait is how long Close waits for counts to be removed.
	sweepWait = time.Second
)

// counts keeps how often handlers received messages that were delivered more than
// once: one small message for each, under a subject of its own.
type counts struct {
	b *Broker

	mu       sync.Mutex
	stream   jetstream.Stream
	garbage  []uint64 // counts of settled messages, by sequence
	sweeping bool
	swept    sync.WaitGroup
}

// count is the record of one message.
type count struct {
	subject string
	n       int
	seq     uint64 // of the record; 0: there is none
}

// config is the stream of counts.
func (c *counts) config() jetstream.StreamConfig {
	subject := c.b.cfg.countsSubject()
	return jetstream.StreamConfig{
		Name:              assetName(subject),
		Description:       "Headrace delivery counts",
		Subjects:          []string{subject + ".>"},
		Storage:           jetstream.FileStorage,
		Replicas:          c.b.cfg.Replicas,
		MaxAge:            countsKept,
		MaxMsgsPerSubject: 1,
		MaxMsgs:           -1, MaxConsumers: -1, MaxBytes: -1, MaxMsgSize: -1,
		Metadata: map[string]string{metaPrefix: c.b.cfg.Prefix},
	}
}

// subject is where a message's count is.
func (c *counts) subject(stream, consumer string, seq uint64) string {
	return c.b.cfg.countsSubject() + "." + stream + "." + consumer + "." + strconv.FormatUint(seq, 10)
}

// open returns the stream, or nil where there is none and none is to be made.
func (c *counts) open(ctx context.Context, create bool) (jetstream.Stream, error) {
	c.mu.Lock()
	s := c.stream
	c.mu.Unlock()
	if s != nil {
		return s, nil
	}
	cfg := c.config()
	s, err := c.b.js.Stream(ctx, cfg.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !create {
			return nil, nil
		}
		s, err = c.b.js.CreateStream(ctx, cfg)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another one was faster, with other Replicas
			s, err = c.b.js.Stream(ctx, cfg.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("stream of delivery counts %s: %w", cfg.Name, err)
	}
	c.keep(s)
	return s, nil
}

func (c *counts) keep(s jetstream.Stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = s
}

// write stores records and notes their sequences. Those that it did not store
// keep the sequence they had.
func (c *counts) write(ctx context.Context, records []*count) error {
	if len(records) == 0 {
		return nil
	}
	if _, err := c.open(ctx, true); err != nil {
		return err
	}
	err := c.send(ctx, records)
	if errors.Is(err, jetstream.ErrNoStreamResponse) { // it was deleted
		c.keep(nil)
		if _, err = c.open(ctx, true); err == nil {
			err = c.send(ctx, records)
		}
	}
	if err != nil {
		return fmt.Errorf("write %d delivery counts: %w", len(records), err)
	}
	return nil
}

func (c *counts) send(ctx context.Context, records []*count) error {
	futures := make([]jetstream.PubAckFuture, len(records))
	for i, r := range records {
		if err := c.b.connected(); err != nil {
			return err
		}
		var err error
		futures[i], err = c.b.js.PublishMsgAsync(
			&natsgo.Msg{Subject: r.subject, Data: strconv.AppendInt(nil, int64(r.n), 10)}, jetstream.WithRetryAttempts(0))
		if err != nil {
			return err
		}
	}
	for i, f := range futures {
		select {
		case ack := <-f.Ok():
			records[i].seq = ack.Sequence
		case err := <-f.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// read fills records in. Where there is none, the count is that of a first
// delivery.
func (c *counts) read(ctx context.Context, records []*count) error {
	for _, r := range records {
		r.n = 1
	}
	stream, err := c.open(ctx, false)
	if err != nil || stream == nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, r := range records {
		g.Go(func() error {
			msg, err := stream.GetLastMsgForSubject(ctx, r.subject)
			switch {
			case errors.Is(err, jetstream.ErrMsgNotFound):
				return nil
			case errors.Is(err, jetstream.ErrStreamNotFound):
				c.keep(nil)
				return nil
			case err != nil:
				return fmt.Errorf("read a delivery count: %w", err)
			}
			// What is no number is not ours: as if there were none.
			if n, err := strconv.Atoi(string(msg.Data)); err == nil && n >= 0 {
				r.n, r.seq = n, msg.Sequence
			}
			return nil
		})
	}
	return g.Wait()
}

// remove forgets the records of messages that are settled, by and by: what is
// left over goes by its age.
func (c *counts) remove(seqs []uint64) {
	if len(seqs) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.garbage = append(c.garbage, seqs...)
	if c.sweeping || c.stream == nil || c.b.closed.Load() {
		return
	}
	c.sweeping = true
	stream := c.stream
	c.swept.Go(func() { c.sweep(stream) })
}

func (c *counts) sweep(stream jetstream.Stream) {
	for {
		c.mu.Lock()
		seqs := c.garbage
		c.garbage = nil
		if len(seqs) == 0 || c.b.closed.Load() {
			c.sweeping = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), c.b.cfg.RequestTimeout)
		var g errgroup.Group
		g.SetLimit(parallel)
		for _, seq := range seqs {
			g.Go(func() error { return stream.DeleteMsg(ctx, seq) })
		}
		if err := g.Wait(); err != nil {
			c.b.cfg.Logger.DebugContext(ctx, "delivery counts of settled messages stay until their age removes them", "error", err)
		}
		cancel()
	}
}

// close waits a moment for the sweeping that is under way.
func (c *counts) close() {
	done := make(chan struct{})
	go func() {
		c.swept.Wait()
		close(done)
	}()
	grace := time.NewTimer(sweepWait)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
	}
}
