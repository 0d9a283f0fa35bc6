package deadletter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

func digests(letters []deadletter.Letter) []string {
	out := make([]string, len(letters))
	for i, l := range letters {
		out[i] = l.Digest()
	}
	return out
}

func TestExportDiscardAndImportAreARoundTrip(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		ctx := context.Background()
		d.bury(failure{key: "a", metadata: map[string]string{"html": "<&>", "quote": "\"\\\u2028"}})
		d.bury(failure{key: "b", payload: []byte{0xff, 0xfe, 0, '\n'}})
		latin := "caf\xe9"
		if d.broker.Name() == sqldb.Name {
			latin = "café" // it takes no other metadata than UTF-8
		}
		d.bury(failure{key: "c", err: errors.New("other"), metadata: map[string]string{"latin": latin}})
		d.bury(failure{key: "d", payload: []byte{}})
		before := digests(d.letters())

		var exported, archive bytes.Buffer
		n, err := d.Export(ctx, &exported, deadletter.Filter{}, 0, nil)
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.Equal(t, before, digests(d.letters()), "an export changes nothing")

		r, err := d.Discard(ctx, deadletter.DiscardOptions{Archive: &archive, Filter: deadletter.Filter{Keys: []string{"a", "b", "c", "d"}}})
		require.NoError(t, err)
		require.Equal(t, 4, r.Discarded)
		require.Empty(t, d.left())
		require.Equal(t, exported.String(), archive.String())
		require.Equal(t, 4, strings.Count(archive.String(), "\n"))

		for _, imported := range []int{4, 0} { // the second time all stand there already
			i, err := d.Import(ctx, bytes.NewReader(archive.Bytes()), deadletter.ImportOptions{})
			require.NoError(t, err)
			require.Equal(t, deadletter.ImportReport{Read: 4, Matched: 4, Imported: imported, Present: 4 - imported}, i)
			require.Equal(t, before, digests(d.letters()), "byte for byte, in order")
		}
	})
}

// The format is stable: this line was written by version 1 and must stay
// readable.
func TestTheFormatIsStable(t *testing.T) {
	t.Parallel()
	const line = `{"format":"headrace.dead_letter/1","group":"things.count","position":"1-0","dead_lettered_at":"2026-05-01T08:00:00Z","id":"m1","metadata":{"dead_letter_reason":"permanent","tenant":"t1"},"payload":"{\"n\":1}"}` + "\n"
	d := newDesk(t, kinds["memory"](t))
	r, err := d.Import(context.Background(), strings.NewReader(line), deadletter.ImportOptions{})
	require.NoError(t, err)
	require.Equal(t, 1, r.Imported)
	l := d.letters()[0]
	require.Equal(t, []any{"m1", middleware.ReasonPermanent, `{"n":1}`, "t1"}, []any{l.ID, l.Reason, string(l.Message.Payload), l.Message.Metadata["tenant"]})

	var again bytes.Buffer
	_, err = d.Export(context.Background(), &again, deadletter.Filter{}, 0, nil)
	require.NoError(t, err)
	var was, is map[string]any
	require.NoError(t, json.Unmarshal([]byte(line), &was))
	require.NoError(t, json.Unmarshal(again.Bytes(), &is))
	for _, its := range []map[string]any{was, is} {
		delete(its, "position")
		delete(its, "dead_lettered_at")
	}
	require.Equal(t, was, is)
}

func TestImportRefusesWhatIsNotItsOwn(t *testing.T) {
	t.Parallel()
	d := newDesk(t, kinds["memory"](t))
	good := `{"format":"headrace.dead_letter/1","group":"things.count","id":"m1","payload":"x"}` + "\n"
	for want, second := range map[string]string{
		`line 2: it is a dead letter of "orders.x"`:      `{"format":"headrace.dead_letter/1","group":"orders.x","id":"m2"}`,
		`line 2: its format is "headrace.dead_letter/9"`: `{"format":"headrace.dead_letter/9","group":"things.count","id":"m2"}`,
		"line 2: invalid character":                      `nonsense`,
		"line 2: payload_base64: illegal base64":         `{"format":"headrace.dead_letter/1","group":"things.count","id":"m2","payload_base64":"!"}`,
		"line 2: unexpected end of JSON input":           `{"format":`, // cut off by a crash
	} {
		_, err := d.Import(context.Background(), strings.NewReader(good+second), deadletter.ImportOptions{})
		require.ErrorContains(t, err, want)
		require.Equal(t, []string{"m1"}, d.left(), "what came before it is there, once")
	}
	r, err := d.Import(context.Background(), strings.NewReader(good), deadletter.ImportOptions{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, 1, r.Present)
}

type brokenDisk struct{ bytes.Buffer }

func (*brokenDisk) Sync() error { return errors.New("disk full") }

func TestDiscardDeletesOnlyWhatIsInTheArchive(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		ctx := context.Background()
		for i := range 5 {
			d.bury(failure{key: fmt.Sprint(i)})
		}
		_, err := d.Discard(ctx, deadletter.DiscardOptions{})
		require.ErrorIs(t, err, deadletter.ErrNoArchive)
		r, err := d.Discard(ctx, deadletter.DiscardOptions{Archive: &brokenDisk{}})
		require.ErrorContains(t, err, "disk full")
		require.Zero(t, r.Discarded)
		require.Len(t, d.left(), 5)

		var archive bytes.Buffer
		r, err = d.Discard(ctx, deadletter.DiscardOptions{Archive: &archive, Limit: 2})
		require.NoError(t, err)
		require.Equal(t, 2, r.Discarded)
		require.Len(t, d.left(), 3)
		require.Equal(t, 2, strings.Count(archive.String(), "\n"))
		require.Equal(t, deadletter.ActionDiscard, d.entries[0].Action)
	})
}

