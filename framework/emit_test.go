package framework_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

func TestEmitRefusals(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.app.Emits(made.Descriptor())
	draft := made.New("k", thing{Name: "a"})

	require.ErrorContains(t, framework.Emit(t.Context(), nil, draft), "knows no App")
	require.ErrorContains(t, framework.Publish(t.Context(), draft), "knows no App")
	require.ErrorContains(t, framework.Emit(f.app.Context(t.Context()), nil, draft), "without a transaction")

	in := func(fn func(context.Context, *sql.Tx) error) error { return f.app.Tx(t.Context(), fn) }
	err := in(func(ctx context.Context, tx *sql.Tx) error {
		return framework.Emit(ctx, tx, shipped.New("k", thing{Name: "a"}))
	})
	require.ErrorContains(t, err, `"things" has not registered`)
	require.ErrorContains(t, err, "shipped")
	disposition, _ := middleware.DispositionOf(err)
	require.Equal(t, middleware.DispositionPermanent, disposition, "no retry registers a type")

	require.ErrorContains(t, in(func(ctx context.Context, tx *sql.Tx) error {
		return framework.Emit(ctx, tx, made.New("k", thing{}))
	}), "name")
	require.ErrorContains(t, in(func(ctx context.Context, tx *sql.Tx) error { return framework.Publish(ctx, draft) }), "use Emit")
	require.ErrorContains(t, in(func(ctx context.Context, tx *sql.Tx) error {
		return f.app.Tx(ctx, func(context.Context, *sql.Tx) error { return nil })
	}), "inside a transaction")
	require.NoError(t, in(func(ctx context.Context, tx *sql.Tx) error { return framework.Emit(ctx, tx) }), "nothing to emit")
	require.Zero(t, f.count("SELECT count(*) FROM watermill_headrace_outbox"))

	bare := setup(t, withoutDB)
	require.ErrorContains(t, bare.app.Tx(t.Context(), func(context.Context, *sql.Tx) error { return nil }), "no database")
	require.ErrorContains(t, framework.Emit(bare.app.Context(t.Context()), new(sql.Tx), draft), "no outbox")
}

func TestTxEmitsOnCommitOnly(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.app.Emits(made.Descriptor())
	f.start()
	boom := errors.New("boom")
	err := f.app.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := framework.Emit(ctx, tx, made.New("k", thing{Name: "rolled back"})); err != nil {
			return err
		}
		return boom
	})
	require.ErrorIs(t, err, boom)
	require.NoError(t, f.app.Tx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		return framework.Emit(ctx, tx, made.New("k", thing{Name: "one"}), made.New("k", thing{Name: "two"}))
	}))
	require.NoError(t, framework.Publish(f.app.Context(t.Context()), made.New("k", thing{Name: "three"})))
	f.Idle()
	var names []string
	for _, e := range frameworktest.Published(f.System, made) {
		names = append(names, e.Data.Name)
		require.NotEmpty(t, e.Metadata.CorrelationID, "an event without a request begins its own correlation")
		require.Empty(t, e.Metadata.CausationID)
	}
	require.Equal(t, []string{"one", "two", "three"}, names)
}

func TestADraftsOwnIDWins(t *testing.T) {
	t.Parallel()
	f := setup(t, withoutDB)
	f.app.Emits(made.Descriptor())
	f.start()
	require.NoError(t, framework.Publish(f.app.Context(t.Context()), made.New("k", thing{Name: "a"}, events.WithID("order-7-made"))))
	require.Equal(t, "order-7-made", frameworktest.Await(f.System, made, nil).ID)
}
