package journey

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/notifications"
	"github.com/headrace-go/headrace/pkg/events/orders"
	"github.com/headrace-go/headrace/pkg/events/payments"
)

// Demo places three orders and prints each one's journey: one that goes well,
// one whose payment is declined, and one that is cancelled after the capture and
// refunded.
type Demo struct {
	Shop Shop
	Log  Log
	Out  io.Writer
	// Within bounds each order's journey. Default 30 s.
	Within time.Duration
}

// step is an order of the demo: how it is paid, and what ends its journey.
type step struct {
	title, token string
	// cancelAfter is the event after which the customer cancels; "" for never.
	cancelAfter string
	// until are the events that end the journey, each with its cause's type; the
	// mails are told apart by what they are about.
	until []ending
}

type ending struct{ event, cause string }

func (d Demo) steps() []step {
	mail := notifications.Sent.Name()
	return []step{
		{
			title: "An order that is paid", token: "tok_ok",
			until: []ending{{mail, orders.Confirmed.Name()}},
		},
		{
			title: "An order whose payment is declined", token: "tok_declined",
			until: []ending{{mail, payments.Failed.Name()}, {mail, orders.Cancelled.Name()}},
		},
		{
			title: "An order that is cancelled after it was paid", token: "tok_ok",
			cancelAfter: orders.Confirmed.Name(),
			until: []ending{
				{mail, orders.Confirmed.Name()}, {mail, orders.Cancelled.Name()}, {mail, payments.Refunded.Name()},
			},
		},
	}
}

// Topics are the topics that the three services publish to.
func Topics() []string {
	seen := map[string]bool{}
	var topics []string
	for _, ds := range [][]events.Descriptor{orders.Descriptors(), payments.Descriptors(), notifications.Descriptors()} {
		for _, d := range ds {
			if !seen[d.Topic] {
				seen[d.Topic] = true
				topics = append(topics, d.Topic)
			}
		}
	}
	return topics
}

// Run runs the demo. It stops at the first order whose journey does not end, and
// prints how far that one came.
func (d Demo) Run(ctx context.Context) error {
	if d.Within == 0 {
		d.Within = 30 * time.Second
	}
	for _, s := range d.steps() {
		if err := d.run(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.title, err)
		}
	}
	return nil
}

func (d Demo) run(ctx context.Context, s step) error {
	ctx, cancel := context.WithTimeout(ctx, d.Within)
	defer cancel()
	correlation := events.NewID()
	start := time.Now()
	order, err := d.Shop.Place(ctx, correlation, s.token)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\n%s\n  order %s   correlation id %s\n", s.title, order.ID, correlation)
	if s.cancelAfter != "" {
		if _, err := d.await(ctx, correlation, start, []ending{{s.cancelAfter, ""}}); err != nil {
			return err
		}
		if _, err := d.Shop.Cancel(ctx, correlation, order.ID, "changed my mind"); err != nil {
			return err
		}
	}
	hops, err := d.await(ctx, correlation, start, s.until)
	Print(d.Out, start, hops, detail)
	return err
}

func (d Demo) await(ctx context.Context, correlation string, start time.Time, until []ending) ([]Hop, error) {
	// The broker's clock and ours may differ a little.
	since := start.Add(-time.Minute)
	return Await(ctx, d.Log, Topics(), correlation, since, func(hops []Hop) bool {
		types := map[string]string{}
		for _, h := range hops {
			types[h.Event.ID] = h.Event.Type
		}
		for _, want := range until {
			found := false
			for _, h := range hops {
				found = found || h.Event.Type == want.event &&
					(want.cause == "" || types[h.Event.Metadata.CausationID] == want.cause)
			}
			if !found {
				return false
			}
		}
		return true
	})
}

// detail says what a reader wants to know of an event beyond its name.
func detail(e events.Envelope) string {
	switch e.Type {
	case orders.Cancelled.Name(), payments.Failed.Name(), notifications.Failed.Name():
		var p struct{ Reason string }
		if json.Unmarshal(e.Data, &p) == nil {
			return p.Reason
		}
	case payments.Captured.Name(), payments.Refunded.Name():
		var p struct{ Amount events.Money }
		if json.Unmarshal(e.Data, &p) == nil {
			return fmt.Sprintf("%d.%02d %s", p.Amount.Amount/100, p.Amount.Amount%100, p.Amount.Currency)
		}
	case notifications.Sent.Name():
		var p notifications.SentData
		if json.Unmarshal(e.Data, &p) == nil {
			return p.Channel + " " + p.Template + " " + p.ProviderReference
		}
	}
	return ""
}
