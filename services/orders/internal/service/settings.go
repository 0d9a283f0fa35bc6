// Package service wires the orders service together and runs it.
package service

import (
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/pkg/events"
)

// Settings is what the service reads at start: the profile that all services
// share, and its own section.
type Settings struct {
	config.Profile `koanf:",squash"`
	Orders         Orders `koanf:"orders"`
}

// Orders is the service's own section.
type Orders struct {
	// Currencies are the ISO 4217 codes that are accepted; at least
	// one.
	Currencies []string `koanf:"currencies"`
	// MaxLines is the most lines on one order; from 1 to 1000.
	MaxLines int `koanf:"max_lines"`
	// IdempotencyRetention is how long an Idempotency-Key is remembered; at
	// least a minute.
	IdempotencyRetention time.Duration `koanf:"idempotency_retention"`
}

// Validate reports every setting of the service's own that can't work.
func (s Settings) Validate() error {
	var faults config.Faults
	bad := faults.Add
	if s.Database.Driver == "" {
		bad("database.driver", `""`, "orders keeps its orders in a database: set sqlite, postgres or mysql")
	}
	if s.Orders.MaxLines < 1 || s.Orders.MaxLines > 1000 {
		bad("orders.max_lines", s.Orders.MaxLines, "it must be from 1 to 1000")
	}
	if s.Orders.IdempotencyRetention < time.Minute {
		bad("orders.idempotency_retention", s.Orders.IdempotencyRetention, "it must be 1m or more")
	}
	if len(s.Orders.Currencies) == 0 {
		bad("orders.currencies", "empty", "name the ISO 4217 codes that are accepted, such as EUR")
	}
	for _, c := range s.Orders.Currencies {
		if (events.Money{Currency: c}).Validate() != nil {
			bad("orders.currencies", fmt.Sprintf("%q", c), "write ISO 4217 codes in upper case, such as EUR")
		}
	}
	return faults.Err()
}
