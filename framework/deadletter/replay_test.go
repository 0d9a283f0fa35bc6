package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/middleware"
)

var errAway = errors.New("broker away")

// B23: what is published is the message that failed, byte for byte, to the group
// that failed, with the redrives counted.
func TestReplayRestoresTheMessage_B23(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		first := d.bury(failure{key: "a", metadata: map[string]string{"tenant": "t1"}})
		second := d.bury(failure{key: "b", payload: []byte("not { json\xff"), redrives: 1})
		var seen []deadletter.Progress
		r, err := d.Replay(context.Background(), deadletter.ReplayOptions{Progress: func(p deadletter.Progress) { seen = append(seen, p) }})
		require.NoError(t, err)
		require.True(t, r.Complete())
		require.Equal(t, []int{2, 2}, []int{r.Matched, r.Replayed})
		require.Equal(t, []deadletter.Progress{{1, 2, first.UUID}, {2, 2, second.UUID}}, seen)
		require.Empty(t, d.left())
		got := d.stored(broker.RedriveTopic(group))
		require.Len(t, got, 2)
		for i, want := range []*message.Message{first, second} {
			want.Metadata[middleware.DeadLetterRedriveCount] = fmt.Sprint(i + 1)
			require.NotEmpty(t, got[i].Metadata[middleware.DeadLetterFirstFailedAt], "since when it fails, should it fail again")
			want.Metadata[middleware.DeadLetterFirstFailedAt] = got[i].Metadata[middleware.DeadLetterFirstFailedAt]
			require.Equal(t, []any{want.UUID, want.Payload, want.Metadata}, []any{got[i].UUID, got[i].Payload, got[i].Metadata})
		}
		require.Len(t, d.entries, 2)
		require.Equal(t, []any{deadletter.ActionReplay, "ada", first.UUID}, []any{d.entries[0].Action, d.entries[0].Actor, d.entries[0].ID})
	})
}

// B23: the cap refuses, and what comes behind on the same key stays behind.
func TestTheCapRefusesAndKeepsTheKeysOrder_B23(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		tired := d.bury(failure{key: "a", redrives: 3})
		free := d.bury(failure{key: "b", redrives: 2})
		behind := d.bury(failure{key: "a"})

		dry, err := d.Replay(context.Background(), deadletter.ReplayOptions{DryRun: true})
		require.NoError(t, err)
		require.Len(t, d.left(), 3, "a dry run changes nothing")
		require.Empty(t, d.redriven())

		r, err := d.Replay(context.Background(), deadletter.ReplayOptions{})
		require.NoError(t, err)
		require.False(t, r.Complete())
		require.Equal(t, []int{1, 1, 1}, []int{r.Replayed, r.Refused, r.Held})
		require.Equal(t, []int{1, 1, 1}, []int{dry.Replayed, dry.Refused, dry.Held})
		require.Equal(t, tired.UUID, r.Notes[0].ID)
		require.Contains(t, r.Notes[0].Why, "replayed 3 times already")
		require.Contains(t, r.Notes[1].Why, tired.UUID)
		require.Equal(t, []string{free.UUID}, d.redriven())
		require.Equal(t, []string{tired.UUID, behind.UUID}, d.left())

		r, err = d.Replay(context.Background(), deadletter.ReplayOptions{MaxRedrives: -1})
		require.NoError(t, err)
		require.True(t, r.Complete())
		require.Equal(t, []string{free.UUID, tired.UUID, behind.UUID}, d.redriven())
	})
}

func TestReplayKeepsTheOrderOfAKeyWhenAPublishFails(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		var want []string
		var bad string
		for i := range 30 {
			m := d.bury(failure{key: fmt.Sprint(i % 3)})
			switch {
			case i == 4:
				bad = m.UUID
			case i%3 != 1 || i < 4:
				want = append(want, m.UUID)
			}
		}
		d.broker.publish = func(_ string, m *message.Message) error {
			if m.UUID == bad {
				return fmt.Errorf("too large: %w", broker.ErrRejected)
			}
			return nil
		}
		r, err := d.Replay(context.Background(), deadletter.ReplayOptions{})
		require.NoError(t, err)
		require.Equal(t, []int{21, 1, 8}, []int{r.Replayed, r.Failed, r.Held})
		require.Equal(t, want, d.redriven(), "in the order of the dead letters")
		require.Equal(t, bad, d.left()[0])
		require.Len(t, d.left(), 9)
	})
}

func TestLimitAndRate(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		for range 12 {
			d.bury(failure{})
		}
		r, err := d.Replay(context.Background(), deadletter.ReplayOptions{Limit: 4})
		require.NoError(t, err)
		require.Equal(t, []int{12, 4}, []int{r.Matched, r.Replayed})
		require.Len(t, d.left(), 8)
		began := time.Now()
		_, err = d.Replay(context.Background(), deadletter.ReplayOptions{Rate: 20, Batch: 1})
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(began), 340*time.Millisecond, "8 at 20 a second, the first at once")
		require.Empty(t, d.left())
	})
}

