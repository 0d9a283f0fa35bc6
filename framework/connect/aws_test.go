package connect_test

import (
	"path/filepath"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/testenv"
)

func TestAWS(t *testing.T) {
	t.Parallel()
	server := testenv.AWS(t)
	for _, kind := range []string{"sqs", "sns"} {
		p := profile()
		p.Broker.Kind, p.Broker.Prefix = kind, "c"+uuid.NewString()[:8]+"-"
		p.Broker.AWS = config.AWS{
			Endpoint: server.Endpoint(), FIFO: true, MaxMessageBytes: 2048, WaitTime: 1e9,
			ClaimCheckURL: config.Secret(filepath.Join(t.TempDir(), "payloads")),
		}
		sub := broker.Subscription{Topic: "t", Group: "g"}

		strict := p
		strict.Env = "production"
		require.ErrorContains(t, open(t, strict).Broker.EnsureTopology(t.Context(), sub), "does not exist", "production only verifies")

		c := open(t, p)
		require.Equal(t, kind, c.Broker.Name())
		require.NoError(t, c.Broker.EnsureTopology(t.Context(), sub))
		require.NoError(t, open(t, strict).Broker.EnsureTopology(t.Context(), sub))
		features := c.Broker.Features()
		require.True(t, features.OrderPerKey)
		require.Zero(t, features.MaxMessageBytes, "the claim check takes the rest")
		require.NoError(t, c.Broker.Publisher().Publish("t", message.NewMessage("u", make([]byte, 10_000))))
	}
}

func TestAWSErrorsNameTheKey(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  func(*config.Profile)
		want []string
	}{
		"nothing there": {func(p *config.Profile) { p.Broker.AWS.Endpoint = "http://" + closedPort(t) },
			[]string{"broker.aws.endpoint", "HEADRACE_BROKER_AWS_ENDPOINT", "aws-emulator"}},
		"a URL": {func(p *config.Profile) { p.Broker.URL = "redis://u:hunter2@h" }, []string{"broker.url", "broker.aws.region"}},
		"groups": {func(p *config.Profile) { p.Broker.AWS.Groups = []string{"order.placed"} },
			[]string{"broker.aws.groups", "order.placed=payments.charge-order"}},
		"topology": {func(p *config.Profile) { p.Broker.AWS.Topology = "verfy" }, []string{"broker.aws.topology", "verify"}},
		"counts":   {func(p *config.Profile) { p.Broker.AWS.MaxReceiveCount = 5 }, []string{"broker.aws.max_receive_count", "delivery.max_deliveries"}},
		"a bucket": {func(p *config.Profile) { p.Broker.AWS.ClaimCheckURL = "ftp://h?token=hunter2" }, []string{"broker.aws.claim_check_url"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := profile()
			p.Broker.Kind = "sqs"
			c.set(&p)
			_, err := connect.Open(t.Context(), p, quiet)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotContains(t, err.Error(), "hunter2")
		})
	}
}
