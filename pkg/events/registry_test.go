package events_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
)

type empty struct{}

func named(name string, opts ...events.Option) events.Descriptor {
	return events.Define[empty](name, "1.0", opts...).Descriptor()
}

func TestRegisterWantsPastTenseFacts(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"order.placed", "order.confirmed", "payment.captured", "payment.failed", "notification.sent", "invoice.paid", "house.built",
		"item.sold", "mail_box.password_reset", "user.signed_up", "user.logged_in", "payment.charged_back", "contract.agreed",
		"order.line_added", "a1.b2_done", "seat.taken", "parcel.lost", "key.rewritten", "job.begun", "price.set", "stock.ran_out",
	} {
		require.NoError(t, events.NewRegistry().Register(named(name)), name)
	}
	for _, name := range []string{
		"order.place", "order.placing", "order.places", "order.need", "plant.feed", "order.proceed", "card.embed", "order.will_send", "send.mail",
		"order.ed", "order.up", "order.bed", "order.failed_payment",
	} {
		require.ErrorContains(t, events.NewRegistry().Register(named(name)), "past tense", name)
	}
	for _, name := range []string{
		"", "placed", "order.", ".placed", "Order.placed", "order.Placed", "order-x.placed", "order.line.added", "order placed", "order._placed",
		"order.placed_", "order.re__placed", "1order.placed", "örder.placed", "order.placed\n",
	} {
		require.ErrorContains(t, events.NewRegistry().Register(named(name)), "domain.past_tense_fact", name)
	}
	require.NoError(t, events.NewRegistry().Register(named("parcel.yeet", events.PastTense("yeet"))))
	require.ErrorContains(t, events.NewRegistry().Register(named("parcel.yeet")), `events.PastTense("yeet")`)
}

func TestRegisterNamesEveryFaultAndTakesNothing(t *testing.T) {
	t.Parallel()
	r := events.NewRegistry()
	err := r.Register(
		named("order.placed"),
		named("order.place"),
		events.Define[empty]("order.shipped", "1").Descriptor(),
		events.Define[empty]("order.packed", "01.0").Descriptor(),
		named("order.lost", events.Topic("")),
		named("order.found", events.Topic("a b")),
		events.Descriptor{Name: "order.kept", Version: "1.0", Topic: "x"},
	)
	for _, part := range []string{`"order.place"`, `"1" is not MAJOR.MINOR`, `"01.0" is not`, `topic ""`, `topic "a b"`, `"order.kept": no Go type`} {
		require.ErrorContains(t, err, part)
	}
	require.False(t, r.Known("order.placed"))
	require.Empty(t, r.Types())
	require.Error(t, events.Descriptor{Name: "x"}.Check(minimal()))
}

func TestRegisterConflicts(t *testing.T) {
	t.Parallel()
	r := events.NewRegistry()
	require.NoError(t, r.Register(named("order.placed"), named("order.placed")))
	require.NoError(t, r.Register(named("order.placed")), "the same again is no conflict")
	require.ErrorContains(t, r.Register(events.Define[placed]("order.placed", "1.0").Descriptor()), "events_test.placed")
	require.ErrorContains(t, r.Register(named("order.placed", events.Topic("other"))), `"other"`)
	require.ErrorContains(t, r.Register(named("order.left"), named("order.left", events.Topic("other"))), `"other"`)
	require.Len(t, r.Types(), 1)
	require.NoError(t, r.Register(events.Define[placed]("order.placed", "2.0", events.Topic("orders-v2")).Descriptor()), "a migration")
}

func TestLookup(t *testing.T) {
	t.Parallel()
	r := events.NewRegistry()
	for _, v := range []string{"1.10", "2.0", "1.2", "1.0"} {
		require.NoError(t, r.Register(events.Define[empty]("order.placed", v).Descriptor()))
	}
	for asked, want := range map[string]string{"1.0": "1.0", "1.2": "1.2", "1.3": "1.10", "1.99": "1.10", "2.5": "2.0", "3.0": "", "1": "", "": ""} {
		d, ok := r.Lookup("order.placed", asked)
		require.Equal(t, want != "", ok, asked)
		require.Equal(t, want, d.Version, asked)
	}
	_, ok := r.Lookup("order.lost", "1.0")
	require.False(t, ok)
	var versions []string
	for _, d := range r.Types() {
		versions = append(versions, d.Version)
		require.Equal(t, "events_test.empty", d.GoType())
	}
	require.Equal(t, []string{"1.0", "1.2", "1.10", "2.0"}, versions)
}

func TestRegistryIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	r := events.NewRegistry()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for v := range 20 {
				d := events.Define[empty]("order.placed", fmt.Sprintf("%d.%d", i, v)).Descriptor()
				if err := r.Register(d); err != nil {
					t.Error(err)
				}
				r.Known("order.placed")
				r.Lookup("order.placed", "1.0")
				r.Types()
			}
		})
	}
	wg.Wait()
	require.Len(t, r.Types(), 160)
}
