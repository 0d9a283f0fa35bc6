package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/schema"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// The crash suite: schedules drawn from a seed, in which relays and writers die
// by SIGKILL at a drawn step, again and again, while the broker fails and other
// writers commit late or roll back. HEADRACE_TEST_CRASH is how many schedules
// are run (default 6, two on each dialect) and HEADRACE_TEST_CRASH_SEED repeats
// the one of that seed.
const (
	envSchedules = "HEADRACE_TEST_CRASH"
	envSeed      = "HEADRACE_TEST_CRASH_SEED"
)

// plan is a schedule.
type plan struct {
	Seed      uint64
	Dialect   sqltx.Dialect
	Keys      int // of the writers that live
	Rows      int // of each key
	Relays    int
	BatchSize int
	Strict    bool
	Retain    bool
	Ordered   bool // the publisher keeps the order of keys within a call
	FailEvery int  // the broker fails about every nth call; 0: never
	Kills     []string
}

// The steps at which a process is killed. Those of the relay name a call of its
// publisher; "later" is some moment after it, which falls into the settling or
// into the next claim.
var killSteps = []string{"claimed", "half", "published", "later", "writing", "committed"}

func newPlan(seed uint64, n int) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := plan{
		Seed:      seed,
		Dialect:   []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite}[n%3],
		Keys:      2 + r.IntN(8),
		Rows:      10 + r.IntN(30),
		Relays:    1 + r.IntN(3),
		BatchSize: 3 + r.IntN(30),
		Strict:    r.IntN(4) == 0,
		Retain:    r.IntN(3) == 0,
		Ordered:   r.IntN(2) == 0,
		FailEvery: []int{0, 3, 7}[r.IntN(3)],
	}
	// Each step comes up in turn, and one or two more by chance.
	p.Kills = append(p.Kills, killSteps[(n/3)%len(killSteps)])
	for range 1 + r.IntN(2) {
		p.Kills = append(p.Kills, killSteps[r.IntN(len(killSteps))])
	}
	return p
}

func TestCrashes(t *testing.T) {
	count := 6
	if s := os.Getenv(envSchedules); s != "" {
		var err error
		count, err = strconv.Atoi(s)
		require.NoError(t, err, envSchedules)
	}
	base := uint64(time.Now().UnixNano())
	if s := os.Getenv(envSeed); s != "" {
		var err error
		base, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, envSeed)
	}
	t.Logf("%d schedules from seed %d: %s=%d %s=%d repeats them", count, base, envSeed, base, envSchedules, count)
	for i, d := range []sqltx.Dialect{sqltx.Postgres, sqltx.MySQL, sqltx.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, d)
			var killed, copies, rows int
			for n := i; n < count; n += 3 {
				p := newPlan(base+uint64(n), n)
				t.Logf("schedule %d: %+v", n, p)
				k, c, r := p.run(t, e)
				killed, copies, rows = killed+k, copies+c, rows+r
			}
			t.Logf("%d processes killed, %d rows, %d copies; nothing lost, order held", killed, rows, copies)
			if count >= 6 {
				require.Positive(t, killed)
			}
		})
	}
}

// childConfig is what a child process is to do.
type childConfig struct {
	Plan plan
	DSN  string
	Sink string // the file that stands for the broker
	Mode string // "relay" or "writer"
	Kill string
	At   int // of which call
}

// run plays the schedule and checks what came of it.
func (p plan) run(t *testing.T, e env) (killed, copies, rows int) {
	t.Helper()
	_, err := e.db.Exec(`DELETE FROM ` + schema.OutboxTable)
	require.NoError(t, err)
	_, err = e.db.Exec(`DELETE FROM ` + schema.ControlTable)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(p.Seed, 1))
	cfg := childConfig{Plan: p, DSN: e.dsn, Sink: filepath.Join(t.TempDir(), fmt.Sprint("sink-", p.Seed))}

	// Writers that live.
	var mu sync.Mutex
	want := map[string]Message{}
	w := e.writer(t, nil)
	var writers sync.WaitGroup
	for k := range p.Keys {
		seed := rng.Uint64()
		writers.Go(func() {
			for _, m := range p.write(e, w, fmt.Sprint("k", k), rand.New(rand.NewPCG(seed, 0))) {
				mu.Lock()
				want[m.Message.UUID] = m
				mu.Unlock()
			}
		})
	}

	// Processes that die, and one after each that takes its place.
	var slots sync.WaitGroup
	var children []*child
	slot := make(chan string, len(p.Kills))
	for _, kill := range p.Kills {
		slot <- kill
	}
	close(slot)
	for range p.Relays {
		seed := rng.Uint64()
		slots.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for kill := range slot {
				c := cfg
				c.Mode, c.Kill, c.At = "relay", kill, 1+r.IntN(4)
				if kill == "writing" || kill == "committed" {
					c.Mode, c.At = "writer", 1+r.IntN(20)
				}
				dying := startChild(t, c)
				if dying == nil {
					return
				}
				// A relay that finds too little to do does not come to its step.
				if dying.wait(3*time.Second) == syscall.SIGKILL {
					mu.Lock()
					killed++
					mu.Unlock()
				} else {
					dying.end()
				}
			}
			last := cfg
			last.Mode = "relay"
			if c := startChild(t, last); c != nil {
				mu.Lock()
				children = append(children, c)
				mu.Unlock()
			}
		})
	}
	slots.Wait()
	writers.Wait()
	if t.Failed() {
		t.FailNow()
	}
	eventually(t, "all rows are out", func() bool { return e.count(t, "acked = FALSE") == 0 })
	for _, c := range children {
		c.end()
	}
	return killed, p.check(t, cfg, want), len(want)
}

