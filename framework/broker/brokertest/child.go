package brokertest

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework/broker"
)

// Variables that turn the test binary into a consumer.
const (
	envChild = "HEADRACE_TEST_CHILD" // how many first deliveries to nack
	envAddr  = "HEADRACE_TEST_CHILD_ADDR"
	envTopic = "HEADRACE_TEST_CHILD_TOPIC"
	envGroup = "HEADRACE_TEST_CHILD_GROUP"
	envOrder = "HEADRACE_TEST_CHILD_ORDER"
)

const childConcurrency = 3

// Main is the adapter's TestMain: it runs the tests, or acts as a consumer when
// the suite started this binary as one. Open opens Storage.Addr. It fails the
// run when goroutines are left at the end. Open may be nil for a broker that
// lives in one process.
func Main(m *testing.M, open func(ctx context.Context, addr string) (broker.Broker, error)) {
	if os.Getenv(envChild) != "" {
		if err := consume(open); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The tests wait more than they work. A flag on the command line wins.
	_ = flag.Set("test.parallel", "16")
	code := m.Run()
	if code == 0 {
		err := goleak.Find()
		for until := time.Now().Add(3 * time.Second); err != nil && time.Now().Before(until); {
			err = goleak.Find() // it waits a while itself; stock loops sleep longer
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// consume receives messages, prints each and settles none, but for the first
// ones that it was told to nack. It ends when it is killed or its parent dies.
func consume(open func(ctx context.Context, addr string) (broker.Broker, error)) error {
	nacks, err := strconv.Atoi(os.Getenv(envChild))
	if err != nil {
		return err
	}
	go func() { // the parent holds the other end of stdin
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	b, err := open(context.Background(), os.Getenv(envAddr))
	if err != nil {
		return err
	}
	sub, err := b.Subscriber(broker.SubscriberConfig{
		Group: os.Getenv(envGroup), Concurrency: childConcurrency, Lease: broker.MinLease, NackDelay: -1,
		Order: os.Getenv(envOrder) != "",
	})
	if err != nil {
		return err
	}
	ch, err := sub.Subscribe(context.Background(), os.Getenv(envTopic))
	if err != nil {
		return err
	}
	for m := range ch {
		fmt.Printf("got %s %d\n", m.UUID, count(m))
		if nacks > 0 {
			nacks--
			m.Nack()
		}
	}
	return nil
}

// child is a consumer in a process of its own.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	lines *bufio.Scanner
	ended bool
}

func (e env) child(t testing.TB, topic, group string, nacks int, order bool) *child {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	c := &child{t: t, cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), envChild+"="+strconv.Itoa(nacks), envAddr+"="+e.Addr, envTopic+"="+topic, envGroup+"="+group)
	if order {
		c.cmd.Env = append(c.cmd.Env, envOrder+"=1")
	}
	_, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.cmd.Stderr = os.Stderr
	c.lines = bufio.NewScanner(out)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(c.kill)
	return c
}

// got waits for the child's next message.
func (c *child) got() (uuid string, count int) {
	c.t.Helper()
	timer := time.AfterFunc(patience, c.stop)
	defer timer.Stop()
	for c.lines.Scan() {
		fields := strings.Fields(c.lines.Text())
		if len(fields) == 3 && fields[0] == "got" {
			n, err := strconv.Atoi(fields[2])
			require.NoError(c.t, err)
			return fields[1], n
		}
	}
	require.FailNow(c.t, "the child received nothing")
	return "", 0
}

func (c *child) stop() { _ = c.cmd.Process.Kill() }

// kill sends SIGKILL and waits for the end.
func (c *child) kill() {
	if !c.ended {
		c.ended = true
		c.stop()
		_ = c.cmd.Wait()
	}
}
