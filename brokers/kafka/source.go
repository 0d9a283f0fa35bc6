package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/lanes"
)

const (
	// joinWait bounds how long Subscribe waits for partitions. A member that more
	// members than partitions leave without any waits so long.
	joinWait = 3 * time.Second
	// settleWait is how many heartbeats it waits once it has joined without any:
	// others may have to give some up first.
	settleWait = 2
	// watchEvery is how often a member looks what others hold of its partitions.
	watchEvery = 100 * time.Millisecond
	// queueAhead is how many records of one partition that takes none in are kept.
	queueAhead = 2 * MaxUnsettled
)

// source is one member of one group, on one topic.
type source struct {
	b      *Broker
	cfg    lanes.Config
	name   string // the Kafka topic
	group  string // the Kafka group
	member string
	client *kgo.Client
	log    *slog.Logger

	joined   chan struct{} // closed once this is a member
	assigned chan struct{} // closed once it has partitions
	once     [2]sync.Once  // for joined and assigned
	stop     context.CancelFunc
	stopped  context.Context
	leaving  sync.WaitGroup
	leave    sync.Mutex // held while leaving; guards left
	left     bool

	// Fetch's and Reclaim's own.
	refreshed time.Time
	watched   time.Time
	turn      int

	committing sync.Mutex // from making a commit to its answer
	telling    sync.Mutex // the same for what a holder tells

	mu     sync.Mutex
	id     kadm.TopicID
	parts  map[int32]*part
	lost   map[int32]*part // the group was lost, and is being joined again
	paused map[int32]bool
	live   map[string]*item // in hand, by the entry's id
	handed map[int32][]*item
	tellAt time.Time
	untold bool // something was settled or given back that was not told
	hands  int  // counts hand-outs
	bytes  int64
}