// write commits the key's messages, some in one transaction, some rolled back
// before, some held open for a while, and returns them.
func (p plan) write(e env, w *Writer, key string, r *rand.Rand) (all []Message) {
	no := errors.New("no")
	for n := 0; n < p.Rows; {
		part := 1 + r.IntN(min(4, p.Rows-n))
		var msgs []Message
		for range part {
			msgs = append(msgs, msg("topic-"+strconv.Itoa(r.IntN(2)), key, n+len(msgs)))
		}
		abort, pause := r.IntN(5) == 0, time.Duration(0)
		if r.IntN(6) == 0 {
			pause = time.Duration(r.IntN(20)) * time.Millisecond
		}
		err := sqltx.Run(context.Background(), e.db, sqltx.Options{Dialect: e.dialect}, func(ctx context.Context, tx *sql.Tx) error {
			if err := w.Write(ctx, tx, msgs...); err != nil {
				return err
			}
			time.Sleep(pause) // the case itself: rows that commit after later ones
			if abort {
				return no
			}
			return nil
		})
		if err == nil {
			all = append(all, msgs...)
			n += part
		} else if !errors.Is(err, no) {
			panic(err)
		}
	}
	return all
}

// check reads what the broker got, in order: nothing is lost, a copy has its
// message's own id, nothing comes from a rollback, each key is in order.
func (p plan) check(t *testing.T, cfg childConfig, want map[string]Message) (copies int) {
	t.Helper()
	again := fmt.Sprintf("seed %d", p.Seed)
	data, err := os.ReadFile(cfg.Sink)
	require.NoError(t, err)
	var all, dead []published
	for line := range strings.Lines(string(data)) {
		var got published
		if json.Unmarshal([]byte(line), &got) != nil {
			continue // the half of a line that a kill cut off: the broker has no such message
		}
		if strings.HasPrefix(got.Key, "dead") {
			dead = append(dead, got)
			continue
		}
		all = append(all, got)
	}
	seen := map[string]int{}
	for _, got := range all {
		m, ok := want[got.UUID]
		require.True(t, ok, "%s: a message that nobody committed: %+v", again, got)
		require.Equal(t, []any{m.Topic, string(m.Message.Payload)}, []any{got.Topic, got.Payload}, again)
		if seen[got.UUID]++; seen[got.UUID] > 1 {
			copies++
		}
	}
	require.Len(t, seen, len(want), "%s: lost", again)
	requireOrder(t, all)
	requireOrder(t, dead)

	// Writers that died: what they knew to be committed is out.
	told, err := os.ReadFile(cfg.Sink + ".committed")
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	out := map[string]bool{}
	for _, got := range dead {
		out[got.UUID] = true
	}
	for id := range strings.Lines(string(told)) {
		if strings.HasSuffix(id, "\n") {
			require.True(t, out[strings.TrimSpace(id)], "%s: lost %s", again, id)
		}
	}
	return copies
}

// sinkBroker appends to a file what it takes, and dies at its step.
type sinkBroker struct {
	cfg   childConfig
	mu    sync.Mutex
	rng   *rand.Rand
	file  *os.File
	calls int
}

func (b *sinkBroker) Publish(topic string, msgs ...*message.Message) error {
	return b.PublishBatch(context.Background(), topic, msgs)
}
func (b *sinkBroker) Close() error        { return nil }
func (b *sinkBroker) KeepsKeyOrder() bool { return b.cfg.Plan.Ordered }

