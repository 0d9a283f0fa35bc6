package deadletter_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

type thing struct {
	Name string `json:"name"`
}

var made = events.Define[thing]("thing.made", "1.0")

// service is a handler that fails while broken says so.
type service struct {
	*frameworktest.System
	t      *testing.T
	desk   *desk
	db     *sql.DB
	broken func(name string) bool
	mu     sync.Mutex
	calls  atomic.Int32
}

func startService(t *testing.T, b broker.Broker) *service {
	s := &service{System: frameworktest.On(t, b), t: t, desk: newDesk(t, b), broken: func(string) bool { return true }}
	conn := s.Connections()
	s.db = conn.DB
	_, err := conn.DB.ExecContext(context.Background(), "CREATE TABLE effects (name TEXT NOT NULL)")
	require.NoError(t, err)
	app, err := framework.New(framework.Config{
		Service: "things", Profile: frameworktest.Profile(), DB: conn.DB, Dialect: conn.Dialect, Broker: b,
		OutboxWaker: conn.Waker, Logger: frameworktest.Logger(t),
	})
	require.NoError(t, err)
	framework.HandleTx(app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		s.calls.Add(1)
		s.mu.Lock()
		broken := s.broken(e.Data.Name)
		s.mu.Unlock()
		if broken {
			return errors.New("no stock")
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO effects (name) VALUES ($1)", e.Data.Name)
		return err
	}, framework.MaxAttempts(2), framework.OrderByKey())
	s.Start(app)
	return s
}

func (s *service) mend(broken func(string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = broken
}

// fail publishes n events and waits until each is a dead letter.
func (s *service) fail(n int) {
	for i := range n {
		s.Publish(made.New(fmt.Sprintf("k%d", i%3), thing{Name: fmt.Sprint(i)}))
	}
	s.Idle()
	require.Len(s.t, s.DeadLetters(group), n)
}

func (s *service) effects() (names []string) {
	rows, err := s.db.QueryContext(context.Background(), "SELECT name FROM effects ORDER BY rowid")
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		var name string
		require.NoError(s.t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(s.t, rows.Err())
	return names
}

func never(string) bool { return false }

// B23: the handler really runs again, each message takes effect once, also where
// a replay published it twice; one that still fails comes back, counted, until
// the cap.
func TestAReplayTakesEffectOnce_B23(t *testing.T) {
	t.Parallel()
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startService(t, open(t))
			s.fail(10)
			s.desk.broker.remove = func() error { return errAway } // a crash behind the publish
			_, err := s.desk.Replay(context.Background(), deadletter.ReplayOptions{Limit: 1})
			require.ErrorIs(t, err, errAway)
			s.desk.broker.set(func(f *faulty) { f.remove = nil })
			s.mend(func(name string) bool { return name == "7" })
			s.Idle()

			r, err := s.desk.Replay(context.Background(), deadletter.ReplayOptions{Wait: true})
			require.NoError(t, err)
			s.Idle()
			// The first came back from the replay before the mending, or was handled.
			require.GreaterOrEqual(t, r.Returned, 1)
			require.Contains(t, r.Stopped, "dead-lettered again")
			for range 3 {
				_, err = s.desk.Replay(context.Background(), deadletter.ReplayOptions{Wait: true})
				require.NoError(t, err)
				s.Idle()
			}
			names := map[string]int{}
			for _, n := range s.effects() {
				names[n]++
			}
			require.Len(t, names, 9)
			for n, times := range names {
				require.Equal(t, 1, times, n)
			}
			left := s.desk.letters()
			require.Len(t, left, 1)
			require.Equal(t, []any{deadletter.DefaultMaxRedrives, middleware.ReasonExhausted, 2}, []any{left[0].Redrives, left[0].Reason, left[0].Attempts})
			r, err = s.desk.Replay(context.Background(), deadletter.ReplayOptions{})
			require.NoError(t, err)
			require.Equal(t, []int{0, 1}, []int{r.Replayed, r.Refused})

			s.mend(never)
			_, err = s.desk.Replay(context.Background(), deadletter.ReplayOptions{MaxRedrives: -1})
			require.NoError(t, err)
			s.Idle()
			require.Len(t, s.effects(), 10)
			require.Empty(t, s.DeadLetters(group))
		})
	}
}

func TestACanaryStopsWhenOneComesBack(t *testing.T) {
	t.Parallel()
	s := startService(t, kinds["memory"](t))
	s.fail(30)
	r, err := s.desk.Replay(context.Background(), deadletter.ReplayOptions{Canary: []int{1, 10, 100}})
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{r.Replayed, r.Returned})
	require.Contains(t, r.Stopped, "dead-lettered again")
	require.Contains(t, r.Notes[0].Why, "exhausted: no stock")
	require.Len(t, s.DeadLetters(group), 30)

	s.mend(func(name string) bool { return name == "5" })
	r, err = s.desk.Replay(context.Background(), deadletter.ReplayOptions{Canary: []int{1, 10, 100}})
	require.NoError(t, err)
	require.Equal(t, []int{11, 1}, []int{r.Replayed, r.Returned}, "the second step has it")

	s.mend(never)
	r, err = s.desk.Replay(context.Background(), deadletter.ReplayOptions{Canary: []int{1, 5}})
	require.NoError(t, err)
	require.True(t, r.Complete())
	require.Equal(t, 20, r.Replayed)
	require.Len(t, s.effects(), 30)
}

// Nobody reads the redrive topic: a canary does not take silence for success.
func TestACanaryStopsWhenTheServiceIsDown(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		d.bury(failure{})
		d.bury(failure{})
		r, err := d.Replay(context.Background(), deadletter.ReplayOptions{Canary: []int{1}, Outcome: 300 * time.Millisecond})
		require.NoError(t, err)
		require.Contains(t, r.Stopped, "does the service run?")
		require.Equal(t, 1, r.Replayed)
		require.Len(t, d.left(), 1)
	})
}

// Messages of one key take effect in the order in which they failed.
func TestAReplayKeepsTheOrderOfAKey(t *testing.T) {
	t.Parallel()
	s := startService(t, kinds["redisstream"](t))
	const n = 60
	s.fail(n)
	var want []string
	for _, l := range s.desk.letters() {
		e, err := events.Decode(l.Message.Payload)
		require.NoError(t, err)
		if l.Key == "k1" {
			want = append(want, frameworktest.Data[thing](t, e).Name)
		}
	}
	s.mend(never)
	_, err := s.desk.Replay(context.Background(), deadletter.ReplayOptions{})
	require.NoError(t, err)
	s.Idle()
	var got []string
	for _, name := range s.effects() {
		var i int
		_, err := fmt.Sscan(name, &i)
		require.NoError(t, err)
		if i%3 == 1 {
			got = append(got, name)
		}
	}
	require.Equal(t, want, got)
}
