package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/sqldb"
	"github.com/headrace-go/headrace/framework/deadletter"
	"github.com/headrace-go/headrace/middleware"
)

func TestALetterTellsTheWholeStory(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		inner := errors.New("connection refused")
		sent := d.bury(failure{key: "k1", err: middleware.Permanent(fmt.Errorf("charge: %w", inner)), redrives: 2})
		found, err := d.Find(context.Background(), sent.UUID)
		require.NoError(t, err)
		require.Len(t, found, 1)
		l := found[0]
		require.Equal(t, middleware.ReasonPermanent, l.Reason)
		require.Equal(t, "charge: connection refused", l.Error)
		require.Equal(t, "connection refused", l.ErrorChain[len(l.ErrorChain)-1].Message)
		require.Equal(t, []any{"things", "count", group}, []any{l.Service, l.Handler, l.Group})
		require.Equal(t, []any{1, 2, "thing.made", "k1", "corr-" + sent.UUID}, []any{l.Attempts, l.Redrives, l.EventType, l.Key, l.CorrelationID})
		require.Equal(t, time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC), l.FirstFailedAt)
		require.NotEmpty(t, l.Fingerprint)
		o := l.Original()
		require.Equal(t, []any{sent.UUID, sent.Payload, sent.Metadata}, []any{o.UUID, o.Payload, o.Metadata})

		_, err = d.Find(context.Background(), "nobody")
		require.ErrorIs(t, err, deadletter.ErrNotFound)
	})
}

func TestForeignLettersAreReadToo(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		raw := message.NewMessage("7-0", []byte{0xff, 0x00})
		raw.Metadata[broker.MalformedReasonKey] = "no metadata field"
		bare := message.NewMessage("bare", []byte(`{"id":"e1","source":"s","type":"order.placed","timestamp":"2026-01-01T00:00:00Z","version":"1.0","data":{},"metadata":{"ordering_key":"o1"}}`))
		require.NoError(t, d.broker.Broker.Publisher().PublishBatch(context.Background(), d.Topic(), []*message.Message{raw, bare}))
		all := d.letters()
		require.Len(t, all, 2)
		require.Equal(t, []string{middleware.ReasonMalformed, "no metadata field"}, []string{all[0].Reason, all[0].Error})
		require.Equal(t, []string{"", "e1", "order.placed", "o1"}, []string{all[1].Reason, all[1].EventID, all[1].EventType, all[1].Key})
		require.False(t, all[1].FailedAt().IsZero(), "when it was dead-lettered")
	})
}

func TestFilterAndFigures(t *testing.T) {
	onBrokers(t, func(t *testing.T, d *desk) {
		start := d.now
		a := d.bury(failure{key: "k1", err: errors.New("order 17 has no stock")})
		b := d.bury(failure{key: "k2", err: errors.New("order 99 has no stock")})
		c := d.bury(failure{key: "k1", typ: "thing.sold", err: middleware.Permanent(errors.New("bad amount"))})
		causes, err := d.Causes(context.Background(), deadletter.Filter{})
		require.NoError(t, err)
		require.Len(t, causes, 2)
		require.Equal(t, []any{2, "order 99 has no stock", b.UUID, middleware.ReasonExhausted, map[string]int{"thing.made": 2}},
			[]any{causes[0].Count, causes[0].Error, causes[0].Sample, causes[0].Reason, causes[0].Types})

		for name, c := range map[string]struct {
			f    deadletter.Filter
			want []string
		}{
			"all":         {deadletter.Filter{}, []string{a.UUID, b.UUID, c.UUID}},
			"key":         {deadletter.Filter{Keys: []string{"k1"}}, []string{a.UUID, c.UUID}},
			"type":        {deadletter.Filter{Types: []string{"thing.sold"}}, []string{c.UUID}},
			"reason":      {deadletter.Filter{Reasons: []string{middleware.ReasonExhausted}}, []string{a.UUID, b.UUID}},
			"fingerprint": {deadletter.Filter{Fingerprints: []string{causes[1].Fingerprint[:6]}}, []string{c.UUID}},
			"ids":         {deadletter.Filter{IDs: []string{b.UUID, "x"}}, []string{b.UUID}},
			"correlation": {deadletter.Filter{CorrelationIDs: []string{"corr-" + b.UUID}}, []string{b.UUID}},
			"since":       {deadletter.Filter{Since: start.Add(time.Minute)}, []string{b.UUID, c.UUID}},
			"until":       {deadletter.Filter{Until: start.Add(time.Minute)}, []string{a.UUID}},
			"several":     {deadletter.Filter{Keys: []string{"k1"}, Types: []string{"thing.made"}}, []string{a.UUID}},
		} {
			var got []string
			for l, err := range d.Browse(context.Background(), c.f) {
				require.NoError(t, err)
				got = append(got, l.ID)
			}
			require.Equal(t, c.want, got, name)
		}
		s, err := d.Summarize(context.Background(), deadletter.Filter{})
		require.NoError(t, err)
		require.Equal(t, deadletter.Summary{
			Group: group, Depth: 3, Causes: 2, Oldest: start, Newest: start.Add(2 * time.Minute),
			Reasons: map[string]int{middleware.ReasonExhausted: 2, middleware.ReasonPermanent: 1},
		}, s)

		groups, err := deadletter.FindGroups(context.Background(), d.broker.Broker)
		if d.broker.Name() == sqldb.Name {
			require.ErrorIs(t, err, deadletter.ErrCannotList) // its tables have hashes for names
			return
		}
		require.NoError(t, err)
		require.Equal(t, []string{group}, groups)
	})
}

func TestAFilterThatMatchesNothingIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for want, f := range map[string]deadletter.Filter{
		`reason "lost" is none`:     {Reasons: []string{"lost"}},
		`fingerprint "ab" is too`:   {Fingerprints: []string{"ab"}},
		"is not before until":       {Since: now, Until: now},
		`limit is -1: it must not`:  {},
		`canary has a step of 0`:    {},
		`rate is -1 a second`:       {},
		`outcome is -1s: it must`:   {},
		`batch is -1: it must be 1`: {},
	} {
		o := deadletter.ReplayOptions{Filter: f}
		switch want[:4] {
		case "limi":
			o.Limit = -1
		case "cana":
			o.Canary = []int{0}
		case "rate":
			o.Rate = -1
		case "outc":
			o.Outcome = -time.Second
		case "batc":
			o.Batch = -1
		}
		require.ErrorContains(t, o.WithDefaults().Validate(), want)
	}
	_, err := deadletter.New(deadletter.Config{})
	require.ErrorContains(t, err, "Broker is nil")
	require.ErrorContains(t, err, "Group is empty")
}