func TestEditKeepsTheOriginalAndReplays(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		ctx := context.Background()
		sent := d.bury(failure{key: "k1", metadata: map[string]string{"tenant": "t1"}})
		old := d.letters()[0]
		payload := bytes.ReplaceAll(sent.Payload, []byte(`"n": 1`), []byte(`"n": 2`))
		payload = bytes.ReplaceAll(payload, []byte(`"k1"`), []byte(`"k2"`))
		edited, err := d.Edit(ctx, old, deadletter.EditOptions{Payload: payload})
		require.NoError(t, err)
		all := d.letters()
		require.Len(t, all, 1)
		l := all[0]
		require.Equal(t, edited.Digest(), l.Digest())
		require.Equal(t, []any{sent.UUID, old.Error, old.Fingerprint, "ada", "k2"}, []any{l.ID, l.Error, l.Fingerprint, l.EditedBy, l.Key})
		original, err := deadletter.OriginalOf(l)
		require.NoError(t, err)
		require.Equal(t, []any{sent.UUID, sent.Payload, sent.Metadata}, []any{original.UUID, original.Payload, original.Metadata})
		require.Equal(t, []any{deadletter.ActionEdit, old.Digest(), l.Digest()}, []any{d.entries[0].Action, d.entries[0].Digest, d.entries[0].NewDigest})

		// A second edit keeps the first original.
		_, err = d.Edit(ctx, l, deadletter.EditOptions{Metadata: map[string]string{"tenant": "t2"}})
		require.NoError(t, err)
		l = d.letters()[0]
		original, err = deadletter.OriginalOf(l)
		require.NoError(t, err)
		require.Equal(t, sent.Payload, original.Payload)

		_, err = d.Replay(ctx, deadletter.ReplayOptions{})
		require.NoError(t, err)
		got := d.stored(broker.RedriveTopic(group))[0]
		require.Equal(t, []any{sent.UUID, message.Payload(payload)}, []any{got.UUID, got.Payload})
		require.Equal(t, message.Metadata{
			"tenant": "t2", middleware.DeadLetterRedriveCount: "1",
			middleware.DeadLetterFirstFailedAt: old.FirstFailedAt.Format(time.RFC3339Nano),
		}, got.Metadata)
	})
}

func TestEditRefuses(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		ctx := context.Background()
		sent := d.bury(failure{key: "k1"})
		l := d.letters()[0]
		for want, o := range map[string]deadletter.EditOptions{
			"the new payload is no event": {Payload: []byte("{}")},
			"the event's id changes":      {Payload: bytes.ReplaceAll(sent.Payload, []byte(sent.UUID), []byte(events.NewID()))},
			"belongs to the story":        {Metadata: map[string]string{middleware.DeadLetterReason: "x"}},
		} {
			_, err := d.Edit(ctx, l, o)
			require.ErrorIs(t, err, deadletter.ErrEdit)
			require.ErrorContains(t, err, want)
		}
		_, err := d.Edit(ctx, l, deadletter.EditOptions{Payload: sent.Payload})
		require.ErrorIs(t, err, deadletter.ErrUnchanged)

		d.broker.publish = func(string, *message.Message) error { return broker.ErrRejected }
		_, err = d.Edit(ctx, l, deadletter.EditOptions{Payload: []byte("x"), Force: true})
		require.ErrorIs(t, err, deadletter.ErrEdit)
		require.ErrorContains(t, err, "more than the broker takes")
		require.Equal(t, digests([]deadletter.Letter{l}), digests(d.letters()))
	})
}

// A crash between the edited letter's publish and the old one's deletion: the
// next replay gives the edited one to the group, and it alone.
func TestReplayKnowsWhatWasEdited(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		ctx := context.Background()
		sent := d.bury(failure{key: "k1"})
		payload := bytes.ReplaceAll(sent.Payload, []byte(`"n": 1`), []byte(`"n": 2`))
		d.broker.remove = func() error { return errAway }
		_, err := d.Edit(ctx, d.letters()[0], deadletter.EditOptions{Payload: payload})
		require.ErrorIs(t, err, errAway)
		require.Len(t, d.left(), 2)
		d.broker.set(func(f *faulty) { f.remove = nil })
		r, err := d.Replay(ctx, deadletter.ReplayOptions{})
		require.NoError(t, err)
		require.True(t, r.Complete())
		require.Equal(t, []int{1, 1}, []int{r.Replayed, r.Superseded})
		got := d.stored(broker.RedriveTopic(group))
		require.Len(t, got, 1)
		require.Equal(t, message.Payload(payload), got[0].Payload)
		require.Empty(t, d.left())
	})
}
