package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// deleted knows what Admin.Delete removed. Kafka removes nothing but the oldest
// messages of a partition; the others are listed in a compacted topic, one record
// each, and every reader of ours passes over them.
type deleted struct {
	b *Broker

	mu  sync.Mutex
	pos int64
	// by topic id and partition; the id, since a topic that is made anew counts
	// from 0 again.
	gone map[string]map[int64]bool
}

func newDeleted(b *Broker) *deleted { return &deleted{b: b, gone: make(map[string]map[int64]bool)} }

func deletedKey(id kadm.TopicID, partition int32) string {
	return id.String() + "/" + strconv.Itoa(int(partition))
}

func (d *deleted) topic() string { return d.b.cfg.Prefix + deletedTopic }

// refresh reads what was written to the list since the last time.
func (d *deleted) refresh(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ends, err := d.b.ends(ctx, d.topic())
	if err != nil {
		return fmt.Errorf("read what was deleted: %w", err)
	}
	end := ends[0]
	if end < d.pos { // the list itself was made anew
		d.pos = 0
		clear(d.gone)
	}
	if end == d.pos {
		return nil
	}
	err = d.b.read(ctx, d.topic(), map[int32]span{0: {d.pos, end}}, func(r *kgo.Record) bool {
		d.apply(r)
		return true
	})
	if err != nil {
		return fmt.Errorf("read what was deleted: %w", err)
	}
	d.pos = end
	return nil
}

func (d *deleted) apply(r *kgo.Record) {
	i := strings.LastIndexByte(string(r.Key), '/')
	if i < 0 {
		return
	}
	key := string(r.Key[:i])
	offset, err := strconv.ParseInt(string(r.Key[i+1:]), 10, 64)
	if err != nil {
		return
	}
	if len(r.Value) == 0 {
		delete(d.gone[key], offset)
		return
	}
	if d.gone[key] == nil {
		d.gone[key] = make(map[int64]bool)
	}
	d.gone[key][offset] = true
}

// has tells whether a message was removed.
func (d *deleted) has(key string, offset int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gone[key][offset]
}

// between counts the removed messages from one offset up to another.
func (d *deleted) between(key string, from, to int64) (n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for offset := range d.gone[key] {
		if offset >= from && offset < to {
			n++
		}
	}
	return n
}

// list returns the removed offsets of a partition from one up to another.
func (d *deleted) list(key string, from, to int64) (offsets []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for offset := range d.gone[key] {
		if offset >= from && offset < to {
			offsets = append(offsets, offset)
		}
	}
	return offsets
}

// write adds offsets of a partition to the list, or takes them off it.
func (d *deleted) write(ctx context.Context, key string, offsets []int64, gone bool) error {
	if len(offsets) == 0 {
		return nil
	}
	err := d.b.create(ctx, d.topic(), 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")})
	if err != nil {
		return err
	}
	records := make([]*kgo.Record, len(offsets))
	for i, offset := range offsets {
		records[i] = &kgo.Record{Topic: d.topic(), Key: []byte(key + "/" + strconv.FormatInt(offset, 10))}
		if gone {
			records[i].Value = []byte{1}
		}
	}
	if err := d.b.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	return d.refresh(ctx)
}

// missing tells that a topic or group does not exist.
func missing(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.GroupIDNotFound)
}
