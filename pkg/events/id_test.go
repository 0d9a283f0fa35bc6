package events_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
)

func TestNewIDsAscend(t *testing.T) {
	t.Parallel()
	last := ""
	for range 10_000 {
		id := events.NewID()
		require.Less(t, last, id)
		last = id
	}
	u := uuid.MustParse(last)
	require.Equal(t, uuid.Version(7), u.Version())
	sec, nsec := u.Time().UnixTime()
	require.WithinDuration(t, time.Now(), time.Unix(sec, nsec), time.Minute)
}

// B29: an attempt that is repeated makes the same ids; whatever differs in what
// is emitted makes other ids.
func TestStableIDs(t *testing.T) {
	t.Parallel()
	parent := events.NewID()
	base := events.StableID(parent, "payments.charge", "payment.captured", "order-7", 0)
	require.Equal(t, base, events.StableID(parent, "payments.charge", "payment.captured", "order-7", 0))
	require.Equal(t, "01980f2e-7c00-72e8-81a6-66764f306a2c",
		events.StableID("01980f2e-7c00-7abc-8def-0123456789ab", "h", "order.placed", "k", 0), "must hold across releases")

	seen := map[string]bool{base: true}
	for _, id := range []string{
		events.StableID(events.NewID(), "payments.charge", "payment.captured", "order-7", 0),
		events.StableID(strings.ToUpper(parent), "payments.charge", "payment.captured", "order-7", 0),
		events.StableID(parent, "payments.refund", "payment.captured", "order-7", 0),
		events.StableID(parent, "payments.charge", "payment.failed", "order-7", 0),
		events.StableID(parent, "payments.charge", "payment.captured", "order-8", 0),
		events.StableID(parent, "payments.charge", "payment.captured", "order-7", 1),
		events.StableID(parent, "payments.charge", "payment.captured", "order-7", -1),
		events.StableID(parent, "payments.chargep", "ayment.captured", "order-7", 0),
		events.StableID(parent, "payments.charge", "payment.capturedorder-7", "", 0),
		events.StableID("", "", "", "", 0),
	} {
		require.False(t, seen[id], id)
		seen[id] = true
		u, err := uuid.Parse(id)
		require.NoError(t, err)
		require.Equal(t, uuid.Version(7), u.Version())
		require.Equal(t, uuid.RFC4122, u.Variant())
	}
}

func TestStableIDKeepsTheParentsTime(t *testing.T) {
	t.Parallel()
	parent := events.NewID()
	require.Equal(t, parent[:13], events.StableID(parent, "h", "t", "k", 0)[:13])
	// 01ARZ3NDEKTSV4RRFFQ69G5FAV is 2016-07-30T23:54:10.259Z.
	const millis = "01563e3a-b5d3"
	for _, ulid := range []string{"01ARZ3NDEKTSV4RRFFQ69G5FAV", "01arz3ndektsv4rrffq69g5fav"} {
		require.Equal(t, millis, events.StableID(ulid, "h", "t", "k", 0)[:13])
	}
	for _, other := range []string{"81ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAU", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "order-7"} {
		id := events.StableID(other, "h", "t", "k", 0)
		require.NotEqual(t, millis, id[:13])
		require.NotEqual(t, other[:7], id[:7])
		require.Equal(t, id, events.StableID(other, "h", "t", "k", 0))
	}
}