// A broker that is away ends the replay with what was not confirmed still there.
func TestABrokerThatIsAwayLosesNothing(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		n := 0
		for range 10 {
			d.bury(failure{})
		}
		d.broker.publish = func(string, *message.Message) error {
			if n++; n > 4 {
				return errAway
			}
			return nil
		}
		r, err := d.Replay(context.Background(), deadletter.ReplayOptions{Batch: 2})
		require.ErrorIs(t, err, errAway)
		require.Equal(t, []int{4, 2}, []int{r.Replayed, r.Failed})
		require.Len(t, d.left(), 6)
		require.Len(t, d.redriven(), 4)
	})
}

// The window between publish and deletion: with the journal the next replay only
// deletes, without it the copy has the same id.
func TestPublishedAndNotDeletedIsRecognised(t *testing.T) {
	for _, journal := range []bool{true, false} {
		t.Run(fmt.Sprintf("journal=%t", journal), func(t *testing.T) {
			onBrokers(t, func(t *testing.T, d *desk) {
				o := deadletter.ReplayOptions{Batch: 5}
				if journal {
					o.Journal = filepath.Join(t.TempDir(), "dlq", "journal.jsonl")
				}
				var all []string
				for i := range 10 {
					all = append(all, d.bury(failure{key: fmt.Sprint(i)}).UUID)
				}
				d.broker.remove = func() error { return errAway }
				r, err := d.Replay(context.Background(), o)
				require.ErrorIs(t, err, errAway)
				require.Equal(t, []int{0, 5}, []int{r.Replayed, r.Undeleted})
				require.Equal(t, all, d.left())
				require.Equal(t, all[:5], d.redriven())

				d.broker.set(func(f *faulty) { f.remove = nil })
				r, err = d.Replay(context.Background(), o)
				require.NoError(t, err)
				require.True(t, r.Complete())
				require.Empty(t, d.left())
				if !journal {
					require.Equal(t, append(all[:5:5], all...), d.redriven(), "the inbox takes the copies")
					return
				}
				require.Equal(t, []int{5, 5}, []int{r.Replayed, r.Resumed})
				require.Equal(t, all, d.redriven(), "each was published once")
				require.NoFileExists(t, o.Journal, "nothing is half done")
			})
		})
	}
}

// A journal knows letters by their bytes: another letter at the same place, as
// after a broker was set up anew, is never taken for a published one.
func TestAStaleJournalDeletesNothing(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	old := newDesk(t, kinds["memory"](t))
	old.bury(failure{})
	old.broker.remove = func() error { return errAway }
	_, err := old.Replay(context.Background(), deadletter.ReplayOptions{Journal: path})
	require.ErrorIs(t, err, errAway)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"published":"torn`) // the crash cut the last line off
	require.NoError(t, err)
	require.NoError(t, f.Close())

	fresh := newDesk(t, kinds["memory"](t))
	m := fresh.bury(failure{})
	require.Equal(t, old.letters()[0].Position, fresh.letters()[0].Position)
	r, err := fresh.Replay(context.Background(), deadletter.ReplayOptions{Journal: path})
	require.NoError(t, err)
	require.Equal(t, []int{1, 0}, []int{r.Replayed, r.Resumed})
	require.Equal(t, []string{m.UUID}, fresh.redriven())

	require.NoError(t, os.WriteFile(path, []byte(`{"format":"headrace.replay/1","topic":"other.dlq"}`+"\n"), 0o600))
	fresh.bury(failure{})
	_, err = fresh.Replay(context.Background(), deadletter.ReplayOptions{Journal: path})
	require.ErrorContains(t, err, `belongs to a replay of "other.dlq"`)
	require.Len(t, fresh.left(), 1)
}

// Ctrl-C: the messages in hand are finished, the rest stays, nothing is in two
// places.
func TestAnInterruptFinishesWhatIsInHand(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		for range 10 {
			d.bury(failure{})
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		d.broker.published = cancel // between publish and deletion
		o := deadletter.ReplayOptions{Batch: 3, Journal: filepath.Join(t.TempDir(), "j")}
		r, err := d.Replay(ctx, o)
		require.NoError(t, err)
		require.True(t, r.Interrupted)
		require.False(t, r.Complete())
		require.Equal(t, 3, r.Replayed)
		require.Len(t, d.redriven(), 3)
		require.Len(t, d.left(), 7)
		require.NoFileExists(t, o.Journal)

		d.broker.set(func(f *faulty) { f.published = nil })
		slow, stop := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer stop()
		r, err = d.Replay(slow, deadletter.ReplayOptions{Rate: 0.1})
		require.NoError(t, err)
		require.True(t, r.Interrupted, "waiting for the rate ends too")
		require.Len(t, d.left(), 7-r.Replayed)
	})
}
