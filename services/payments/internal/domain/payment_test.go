package domain_test

import (
	"strings"
	"testing"
	"time"

	"github.com/headrace-go/headrace/services/payments/internal/domain"
	"github.com/stretchr/testify/require"
)

var (
	t0    = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)
	t1    = t0.Add(time.Minute)
	t2    = t0.Add(2 * time.Minute)
	price = domain.Money{Amount: 4200, Currency: "EUR"}
)

// in returns a payment that went through ordinary steps to the given state.
func in(t *testing.T, state domain.State) domain.Payment {
	t.Helper()
	if state == domain.Blocked {
		p, err := domain.NewCancelled("pay-1", "order-1", price, t0)
		require.NoError(t, err)
		return p
	}
	p, err := domain.New("pay-1", "order-1", price, t0)
	require.NoError(t, err)
	step := func(changed bool, err error) {
		t.Helper()
		require.NoError(t, err)
		require.True(t, changed)
	}
	switch state {
	case domain.Pending:
	case domain.Failed:
		step(p.Fail("declined", t1))
	case domain.Captured:
		step(p.Capture("ch-1", t1))
	case domain.Refunding:
		step(p.Capture("ch-1", t1))
		step(p.RequestRefund(t1))
	case domain.Refunded:
		step(p.Capture("ch-1", t1))
		step(p.RequestRefund(t1))
		step(p.Refund("ref-1", "re-1", t1))
	}
	require.Equal(t, state, p.State)
	return p
}

var states = []domain.State{
	domain.Pending, domain.Blocked, domain.Captured, domain.Failed, domain.Refunding, domain.Refunded,
}

// TestTransitions is the whole table: each action in each state either moves
// the payment, changes nothing, or is refused and changes nothing.
func TestTransitions(t *testing.T) {
	t.Parallel()
	const refused = domain.State("refused")
	actions := map[string]struct {
		do   func(*domain.Payment) (bool, error)
		want map[domain.State]domain.State
	}{
		"capture": {
			do: func(p *domain.Payment) (bool, error) { return p.Capture("ch-1", t2) },
			want: map[domain.State]domain.State{
				domain.Pending: domain.Captured, domain.Blocked: refused, domain.Captured: domain.Captured,
				domain.Failed: refused, domain.Refunding: domain.Refunding, domain.Refunded: domain.Refunded,
			},
		},
		"capture under another reference": {
			do: func(p *domain.Payment) (bool, error) { return p.Capture("ch-2", t2) },
			want: map[domain.State]domain.State{
				domain.Pending: domain.Captured, domain.Blocked: refused, domain.Captured: refused,
				domain.Failed: refused, domain.Refunding: refused, domain.Refunded: refused,
			},
		},
		"capture without a reference": {
			do: func(p *domain.Payment) (bool, error) { return p.Capture("", t2) },
			want: map[domain.State]domain.State{
				domain.Pending: refused, domain.Blocked: refused, domain.Captured: refused,
				domain.Failed: refused, domain.Refunding: refused, domain.Refunded: refused,
			},
		},
		"fail": {
			do: func(p *domain.Payment) (bool, error) { return p.Fail("expired", t2) },
			want: map[domain.State]domain.State{
				domain.Pending: domain.Failed, domain.Blocked: domain.Failed, domain.Captured: refused,
				domain.Failed: domain.Failed, domain.Refunding: refused, domain.Refunded: refused,
			},
		},
		"request a refund": {
			do: func(p *domain.Payment) (bool, error) { return p.RequestRefund(t2) },
			want: map[domain.State]domain.State{
				domain.Pending: refused, domain.Blocked: refused, domain.Captured: domain.Refunding,
				domain.Failed: refused, domain.Refunding: domain.Refunding, domain.Refunded: domain.Refunded,
			},
		},
		"refund": {
			do: func(p *domain.Payment) (bool, error) { return p.Refund("ref-1", "re-1", t2) },
			want: map[domain.State]domain.State{
				domain.Pending: refused, domain.Blocked: refused, domain.Captured: refused,
				domain.Failed: refused, domain.Refunding: domain.Refunded, domain.Refunded: domain.Refunded,
			},
		},
		"refund under another reference": {
			do: func(p *domain.Payment) (bool, error) { return p.Refund("ref-2", "re-2", t2) },
			want: map[domain.State]domain.State{
				domain.Pending: refused, domain.Blocked: refused, domain.Captured: refused,
				domain.Failed: refused, domain.Refunding: domain.Refunded, domain.Refunded: refused,
			},
		},
	}
	for name, action := range actions {
		for _, from := range states {
			t.Run(name+" when "+string(from), func(t *testing.T) {
				t.Parallel()
				p := in(t, from)
				before := p
				changed, err := action.do(&p)
				want, listed := action.want[from]
				require.True(t, listed)
				if want == refused {
					require.ErrorIs(t, err, domain.ErrInvalidTransition)
					require.ErrorContains(t, err, "payment pay-1 is "+string(from))
					require.False(t, changed)
					require.Equal(t, before, p)
					return
				}
				require.NoError(t, err)
				require.Equal(t, want, p.State)
				require.Equal(t, from != want, changed)
				if !changed {
					require.Equal(t, before, p, "an action that changes nothing leaves no trace")
					return
				}
				require.Equal(t, t2, p.UpdatedAt)
				require.Equal(t, before.Version+1, p.Version)
			})
		}
	}
}

