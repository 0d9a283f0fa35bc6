package broker_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
)

func TestSubscriberConfigDefaults(t *testing.T) {
	t.Parallel()
	c := broker.SubscriberConfig{Group: "g", Concurrency: 3}.WithDefaults()
	require.NoError(t, c.Validate())
	require.Equal(t, 30, c.MaxInFlight)
	require.Equal(t, broker.DefaultLease, c.Lease)
	require.Equal(t, broker.DefaultNackDelay, c.NackDelay)
	require.Equal(t, broker.DefaultDrainTimeout, c.DrainTimeout)
	require.NotNil(t, c.Logger)
	kept := broker.SubscriberConfig{Group: "g", MaxInFlight: 7, Concurrency: 7, Lease: time.Minute, NackDelay: -1}.WithDefaults()
	require.NoError(t, kept.Validate())
	require.Equal(t, 7, kept.MaxInFlight)
	require.Equal(t, time.Duration(-1), kept.NackDelay)
}

func TestSubscriberConfigNamesEveryFault(t *testing.T) {
	t.Parallel()
	err := broker.SubscriberConfig{Group: " ", Concurrency: -2, MaxInFlight: -3, Lease: time.Millisecond, DrainTimeout: -1}.Validate()
	for _, field := range []string{"Group", "Concurrency is -2", "MaxInFlight is -3", "Lease is 1ms", "DrainTimeout is -1ns"} {
		require.ErrorContains(t, err, field)
	}
}

func TestPublishError(t *testing.T) {
	t.Parallel()
	cause := errors.New("too large")
	err := fmt.Errorf("relay: %w", &broker.PublishError{Topic: "t", Failed: map[int]error{
		7: errors.New("later"), 2: fmt.Errorf("%w: %w", broker.ErrRejected, cause),
	}})
	require.ErrorIs(t, err, broker.ErrRejected)
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, `relay: publish to "t": 2 not confirmed, entry 2: rejected by the broker: too large`)
	var failed *broker.PublishError
	require.ErrorAs(t, err, &failed)
	require.EqualError(t, &broker.PublishError{Topic: "t"}, `publish to "t" failed`)
}
