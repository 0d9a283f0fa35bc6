package outbox

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
)

// Environment of a relay in a process of its own.
const (
	envChild    = "HEADRACE_TEST_OUTBOX_CHILD" // the dialect
	envChildDSN = "HEADRACE_TEST_OUTBOX_DSN"
	envKillStep = "HEADRACE_TEST_OUTBOX_STEP" // which batch, and where in it, to ask for the kill
)

// pipeBroker publishes to standard output and asks its parent for a SIGKILL at
// one step of one batch.
type pipeBroker struct {
	mu    sync.Mutex
	out   *bufio.Writer
	batch int
	at    int
	step  string
}

func (b *pipeBroker) Publish(topic string, msgs ...*message.Message) error {
	return b.PublishBatch(context.Background(), topic, msgs)
}
func (b *pipeBroker) Close() error { return nil }

func (b *pipeBroker) PublishBatch(_ context.Context, topic string, msgs []*message.Message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.batch++
	stop := b.batch == b.at
	if stop && b.step == "claimed" {
		b.die()
	}
	for i, m := range msgs {
		if stop && b.step == "half" && i == len(msgs)/2 {
			b.die()
		}
		line, err := json.Marshal(published{Topic: topic, UUID: m.UUID, Key: m.Metadata.Get(events.KeyOrdering), Payload: string(m.Payload)})
		if err != nil {
			return err
		}
		b.out.Write(line)
		b.out.WriteByte('\n')
	}
	if stop && b.step == "published" { // between publish and mark
		b.die()
	}
	return b.out.Flush()
}

// die tells the parent that the step is reached and stands still.
func (b *pipeBroker) die() {
	b.out.WriteString("KILL\n")
	b.out.Flush()
	select {}
}

func childMain() {
	d := sqltx.Dialect(os.Getenv(envChild))
	db, err := sql.Open(driverOf(d), os.Getenv(envChildDSN))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	b := &pipeBroker{out: bufio.NewWriter(os.Stdout)}
	fmt.Sscanf(os.Getenv(envKillStep), "%d %s", &b.at, &b.step)
	r, err := NewRelay(RelayConfig{DB: db, Dialect: d, Publisher: b, BatchSize: 20, PollInterval: 20 * time.Millisecond, Logger: quiet()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // the parent closes our standard input to end us well
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := r.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// child is a relay process; got receives what it publishes.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}
}

func startChild(t *testing.T, e env, step string, got func(published)) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envChild+"="+string(e.dialect), envChildDSN+"="+e.dsn, envKillStep+"="+step)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	c := &child{cmd: cmd, stdin: stdin, ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if lines.Text() == "KILL" {
				_ = cmd.Process.Kill()
				break
			}
			var p published
			if json.Unmarshal(lines.Bytes(), &p) == nil {
				got(p)
			}
		}
		_ = cmd.Wait()
	}()
	return c
}

func (c *child) end() {
	_ = c.stdin.Close()
	<-c.ended
}

// The kill test: a relay process dies by SIGKILL after its claim, in the middle
// of a batch, and between publish and mark, again and again. No row is lost, a
// row comes again only with its own id, and the order of each key holds.
func TestKilledRelay(t *testing.T) {
	eachDialect(t, func(t *testing.T, e env) {
		w := e.writer(t, nil)
		const rows, keys = 600, 20
		var msgs []Message
		for i := range rows {
			msgs = append(msgs, msg(fmt.Sprint("topic-", i%keys%2), fmt.Sprint("k", i%keys), i/keys))
		}
		e.write(t, w, msgs...)
		var mu sync.Mutex
		var all []published
		got := func(p published) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, p)
		}
		seed := time.Now().UnixNano()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		for _, step := range []string{"claimed", "half", "published", "published", "half"} {
			c := startChild(t, e, strconv.Itoa(1+rng.IntN(3))+" "+step, got)
			select {
			case <-c.ended:
				require.Equal(t, syscall.SIGKILL, c.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
			case <-time.After(20 * time.Second):
				t.Fatal("the child was not killed")
			}
		}
		c := startChild(t, e, "", got)
		began := time.Now()
		eventually(t, "all rows are out", func() bool { return e.count(t, "1=1") == 0 })
		t.Logf("the rest took %s", time.Since(began))
		c.end()

		want := map[string]Message{}
		for _, m := range msgs {
			want[m.Message.UUID] = m
		}
		seen := map[string]int{}
		for _, p := range all {
			m, ok := want[p.UUID]
			require.True(t, ok, "a message that nobody wrote: %v", p)
			require.Equal(t, m.Topic, p.Topic)
			require.Equal(t, string(m.Message.Payload), p.Payload)
			seen[p.UUID]++
		}
		require.Len(t, seen, rows, "no row is lost")
		require.Greater(t, len(all), rows, "the kills between publish and mark left copies")
		require.Less(t, len(all), rows+5*16*20)
		requireOrder(t, all)
	})
}
