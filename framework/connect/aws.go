package connect

import (
	"context"
	"log/slog"
	"slices"

	"github.com/headrace-go/headrace/framework/broker/sqs"
	"github.com/headrace-go/headrace/framework/claimcheck"
	"github.com/headrace-go/headrace/framework/config"
)

// openAWS opens the broker on SQS or on SNS with SQS.
func (c *Connections) openAWS(ctx context.Context, p config.Profile, logger *slog.Logger) error {
	a := p.Broker.AWS
	cfg, err := awsConfig(p, logger)
	if err != nil {
		return err
	}
	if url := a.ClaimCheckURL.Reveal(); url != "" {
		const key = "broker.aws.claim_check_url"
		store, err := claimcheck.Open(ctx, claimcheck.Config{URL: url})
		if err != nil {
			return fault(key, "[redacted]", err, "write s3://bucket?region=…, or a folder that may be written", url)
		}
		c.onClose(store.Close)
		cfg.Payloads = store
	}
	b, err := sqs.Open(ctx, cfg)
	if err != nil {
		if a.Endpoint != "" {
			return fault("broker.aws.endpoint", a.Endpoint, err, "start the emulator (scripts/aws-emulator start 4566), or leave the key empty for AWS")
		}
		return fault("broker.aws.region", a.Region, err, "set the region, and give the process credentials that may use SQS")
	}
	c.onClose(b.Close)
	c.Broker = b
	return nil
}

// awsConfig is what the profile says of the broker, without a store for large
// payloads.
func awsConfig(p config.Profile, logger *slog.Logger) (sqs.Config, error) {
	a := p.Broker.AWS
	groups, err := a.GroupsByTopic()
	if err != nil {
		return sqs.Config{}, fault("broker.aws.groups", "", err, "write topic=group for each")
	}
	topology := sqs.Topology(a.Topology)
	if topology == "" {
		topology = sqs.TopologyEnsure
		if slices.Contains(shared, p.Env) {
			topology = sqs.TopologyVerify
		}
	}
	return sqs.Config{
		Mode: sqs.Mode(p.Broker.Kind), FIFO: a.FIFO, Region: a.Region, Endpoint: a.Endpoint, AccountID: a.AccountID,
		Prefix: p.Broker.Prefix, Topology: topology, Groups: groups, MaxMessageBytes: a.MaxMessageBytes,
		MaxReceiveCount: a.MaxReceiveCount, Retention: p.Broker.Retention, WaitTime: a.WaitTime, KMSKey: a.KMSKey, Logger: logger,
	}, nil
}
