package app_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/payments"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
	"github.com/headrace-go/headrace/services/payments/internal/outbound/sandbox"
)

// schedules returns every way in which two attempts of three steps can
// interleave, each stopped after any number of its steps: "AbaB" is the first
// attempt's prepare, the second's prepare and call, the first's call, and then
// both processes die.
func schedules() []string {
	var all []string
	var grow func(done string, a, b int)
	grow = func(done string, a, b int) {
		if a == 0 && b == 0 {
			all = append(all, done)
			return
		}
		if a > 0 {
			grow(done+"A", a-1, b)
		}
		if b > 0 {
			grow(done+"b", a, b-1)
		}
	}
	for a := range 4 {
		for b := range 4 {
			grow("", a, b)
		}
	}
	return all
}

// TestEveryInterleavingOfChargeAndCancellation runs each of them, with a crash
// after any step of either handler and the redeliveries in both orders. The end
// is always the same: nobody pays for a cancelled order, and each fact is told
// once.
func TestEveryInterleavingOfChargeAndCancellation(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		type scenario struct{ order, name, schedule, token string }
		var scenarios []scenario
		for _, token := range []string{sandbox.TokenOK, sandbox.TokenLost, sandbox.TokenDeclined} {
			for _, schedule := range schedules() {
				for _, chargeFirst := range []bool{true, false} {
					s := scenario{
						order: events.NewID(), schedule: schedule, token: token,
						name: fmt.Sprintf("%s %q, then charge first: %t", token, schedule, chargeFirst),
					}
					scenarios = append(scenarios, s)
					place, cancel := placed(t, s.order, token), cancelled(t, s.order)
					a, b := begin(w, w.charge, place), begin(w, w.cancel, cancel)
					for _, which := range schedule {
						var err error
						if which == 'A' {
							err = a.step(t.Context())
						} else {
							err = b.step(t.Context())
						}
						if err != nil {
							// The gateway may lose an answer; nothing else may fail.
							require.ErrorIs(t, err, sandbox.ErrAnswerLost, s.name)
						}
					}
					// Whatever was not acked comes again, and so does what was.
					redeliver := []func() error{
						func() error { return deliver(t.Context(), w, w.charge, place) },
						func() error { return deliver(t.Context(), w, w.cancel, cancel) },
					}
					if !chargeFirst {
						redeliver[0], redeliver[1] = redeliver[1], redeliver[0]
					}
					for range 2 {
						for _, again := range redeliver {
							require.NoError(t, again(), s.name)
						}
					}
				}
			}
		}
		require.Len(t, scenarios, 3*69*2)

		told := w.told(t)
		for _, s := range scenarios {
			p, books := w.payment(t, s.order), w.books(t, s.order)
			require.LessOrEqual(t, books.Captured, int64(1), s.name)
			require.Equal(t, books.Captured, books.Refunded, "%s: money was kept", s.name)
			if books.Captured == 1 {
				require.Equal(t, domain.Refunded, p.State, s.name)
				require.Equal(t, []string{tellsCaptured, tellsRefunded}, told[s.order], s.name)
			} else {
				require.Equal(t, domain.Failed, p.State, s.name)
				require.Equal(t, []string{tellsFailed}, told[s.order], s.name)
			}
			if cancellationComesFirst(s.schedule) {
				require.Zero(t, books.ChargeRequests, "%s: charged after the cancellation was known", s.name)
			}
		}
		s := w.books(t, "")
		require.Zero(t, s.OrdersChargedTwice)
		require.Positive(t, s.Captured)
		require.Positive(t, s.Voided)
	})
}

// cancellationComesFirst tells whether the cancellation is on record before the
// charge's second step, the call, begins.
func cancellationComesFirst(schedule string) bool {
	calls := 0
	for _, which := range schedule {
		if which == 'b' {
			return calls < 2
		}
		calls++
	}
	return false
}

// TestEveryInterleavingOfTwoPlacings: two different events place one order, and
// it is charged once.
func TestEveryInterleavingOfTwoPlacings(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		names := map[string]string{}
		for _, schedule := range schedules() {
			order := events.NewID()
			names[order] = schedule
			first, second := placed(t, order, sandbox.TokenOK), placed(t, order, sandbox.TokenOK)
			require.NotEqual(t, first.ID, second.ID)
			a, b := begin(w, w.charge, first), begin(w, w.charge, second)
			for _, which := range schedule {
				if which == 'A' {
					require.NoError(t, a.step(t.Context()), schedule)
				} else {
					require.NoError(t, b.step(t.Context()), schedule)
				}
			}
			require.NoError(t, deliver(t.Context(), w, w.charge, second))
			require.NoError(t, deliver(t.Context(), w, w.charge, first))
		}
		told := w.told(t)
		for order, schedule := range names {
			require.Equal(t, domain.Captured, w.payment(t, order).State, schedule)
			require.Equal(t, []string{tellsCaptured}, told[order], schedule)
			require.EqualValues(t, 1, w.books(t, order).Captured, schedule)
		}
		require.Zero(t, w.books(t, "").OrdersChargedTwice)
	})
}

// TestChargesAndCancellationsAtTheSameMoment lets the database sort out what
// the schedules above do step by step: here the steps themselves overlap.
func TestChargesAndCancellationsAtTheSameMoment(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, payments.Files, func(t *testing.T, db frameworktest.DB) {
		w := newWorld(t, db)
		const n = 25
		ids := make([]string, n)
		var wg sync.WaitGroup
		errs := make(chan error, 4*n)
		ctx := context.WithoutCancel(t.Context())
		for i := range n {
			ids[i] = events.NewID()
			first, second := placed(t, ids[i], sandbox.TokenFlaky), placed(t, ids[i], sandbox.TokenFlaky)
			cancel := cancelled(t, ids[i])
			for _, run := range []func() error{
				func() error { return deliver(ctx, w, w.charge, first) },
				func() error { return deliver(ctx, w, w.charge, second) },
				func() error { return deliver(ctx, w, w.cancel, cancel) },
				func() error { return deliver(ctx, w, w.cancel, cancel) },
			} {
				wg.Go(func() { errs <- run() })
			}
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		told := w.told(t)
		for _, id := range ids {
			p, books := w.payment(t, id), w.books(t, id)
			require.Equal(t, books.Captured, books.Refunded)
			if books.Captured > 0 {
				require.Equal(t, domain.Refunded, p.State)
				require.Equal(t, []string{tellsCaptured, tellsRefunded}, told[id])
			} else {
				require.Equal(t, domain.Failed, p.State)
				require.Equal(t, []string{tellsFailed}, told[id])
			}
		}
		require.Zero(t, w.books(t, "").OrdersChargedTwice)
	})
}
