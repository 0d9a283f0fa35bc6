package redisstream

import "github.com/headrace-go/headrace/framework/broker"

// Features states what a broker with this configuration can do; nothing is opened.
func (c Config) Features() broker.Features { return (&Broker{cfg: c.WithDefaults()}).Features() }
