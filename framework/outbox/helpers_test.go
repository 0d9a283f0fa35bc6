package outbox

import "github.com/headrace-go/headrace/framework/broker"

func publishError(topic string, failed map[int]error) error {
	return &broker.PublishError{Topic: topic, Failed: failed}
}
