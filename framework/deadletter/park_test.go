package deadletter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// park makes the dead letter of a message at a place of its key's line and
// returns its id.
func (d *desk) park(key string, seq, redrives, parked int) string {
	d.t.Helper()
	md := map[string]string{}
	if parked > 0 {
		md[middleware.DeadLetterRedrivesParked] = strconv.Itoa(parked)
	}
	before := d.bury(failure{key: key, redrives: redrives, metadata: md})
	// Poison puts the place there by its own store: here the letter is made anew.
	for _, l := range d.letters() {
		if l.ID != before.UUID {
			continue
		}
		m := l.Message.Copy()
		m.Metadata[middleware.DeadLetterParksKey] = "1"
		m.Metadata[middleware.DeadLetterParkSeq] = strconv.Itoa(seq)
		m.Metadata[middleware.DeadLetterParkedBehind] = "the-first"
		require.NoError(d.t, d.broker.Broker.Publisher().PublishBatch(context.Background(), d.Topic(), []*message.Message{m}))
		_, err := d.broker.Broker.Admin().Delete(context.Background(), d.Topic(), l.Position)
		require.NoError(d.t, err)
	}
	return before.UUID
}

// Wherever the letters of a key lie, they are replayed in the order of their
// places, and their places go with them.
func TestAReplayGoesByThePlacesOfAKey(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		a2, b9, a3, a1 := d.park("a", 2, 0, 0), d.park("b", 9, 0, 0), d.park("a", 3, 1, 1), d.park("a", 1, 1, 0)
		b7, plain := d.park("b", 7, 0, 0), d.bury(failure{key: "a"}).UUID
		l, err := d.Find(context.Background(), a3)
		require.NoError(t, err)
		require.Equal(t, []any{true, int64(3), "the-first", 1, 1}, []any{l[0].ParksKey, l[0].ParkSeq, l[0].ParkedBehind, l[0].Redrives, l[0].RedrivesParked})

		dry, err := d.Replay(context.Background(), deadletter.ReplayOptions{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, 6, dry.Replayed)
		r, err := d.Replay(context.Background(), deadletter.ReplayOptions{})
		require.NoError(t, err)
		require.True(t, r.Complete(), "%+v", r)
		require.Equal(t, []string{a1, a2, a3, b7, b9, plain}, d.redriven())
		third := d.stored(d.RedriveTopic())[2]
		require.Equal(t, []string{"3", "1", "2", ""}, []string{
			third.Metadata[middleware.DeadLetterParkSeq], third.Metadata[middleware.DeadLetterRedrivesParked],
			third.Metadata[middleware.DeadLetterRedriveCount], third.Metadata[middleware.DeadLetterParkedBehind],
		})
	})
}

// More letters of a key in the wrong order than a replay keeps: it goes through
// the queue again.
func TestAReplayKeepsFewLetters(t *testing.T) {
	t.Parallel()
	d := newDesk(t, kinds["memory"](t))
	const n = 2500
	var msgs []*message.Message
	for i := range n {
		m := message.NewMessage(fmt.Sprint(n-i), []byte("{}"))
		m.Metadata[events.KeyOrdering] = "a"
		m.Metadata[middleware.DeadLetterParksKey] = "1"
		m.Metadata[middleware.DeadLetterParkSeq] = fmt.Sprint(n - i)
		msgs = append(msgs, m)
	}
	require.NoError(t, d.broker.Broker.Publisher().PublishBatch(context.Background(), d.Topic(), msgs))
	r, err := d.Replay(context.Background(), deadletter.ReplayOptions{})
	require.NoError(t, err)
	require.True(t, r.Complete(), "%+v", r)
	for i, id := range d.redriven() {
		require.Equal(t, fmt.Sprint(i+1), id)
	}
	require.Len(t, d.redriven(), n)
}

// One that stays holds those behind it, wherever they lie; a replay that ended
// parked does not count.
func TestWhoStaysHoldsThoseBehind(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		ctx := context.Background()
		a3, a2, a1 := d.park("a", 3, 4, 4), d.park("a", 2, 0, 0), d.park("a", 1, 4, 1)
		r, err := d.Replay(ctx, deadletter.ReplayOptions{})
		require.NoError(t, err)
		require.Equal(t, []int{0, 1, 2}, []int{r.Replayed, r.Refused, r.Held})
		require.Equal(t, []string{a1, a2, a3}, []string{r.Notes[0].ID, r.Notes[1].ID, r.Notes[2].ID})

		for _, behind := range []string{a2, a3} {
			r, err = d.Replay(ctx, deadletter.ReplayOptions{Filter: deadletter.Filter{IDs: []string{behind}}})
			require.NoError(t, err)
			require.Equal(t, []int{1, 0, 1}, []int{r.Matched, r.Replayed, r.Held})
			require.Contains(t, r.Notes[0].Why, "was not chosen")
		}
		r, err = d.Replay(ctx, deadletter.ReplayOptions{MaxRedrives: 4, Limit: 2})
		require.NoError(t, err)
		require.Equal(t, []string{a1, a2}, d.redriven())
		require.Equal(t, []int{2, 0}, []int{r.Replayed, r.Unseen})
		r, err = d.Replay(ctx, deadletter.ReplayOptions{Filter: deadletter.Filter{IDs: []string{a3}}, AnyOrder: true})
		require.NoError(t, err)
		require.True(t, r.Complete())
	})
}

