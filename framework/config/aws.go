package config

import (
	"fmt"
	"strings"
	"time"
)

// AWS is what the brokers "sqs" and "sns" need. broker.prefix stands before the
// names of queues and topics; broker.retention is how long queues keep a message,
// 14 days by default and at most.
type AWS struct {
	// Region is the AWS region. Default "": what the SDK finds in the environment.
	Region string `koanf:"region"`
	// Endpoint replaces AWS's own, for an emulator: http://127.0.0.1:4566.
	Endpoint string `koanf:"endpoint"`
	// AccountID owns the SNS topics. Default "": the adapter asks for it.
	AccountID string `koanf:"account_id"`
	// Topology is "ensure" (create what is missing, set what differs), "verify"
	// (start-up fails where something is missing or differs) or "off". Default
	// "verify" in staging and production, "ensure" elsewhere.
	Topology string `koanf:"topology"`
	// FIFO uses FIFO queues and topics: order per key. Default false.
	FIFO bool `koanf:"fifo"`
	// Groups lists the consumer groups of topics for the broker "sqs", each as
	// "topic=group", such as "order.placed=payments.charge-order". The groups of a
	// topic that is not in it are found by their queues' names.
	Groups []string `koanf:"groups"`
	// ClaimCheckURL names the bucket for payloads above MaxMessageBytes:
	// "s3://bucket?region=eu-central-1", or a folder. Default "": such messages are
	// refused.
	ClaimCheckURL Secret `koanf:"claim_check_url"`
	// MaxMessageBytes is the largest message, attributes included. Default 0: 1 MiB
	// for "sqs", 256 KiB for "sns".
	MaxMessageBytes int `koanf:"max_message_bytes"`
	// MaxReceiveCount is how often SQS hands a message out before it moves it to
	// the dead letters itself. Default 0: 100.
	MaxReceiveCount int `koanf:"max_receive_count"`
	// WaitTime is how long one receive waits: whole seconds up to 20 s. Default 0:
	// 20 s.
	WaitTime time.Duration `koanf:"wait_time"`
	// KMSKey encrypts queues and topics with a key of one's own. Default "": keys
	// that SQS manages.
	KMSKey string `koanf:"kms_key"`
}

// IsAWS tells whether the broker is on AWS.
func (b Broker) IsAWS() bool { return b.Kind == "sqs" || b.Kind == "sns" }

// GroupsByTopic splits Groups.
func (a AWS) GroupsByTopic() (map[string][]string, error) {
	var out map[string][]string
	for _, entry := range a.Groups {
		topic, group, ok := strings.Cut(entry, "=")
		if !ok || topic == "" || group == "" {
			return nil, fmt.Errorf("%q is not topic=group, such as order.placed=payments.charge-order", entry)
		}
		if out == nil {
			out = make(map[string][]string)
		}
		out[topic] = append(out[topic], group)
	}
	return out, nil
}

// validateAWS reports keys of broker.aws that can't work.
func (p Profile) validateAWS(bad func(key string, value any, remedy string), oneOf func(key, value string, allowed ...string)) {
	a := p.Broker.AWS
	if !p.Broker.IsAWS() {
		return
	}
	oneOf("broker.aws.topology", a.Topology, "", "ensure", "verify", "off")
	if p.Broker.URL != "" {
		bad("broker.url", p.Broker.URL, "the brokers sqs and sns have no URL: leave it empty, and set broker.aws.region, or broker.aws.endpoint for an emulator")
	}
	if _, err := a.GroupsByTopic(); err != nil {
		bad("broker.aws.groups", a.Groups, err.Error())
	}
	if a.MaxMessageBytes != 0 && (a.MaxMessageBytes < 1024 || a.MaxMessageBytes > 1<<20) {
		bad("broker.aws.max_message_bytes", a.MaxMessageBytes, "it must be 0 or between 1024 and 1048576")
	}
	if a.MaxReceiveCount < 0 || a.MaxReceiveCount > 1000 {
		bad("broker.aws.max_receive_count", a.MaxReceiveCount, "it must be 0 or between 1 and 1000")
	} else if a.MaxReceiveCount > 0 && a.MaxReceiveCount <= p.Delivery.MaxDeliveries {
		bad("broker.aws.max_receive_count", a.MaxReceiveCount,
			fmt.Sprintf("it must be above delivery.max_deliveries (%d), or SQS takes messages away before the stack dead-letters them with their reason", p.Delivery.MaxDeliveries))
	}
	if a.WaitTime < 0 || a.WaitTime > 20*time.Second || a.WaitTime%time.Second != 0 {
		bad("broker.aws.wait_time", a.WaitTime.String(), "it must be whole seconds up to 20s")
	}
	if p.Broker.Retention > 14*24*time.Hour {
		bad("broker.retention", p.Broker.Retention.String(), "SQS keeps a message 336h (14 days) at most")
	}
}