func (b *Broker) join(ctx context.Context, cfg lanes.Config) (lanes.Source, error) {
	if b.closed.Load() {
		return nil, broker.ErrClosed
	}
	if cfg.Topic == "" {
		return nil, errors.New("the topic has no name")
	}
	if err := b.ensureTopic(ctx, cfg.Topic); err != nil {
		return nil, err
	}
	s := &source{
		b: b, cfg: cfg, name: b.cfg.TopicName(cfg.Topic), group: b.cfg.GroupName(cfg.Group), member: uuid.NewString()[:13],
		log:    cfg.Logger.With("topic", cfg.Topic, "group", cfg.Group, "consumer", cfg.Consumer),
		joined: make(chan struct{}), assigned: make(chan struct{}),
		parts: make(map[int32]*part), lost: make(map[int32]*part), paused: make(map[int32]bool), live: make(map[string]*item), handed: make(map[int32][]*item),
	}
	rctx, cancel := b.timeout(ctx)
	defer cancel()
	if err := s.refresh(rctx); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	var err error
	s.client, err = kgo.NewClient(b.options(
		kgo.ConsumerGroup(s.group),
		kgo.ConsumeTopics(s.name),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(b.cfg.session(cfg.Lease)),
		kgo.RebalanceTimeout(b.cfg.session(cfg.Lease)+b.cfg.RequestTimeout),
		kgo.HeartbeatInterval(b.cfg.Heartbeat),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.AdjustFetchOffsetsFn(s.onOffsets),
		kgo.OnPartitionsAssigned(s.onAssigned),
		kgo.OnPartitionsRevoked(s.onRevoked),
		kgo.OnPartitionsLost(s.onLost),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(),
		kgo.FetchMaxWait(b.cfg.FetchWait),
		kgo.FetchMaxBytes(8<<20),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	s.await(ctx)
	return s, nil
}

// await waits for partitions, as long as it is likely that there will be some. A
// group that can't be joined yet is joined later.
func (s *source) await(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, joinWait)
	defer cancel()
	select {
	case <-s.joined:
	case <-ctx.Done():
		return
	}
	timer := time.NewTimer(settleWait * s.b.cfg.Heartbeat)
	defer timer.Stop()
	select {
	case <-s.assigned:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// refresh looks what Admin.Delete removed.
func (s *source) refresh(ctx context.Context) error {
	details, err := s.b.admin.ListTopics(ctx, s.name)
	if err != nil {
		return err
	}
	if err := s.b.deleted.refresh(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d, ok := details[s.name]; ok && d.Err == nil {
		s.id = d.ID
	}
	s.refreshed = time.Now()
	return nil
}

// Reclaim finds nothing: Kafka itself hands partitions on. It looks for what was
// removed.
func (s *source) Reclaim(ctx context.Context, _ int, _ func(string) bool) ([]*lanes.Entry, error) {
	if time.Since(s.refreshed) < refreshEvery {
		return nil, nil
	}
	return nil, s.refresh(ctx)
}

// Fetch takes in what Kafka has, records that it was delivered, and hands it out.
func (s *source) Fetch(ctx context.Context, limit int) ([]*lanes.Entry, error) {
	watching := s.watch(ctx)
	chosen := s.choose(limit)
	var err error
	if len(chosen) == 0 {
		wait := s.b.cfg.FetchWait
		if watching {
			wait = min(wait, watchEvery)
		}
		err = s.poll(ctx, limit, wait)
		chosen = s.choose(limit)
	}
	// Also where nothing is chosen: what was settled while the group was away waits.
	if err := s.commit(ctx); err != nil {
		return nil, err // what was chosen stays, and is chosen again
	}
	return s.handOut(chosen), err
}

func (s *source) choose(limit int) (chosen []*item) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := sortedKeys(s.parts)
	s.turn++
	for i := range keys {
		p := s.parts[keys[(i+s.turn)%len(keys)]]
		if len(chosen) == limit {
			break
		}
		if p.going {
			continue
		}
		key := deletedKey(s.id, p.n)
		chosen = append(chosen, p.choose(limit-len(chosen), s.cfg.Order, now, func(o int64) bool { return s.b.deleted.has(key, o) })...)
	}
	return chosen
}

// handOut makes entries of items whose partition is still this member's.
func (s *source) handOut(chosen []*item) []*lanes.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := make([]*lanes.Entry, 0, len(chosen))
	for _, it := range chosen {
		if p := it.part; p == nil || p.going || s.parts[p.n] != p {
			continue
		}
		s.hands++
		it.id = fmt.Sprintf("%d:%d#%d", it.part.n, it.offset, s.hands)
		it.due = time.Time{}
		s.live[it.id] = it
		entries = append(entries, &lanes.Entry{
			ID: it.id, Pos: lanes.Pos{Hi: uint64(it.part.n), Lo: uint64(it.offset)}, Stored: it.count + 1, Raw: it.rec, Left: true,
		})
	}
	return entries
}

// poll waits for records and queues them. A rebalance waits meanwhile only as long
// as that takes, so that nothing is queued of a partition that is gone.
func (s *source) poll(ctx context.Context, limit int, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	s.mu.Lock()
	full := s.bytes >= s.b.cfg.MaxHeldBytes
	s.mu.Unlock()
	if full {
		<-ctx.Done()
		return nil
	}
	fetches := s.client.PollRecords(ctx, max(limit, 100))
	s.mu.Lock()
	lost := 0
	for it := fetches.RecordIter(); !it.Done(); {
		r := it.Next()
		p := s.parts[r.Partition]
		if p == nil {
			continue
		}
		c := clone(r)
		used, gone := p.take(c)
		if used {
			s.bytes += int64(size(c))
		}
		lost += len(gone)
	}
	pause, resume := s.flow()
	s.mu.Unlock()
	s.client.AllowRebalance()
	if lost > 0 {
		s.log.WarnContext(ctx, "messages that were not settled are gone from Kafka: its retention is shorter than they waited, or somebody removed them", "messages", lost)
	}
	if len(pause) > 0 {
		s.client.PauseFetchPartitions(map[string][]int32{s.name: pause})
	}
	if len(resume) > 0 {
		s.client.ResumeFetchPartitions(map[string][]int32{s.name: resume})
	}
	return fetchError(fetches)
}

// flow tells which partitions to read no more for now, and which to read again. The
// client remembers the former also while another member has them. The lock is held.
func (s *source) flow() (pause, resume []int32) {
	for n, p := range s.parts {
		if !s.paused[n] && len(p.queue) >= queueAhead {
			s.paused[n] = true
			pause = append(pause, n)
		}
	}
	for n := range s.paused {
		if p := s.parts[n]; p == nil || len(p.queue) < queueAhead/4 {
			delete(s.paused, n)
			resume = append(resume, n)
		}
	}
	return pause, resume
}

// Decode decodes a record.
func (s *source) Decode(e *lanes.Entry) (*message.Message, error) {
	r, _ := e.Raw.(*kgo.Record)
	return decode(r)
}

// Malformed keeps the bytes of a record that Decode refused.
func (s *source) Malformed(e *lanes.Entry) *message.Message {
	r, _ := e.Raw.(*kgo.Record)
	return rawMessage(r)
}

// drop forgets an item's hand-out and its bytes. The lock is held.
func (s *source) drop(it *item) {
	if it.id != "" {
		delete(s.live, it.id)
	}
	if it.rec != nil {
		s.bytes -= int64(size(it.rec))
		it.rec = nil
	}
}
