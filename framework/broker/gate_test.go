package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
)

func TestGate(t *testing.T) {
	t.Parallel()
	var none *broker.Gate
	require.Equal(t, broker.NoLimit, none.Limit())
	none.Watch(func(int) { t.Error("called") })()

	var g broker.Gate
	var seen []int
	stop := g.Watch(func(limit int) { seen = append(seen, limit) })
	g.Open()
	g.Pause()
	g.Pause()
	g.Narrow(0)
	g.Narrow(3)
	require.Equal(t, 3, g.Limit())
	g.Open()
	stop()
	g.Pause()
	require.Equal(t, []int{broker.NoLimit, 0, 1, 3, broker.NoLimit}, seen)
	require.Zero(t, g.Limit())
}