func (b *sinkBroker) PublishBatch(_ context.Context, topic string, msgs []*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	step := ""
	if b.calls == b.cfg.At {
		step = b.cfg.Kill
	}
	if step == "claimed" {
		die()
	}
	failAt := len(msgs)
	if b.cfg.Plan.FailEvery > 0 && b.rng.IntN(b.cfg.Plan.FailEvery) == 0 {
		failAt = b.rng.IntN(len(msgs))
	}
	failed := map[int]error{}
	for i, m := range msgs {
		if step == "half" && i == len(msgs)/2 {
			die()
		}
		if i == failAt || i > failAt && b.cfg.Plan.Ordered {
			failed[i] = errBroker
			continue
		}
		line, err := json.Marshal(published{Topic: topic, UUID: m.UUID, Key: m.Metadata.Get(events.KeyOrdering), Payload: string(m.Payload)})
		if err != nil {
			return err
		}
		if _, err := b.file.Write(append(line, '\n')); err != nil { // one append: what is there counts as taken
			return err
		}
	}
	switch step {
	case "published":
		die()
	case "later":
		time.AfterFunc(time.Duration(b.rng.IntN(8000))*time.Microsecond, die)
	}
	if len(failed) > 0 {
		return publishError(topic, failed)
	}
	return nil
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// envChild tells this binary to be a child, and which.
const envChild = "HEADRACE_TEST_OUTBOX_CHILD"

func childMain() {
	if err := runChild(); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

func runChild() error {
	var cfg childConfig
	if err := json.Unmarshal([]byte(os.Getenv(envChild)), &cfg); err != nil {
		return err
	}
	db, err := sql.Open(driverOf(cfg.Plan.Dialect), cfg.DSN)
	if err != nil {
		return err
	}
	if cfg.Mode == "writer" {
		return dieWriting(cfg, db)
	}
	file, err := os.OpenFile(cfg.Sink, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	b := &sinkBroker{cfg: cfg, file: file, rng: rand.New(rand.NewPCG(cfg.Plan.Seed, uint64(os.Getpid())))}
	c := RelayConfig{DB: db, Dialect: cfg.Plan.Dialect, Publisher: b, BatchSize: cfg.Plan.BatchSize, StrictOrder: cfg.Plan.Strict,
		PollInterval: 10 * time.Millisecond, BackoffBase: 5 * time.Millisecond, BackoffCap: 20 * time.Millisecond, OutageCap: 20 * time.Millisecond,
		MaxAttempts: -1, PublishTimeout: time.Second, Logger: quiet()}
	if cfg.Plan.Retain {
		c.Retention = time.Hour
	}
	r, err := NewRelay(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // the parent closes our standard input to end us well
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return r.Run(ctx)
}

// dieWriting commits rows one by one, notes what it knows to be committed, and
// dies with a transaction open or right after a commit.
func dieWriting(cfg childConfig, db *sql.DB) error {
	told, err := os.OpenFile(cfg.Sink+".committed", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	w, err := NewWriter(WriterConfig{Dialect: cfg.Plan.Dialect})
	if err != nil {
		return err
	}
	key := fmt.Sprint("dead", os.Getpid())
	for n := 0; ; n++ {
		m := msg("topic-0", key, n)
		err := sqltx.Run(context.Background(), db, sqltx.Options{Dialect: cfg.Plan.Dialect}, func(ctx context.Context, tx *sql.Tx) error {
			if err := w.Write(ctx, tx, m); err != nil {
				return err
			}
			if cfg.Kill == "writing" && n == cfg.At {
				die()
			}
			return nil
		})
		if err != nil {
			return err
		}
		if n == cfg.At {
			die()
		}
		if _, err := told.WriteString(m.Message.UUID + "\n"); err != nil {
			return err
		}
	}
}

// child is a process of this binary.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

func startChild(t *testing.T, cfg childConfig) *child {
	t.Helper()
	spec, err := json.Marshal(cfg)
	if err != nil {
		t.Error(err)
		return nil
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envChild+"="+string(spec))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Error(err)
		return nil
	}
	c := &child{cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		_ = cmd.Wait()
	}()
	return c
}

// wait returns the signal that ended the child, or -1.
func (c *child) wait(limit time.Duration) syscall.Signal {
	select {
	case <-c.ended:
		if s := c.cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() {
			return s.Signal()
		}
	case <-time.After(limit):
	}
	return -1
}

// end ends the child well.
func (c *child) end() {
	_ = c.stdin.Close()
	<-c.ended
}
