package domain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every state meets every action; the table is the state machine.
func TestTransitions(t *testing.T) {
	t.Parallel()
	t1 := t0.Add(time.Minute)
	total := Money{2797, "EUR"}
	confirm := func(o *Order) (bool, error) { return o.Confirm("pay_1", total, t1) }
	cancel := func(o *Order) (bool, error) { return o.Cancel("changed my mind", t1) }
	fail := func(o *Order) (bool, error) { return o.FailPayment("declined", t1) }
	refund := func(o *Order) (bool, error) { return o.Refund("pay_1", "ref_1", total, t1) }

	type step = func(*Order) (bool, error)
	cases := map[string]struct {
		before  []step
		do      step
		state   State
		changed bool
		refused bool
	}{
		"placed, captured":                          {nil, confirm, Confirmed, true, false},
		"placed, cancelled":                         {nil, cancel, Cancelled, true, false},
		"placed, payment failed":                    {nil, fail, Cancelled, true, false},
		"confirmed, captured again":                 {[]step{confirm}, confirm, Confirmed, false, false},
		"confirmed, cancelled":                      {[]step{confirm}, cancel, Cancelled, true, false},
		"confirmed, payment failed":                 {[]step{confirm}, fail, Confirmed, false, true},
		"confirmed, refunded":                       {[]step{confirm}, refund, Confirmed, true, false},
		"confirmed, refunded again":                 {[]step{confirm, refund}, refund, Confirmed, false, false},
		"confirmed and refunded, cancelled":         {[]step{confirm, refund}, cancel, Cancelled, true, false},
		"cancelled, captured late":                  {[]step{cancel}, confirm, Cancelled, true, false},
		"cancelled, captured late twice":            {[]step{cancel, confirm}, confirm, Cancelled, false, false},
		"cancelled, cancelled again":                {[]step{cancel}, cancel, Cancelled, false, false},
		"cancelled, payment failed":                 {[]step{cancel}, fail, Cancelled, false, false},
		"cancelled, refunded":                       {[]step{confirm, cancel}, refund, Cancelled, true, false},
		"cancelled, refund overtakes capture":       {[]step{cancel}, refund, Cancelled, true, false},
		"cancelled, refunded, then captured":        {[]step{cancel, refund}, confirm, Cancelled, false, false},
		"cancelled, refunded again":                 {[]step{confirm, cancel, refund}, refund, Cancelled, false, false},
		"cancelled for its payment, captured late":  {[]step{fail}, confirm, Cancelled, true, false},
		"cancelled for its payment, then cancelled": {[]step{fail}, cancel, Cancelled, false, false},
		"captured, second payment": {[]step{confirm}, func(o *Order) (bool, error) {
			return o.Confirm("pay_2", total, t1)
		}, Confirmed, false, true},
		"captured amount differs": {nil, func(o *Order) (bool, error) {
			return o.Confirm("pay_1", Money{1, "EUR"}, t1)
		}, Placed, false, true},
		"captured without a payment id": {nil, func(o *Order) (bool, error) {
			return o.Confirm("", total, t1)
		}, Placed, false, true},
		"refund of another payment": {[]step{confirm, cancel}, func(o *Order) (bool, error) {
			return o.Refund("pay_2", "ref_1", total, t1)
		}, Cancelled, false, true},
		"second refund": {[]step{confirm, cancel, refund}, func(o *Order) (bool, error) {
			return o.Refund("pay_1", "ref_2", total, t1)
		}, Cancelled, false, true},
		"refund above the total": {[]step{confirm, cancel}, func(o *Order) (bool, error) {
			return o.Refund("pay_1", "ref_1", Money{total.Amount + 1, "EUR"}, t1)
		}, Cancelled, false, true},
		"refund without an id": {[]step{confirm, cancel}, func(o *Order) (bool, error) {
			return o.Refund("pay_1", "", total, t1)
		}, Cancelled, false, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := placedOrder(t)
			for _, s := range c.before {
				_, err := s(&o)
				require.NoError(t, err)
			}
			before := o
			changed, err := c.do(&o)
			require.Equal(t, c.state, o.State)
			require.Equal(t, c.changed, changed)
			if c.refused {
				require.ErrorIs(t, err, ErrInvalidTransition)
			} else {
				require.NoError(t, err)
			}
			if changed {
				require.Equal(t, before.Version+1, o.Version)
				require.Equal(t, t1, o.UpdatedAt)
			} else {
				require.Equal(t, before, o, "an order that did not change must not be touched")
			}
		})
	}
}

// A refund that overtakes the capture leaves the order as it is, to come again.
func TestRefundOfAPlacedOrderComesTooEarly(t *testing.T) {
	t.Parallel()
	o := placedOrder(t)
	changed, err := o.Refund("pay_1", "ref_1", o.Total, t0)
	require.ErrorIs(t, err, ErrCaptureUnknown)
	require.NotErrorIs(t, err, ErrInvalidTransition)
	require.False(t, changed)
	require.Equal(t, placedOrder(t), o)
}

func TestTransitionsKeepTheirFacts(t *testing.T) {
	t.Parallel()
	o := placedOrder(t)
	total := o.Total
	_, err := o.Confirm("pay_1", total, t0.Add(1*time.Second))
	require.NoError(t, err)
	_, err = o.Cancel("first reason", t0.Add(2*time.Second))
	require.NoError(t, err)
	_, err = o.Cancel("second reason", t0.Add(3*time.Second))
	require.NoError(t, err)
	_, err = o.Refund("pay_1", "ref_1", total, t0.Add(4*time.Second))
	require.NoError(t, err)

	require.Equal(t, "first reason", o.CancelReason)
	require.Equal(t, ByCustomer, o.CancelledBy)
	require.Equal(t, t0.Add(1*time.Second), o.ConfirmedAt)
	require.Equal(t, t0.Add(2*time.Second), o.CancelledAt)
	require.Equal(t, t0.Add(4*time.Second), o.RefundedAt)
	require.EqualValues(t, 4, o.Version)
	require.Equal(t, placedOrder(t), o.AsPlaced())
}