func TestCancelOrderOwesBackWhatWasCaptured(t *testing.T) {
	t.Parallel()
	want := map[domain.State]domain.State{
		domain.Pending: domain.Pending, domain.Captured: domain.Refunding, domain.Failed: domain.Failed,
		domain.Refunding: domain.Refunding, domain.Refunded: domain.Refunded, domain.Blocked: domain.Blocked,
	}
	for from, to := range want {
		t.Run(string(from), func(t *testing.T) {
			t.Parallel()
			p := in(t, from)
			require.Equal(t, from != domain.Blocked, p.CancelOrder(t2), "a blocked payment knows it already")
			require.Equal(t, to, p.State)
			require.True(t, p.OrderCancelled())
			require.False(t, p.CancelOrder(t2.Add(time.Hour)), "told twice")
		})
	}
}

func TestCaptureAfterCancellationIsOwedBack(t *testing.T) {
	t.Parallel()
	p := in(t, domain.Pending)
	require.True(t, p.CancelOrder(t1))
	changed, err := p.Capture("ch-1", t2)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, domain.Refunding, p.State)
	require.Equal(t, t2, p.CapturedAt)
	require.False(t, p.Settled())
}

func TestAgreeRefusesAnotherAmount(t *testing.T) {
	t.Parallel()
	p := in(t, domain.Captured)
	changed, err := p.Agree(price, t2)
	require.NoError(t, err)
	require.False(t, changed)
	_, err = p.Agree(domain.Money{Amount: price.Amount + 1, Currency: "EUR"}, t2)
	require.ErrorIs(t, err, domain.ErrInvalidTransition)
	require.ErrorContains(t, err, "4200 EUR, not 4201 EUR")

	unknown, err := domain.NewCancelled("pay-1", "order-1", domain.Money{}, t0)
	require.NoError(t, err)
	changed, err = unknown.Agree(price, t2)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, price, unknown.Amount)
}

func TestNewRefusesWhatCantBeCharged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order  string
		amount domain.Money
		says   string
	}{
		"no order":         {"", price, "0 bytes"},
		"long order":       {strings.Repeat("x", domain.MaxOrderIDLength+1), price, "129 bytes"},
		"line break":       {"a\nb", price, "visible ASCII"},
		"not ASCII":        {"é", price, "visible ASCII"},
		"nothing":          {"order-1", domain.Money{Currency: "EUR"}, "above 0"},
		"less":             {"order-1", domain.Money{Amount: -1, Currency: "EUR"}, "above 0"},
		"no currency":      {"order-1", domain.Money{Amount: 1}, "three-letter"},
		"strange currency": {"order-1", domain.Money{Amount: 1, Currency: "eur"}, "three-letter"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := domain.New("pay-1", c.order, c.amount, t0)
			require.ErrorIs(t, err, domain.ErrInvalidPayment)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := domain.NewCancelled("pay-1", "", price, t0)
	require.ErrorIs(t, err, domain.ErrInvalidPayment)
}

func TestKeysDependOnTheOrderAlone(t *testing.T) {
	t.Parallel()
	a, err := domain.New("pay-1", "order-1", price, t0)
	require.NoError(t, err)
	b, err := domain.New("pay-2", "order-1", domain.Money{Amount: 1, Currency: "USD"}, t1)
	require.NoError(t, err)
	require.Equal(t, a.ChargeKey(), b.ChargeKey())
	require.Equal(t, a.RefundKey(), b.RefundKey())
	require.NotEqual(t, a.ChargeKey(), a.RefundKey())
}

func TestStates(t *testing.T) {
	t.Parallel()
	for _, s := range states {
		require.True(t, s.Valid(), s)
	}
	require.False(t, domain.State("paid").Valid())
	for s, settled := range map[domain.State]bool{
		domain.Pending: false, domain.Blocked: false, domain.Refunding: false,
		domain.Captured: true, domain.Failed: true, domain.Refunded: true,
	} {
		p := in(t, s)
		require.Equal(t, settled, p.Settled(), s)
	}
}
