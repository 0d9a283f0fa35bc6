package connect_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/memory"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
)

func TestAKindOfBrokerFromOutside(t *testing.T) {
	var got broker.AdapterSettings
	outside := broker.Adapter{
		Kind: "carrier",
		Open: func(_ context.Context, s broker.AdapterSettings) (broker.Broker, error) {
			got = s
			if s.URL == "carrier://user:s3cret@nowhere" {
				return nil, errors.New("carrier: no answer from carrier://user:s3cret@nowhere")
			}
			return memory.New(memory.Config{}), nil
		},
		Features: func(broker.AdapterSettings) (broker.Features, error) {
			return broker.Features{MaxMessageBytes: 7}, nil
		},
	}
	p := config.Default()
	p.Broker = config.Broker{Kind: "carrier", URL: "carrier://loft", Prefix: "p."}

	c, err := connect.Open(t.Context(), p, nil, outside)
	require.NoError(t, err)
	require.Equal(t, "carrier://loft", got.URL)
	require.Equal(t, "p.", got.Prefix)
	require.NotNil(t, got.Logger)
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.Broker.Ping(t.Context()), broker.ErrClosed, "closed with the connections")

	d, err := connect.Describe(p, outside)
	require.NoError(t, err)
	require.Equal(t, "carrier", d.Name())
	require.Equal(t, 7, d.Features().MaxMessageBytes)
	require.NoError(t, d.Close())

	for name, c := range map[string]struct {
		adapters []broker.Adapter
		says     []string
	}{
		"none":       {nil, []string{"broker.kind", `"carrier"`, "redisstream"}},
		"incomplete": {[]broker.Adapter{{Kind: "carrier"}}, []string{`"carrier"`, "Open"}},
		"twice":      {[]broker.Adapter{outside, outside}, []string{"two adapters", `"carrier"`}},
		"one of Headrace's own": {[]broker.Adapter{
			{Kind: "sql", Open: outside.Open, Features: outside.Features}}, []string{"two adapters", `"sql"`}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := connect.Open(t.Context(), p, nil, c.adapters...)
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
			_, err = connect.Describe(p, c.adapters...)
			for _, s := range c.says {
				require.ErrorContains(t, err, s)
			}
		})
	}

	p.Broker.URL = "carrier://user:s3cret@nowhere"
	_, err = connect.Open(t.Context(), p, nil, outside)
	require.ErrorContains(t, err, "broker.url")
	require.NotContains(t, err.Error(), "s3cret")
}