// A publish that fails holds the later ones of its key, also those that lie
// before it.
func TestAFailedPublishHoldsThoseBehind(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		a2, a1 := d.park("a", 2, 0, 0), d.park("a", 1, 0, 0)
		b := d.park("b", 5, 0, 0)
		d.broker.publish = func(_ string, m *message.Message) error {
			if m.UUID == a1 {
				return fmt.Errorf("too large: %w", broker.ErrRejected)
			}
			return nil
		}
		r, err := d.Replay(context.Background(), deadletter.ReplayOptions{})
		require.NoError(t, err)
		require.Equal(t, []int{1, 1, 1}, []int{r.Replayed, r.Failed, r.Held})
		require.Equal(t, []string{b}, d.redriven())
		require.ElementsMatch(t, []string{a1, a2}, d.left())
	})
}

// A discard tells the group before it deletes, and sends no message that could
// run; cut off in between it is done again.
func TestADiscardTellsTheGroup(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		ctx := context.Background()
		a1, plain := d.park("a", 1, 0, 0), d.bury(failure{key: "b"}).UUID
		d.broker.remove = func() error { return errAway }
		var archive bytes.Buffer
		_, err := d.Discard(ctx, deadletter.DiscardOptions{Archive: &archive})
		require.ErrorIs(t, err, errAway)
		require.ElementsMatch(t, []string{a1, plain}, d.left())
		d.broker.set(func(f *faulty) { f.remove = nil })
		archive.Reset()
		r, err := d.Discard(ctx, deadletter.DiscardOptions{Archive: &archive})
		require.NoError(t, err)
		require.Equal(t, []int{2, 1}, []int{r.Discarded, r.Released})
		require.Equal(t, 2, strings.Count(archive.String(), "\n"))
		require.Empty(t, d.left())
		told := d.stored(d.RedriveTopic())
		require.Len(t, told, 2, "once each time")
		for _, m := range told {
			require.Equal(t, "{}", string(m.Payload))
			require.NotEqual(t, a1, m.UUID)
			require.Equal(t, map[string]string{
				events.KeyOrdering: "a", middleware.DeadLetterDiscarded: a1, middleware.DeadLetterParkSeq: "1",
			}, map[string]string(m.Metadata))
		}
	})
}

// What the group can't be told of is not deleted.
func TestADiscardThatCannotTellDeletesNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t, kinds["memory"](t))
	a1 := d.park("a", 1, 0, 0)
	d.broker.publish = func(string, *message.Message) error { return errAway }
	_, err := d.Discard(context.Background(), deadletter.DiscardOptions{Archive: &bytes.Buffer{}})
	require.ErrorContains(t, err, "none of them was deleted")
	require.Equal(t, []string{a1}, d.left())
}

// While another letter has the same place, an edited one or a copy, a discard
// leaves that its key.
func TestADiscardOfACopyLeavesTheKey(t *testing.T) {
	t.Parallel()
	d := newDesk(t, kinds["memory"](t))
	d.park("a", 1, 0, 0)
	l := d.letters()[0]
	d.broker.remove = func() error { return errAway } // the old one stays beside the edited one
	_, err := d.Edit(context.Background(), l, deadletter.EditOptions{Metadata: map[string]string{"ordering_key": "a", "tenant": "t2"}})
	require.ErrorIs(t, err, errAway)
	d.broker.set(func(f *faulty) { f.remove = nil })
	require.Len(t, d.left(), 2)
	for i, released := range []int{0, 1} {
		at := deadletter.Filter{IDs: []string{d.letters()[0].Position}}
		r, err := d.Discard(context.Background(), deadletter.DiscardOptions{Archive: &bytes.Buffer{}, Filter: at})
		require.NoError(t, err)
		require.Equal(t, []int{1, released}, []int{r.Discarded, r.Released}, "discard %d", i)
	}
}

// An edit keeps the letter's place, and can't take it to another key.
func TestAnEditKeepsThePlace(t *testing.T) {
	t.Parallel()
	d := newDesk(t, kinds["memory"](t))
	ctx := context.Background()
	first, second := d.park("a", 1, 0, 0), d.park("a", 2, 0, 0)
	l := d.letters()[0]
	moved := strings.ReplaceAll(string(l.Message.Payload), `"ordering_key":"a"`, `"ordering_key":"z"`)
	require.NotEqual(t, moved, string(l.Message.Payload))
	_, err := d.Edit(ctx, l, deadletter.EditOptions{Payload: []byte(moved), Force: true})
	require.ErrorIs(t, err, deadletter.ErrEdit)
	require.ErrorContains(t, err, `from "a" to "z"`)

	edited, err := d.Edit(ctx, l, deadletter.EditOptions{Payload: regexp.MustCompile(`"n":\s*1`).ReplaceAll(l.Message.Payload, []byte(`"n":2`))})
	require.NoError(t, err)
	require.Equal(t, []any{true, int64(1)}, []any{edited.ParksKey, edited.ParkSeq})
	require.Equal(t, []string{second, first}, d.left())
	_, err = d.Replay(ctx, deadletter.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{first, second}, d.redriven(), "edited, it is still the first")
	require.True(t, json.Valid(d.stored(d.RedriveTopic())[0].Payload))
}
