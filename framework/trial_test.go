package framework_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/pkg/events"
)

// A trial tells what the handler would do, and leaves nothing behind: no write,
// no event, no idempotency key, no call to the outside.
func TestTrial(t *testing.T) {
	t.Parallel()
	f := setup(t)
	var called atomic.Int32
	framework.HandleTx(f.app, made, "count", func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
		if err := write(ctx, tx, e); err != nil {
			return err
		}
		if err := framework.Emit(ctx, tx, counted.New("k", e.Data)); err != nil {
			return err
		}
		switch e.Data.Name {
		case "bad":
			return errBroken
		case "panic":
			panic("boom")
		case "skip":
			return framework.Skip(errors.New("not ours"))
		}
		return nil
	})
	framework.HandleCall(f.app, made, "charge", call{
		prepare: func(ctx context.Context, tx *sql.Tx, e events.Event[thing]) error {
			if err := write(ctx, tx, e); err != nil {
				return err
			}
			switch e.Data.Name {
			case "bad":
				return errBroken
			case "done":
				return fmt.Errorf("paid: %w", framework.ErrDone)
			}
			return nil
		},
		call: func(context.Context, events.Event[thing]) (string, error) { called.Add(1); return "", nil },
	})
	framework.Handle(f.app, made, "plain", func(context.Context, events.Event[thing]) error { called.Add(1); return nil })
	f.app.Emits(counted.Descriptor())

	trial := func(handler string, msg *message.Message) framework.TrialResult {
		t.Helper()
		r, err := f.app.Trial(context.Background(), "things."+handler, msg)
		require.NoError(t, err)
		return r
	}
	of := func(name string) *message.Message {
		env := frameworktest.Seal(t, events.Stamp{ID: events.NewID(), Source: "test"}, made.New("k", thing{Name: name}))
		payload, err := env.Encode()
		require.NoError(t, err)
		return message.NewMessage(env.ID, payload)
	}
	for _, c := range []struct {
		handler, name string
		want          framework.Verdict
		detail        string
	}{
		{"count", "good", framework.VerdictPass, ""},
		{"count", "bad", framework.VerdictFail, "broken"},
		{"count", "panic", framework.VerdictFail, "boom"},
		{"count", "skip", framework.VerdictSkip, "not ours"},
		{"charge", "good", framework.VerdictUnknown, "call the outside"},
		{"charge", "bad", framework.VerdictFail, "broken"},
		{"charge", "done", framework.VerdictPass, ""},
		{"plain", "good", framework.VerdictUnknown, "outside of a transaction"},
	} {
		r := trial(c.handler, of(c.name))
		require.Equal(t, c.want, r.Verdict, "%s %s: %s", c.handler, c.name, r.Detail)
		require.Contains(t, r.Detail, c.detail)
	}
	require.Equal(t, framework.VerdictFail, trial("count", message.NewMessage("x", []byte("[]"))).Verdict)
	_, err := f.app.Trial(context.Background(), "things.nobody", of("good"))
	require.ErrorIs(t, err, framework.ErrNoHandler)

	require.Zero(t, called.Load(), "nothing outside was called")
	require.Zero(t, f.effects())
	require.Zero(t, f.count("SELECT count(*) FROM headrace_inbox"))

	// What was tried is handled when it comes, and known from then on.
	f.start()
	good := of("good")
	require.Equal(t, framework.VerdictPass, trial("count", good).Verdict)
	f.SendRaw(made.Topic(), good.Copy())
	f.Idle()
	require.Equal(t, framework.VerdictDone, trial("count", good).Verdict)
	require.Equal(t, framework.VerdictDone, trial("charge", good).Verdict)
	require.Len(t, frameworktest.Published(f.System, counted), 1)
}
