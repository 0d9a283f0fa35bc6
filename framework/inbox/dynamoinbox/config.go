// Package dynamoinbox remembers handled events in a DynamoDB table, for handlers
// on AWS that have no SQL database.
//
// A claim is an item with a lease, a handled event the same item with its
// retention. Each step is one conditional write, so of workers that race exactly
// one holds a claim. The main of a service makes the store and hands it to the
// framework:
//
//	cfg, err := config.LoadDefaultConfig(ctx)
//	…
//	store, err := dynamoinbox.Open(ctx, dynamoinbox.Config{Client: dynamodb.NewFromConfig(cfg), Table: "payments-dedup"})
//	…
//	app, err := framework.New(framework.Config{…, DedupStore: store})
//
// # Clocks
//
// DynamoDB compares no item with a clock of its own, so the worker's clock sets
// the end of a lease and the next worker's clock says whether it has come. A
// lease or a mark is over only when it ended Config.MaxSkew ago by the clock of
// whoever asks: clocks that differ by less never give a key to two live workers,
// and a crashed worker's key is free MaxSkew after its lease. Where clocks differ
// by more, the worker whose clock is ahead may take a claim over early, by the
// rest of the difference; leases that are longer than handlers take absorb that
// (the framework's outlast the handler's timeout by a minute). Open refuses to
// start on a machine whose clock differs from DynamoDB's by more.
//
// # Expiry
//
// Each write compares the end of what it finds, so what is over is over even
// while the item is there. The table's TTL only removes such items, days late,
// and an hour after their end at the earliest.
//
// # Regions
//
// Conditions hold within one region. On a global table with eventual consistency
// the workers of all regions must use the same one: elsewhere a claim is not seen
// in time.
package dynamoinbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// API is what a Store uses of a *dynamodb.Client.
type API interface {
	PutItem(context.Context, *dynamodb.PutItemInput, ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error)
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	DeleteItem(context.Context, *dynamodb.DeleteItemInput, ...func(*dynamodb.Options)) (*dynamodb.DeleteItemOutput, error)
	DescribeTable(context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error)
	CreateTable(context.Context, *dynamodb.CreateTableInput, ...func(*dynamodb.Options)) (*dynamodb.CreateTableOutput, error)
	DescribeTimeToLive(context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error)
	UpdateTimeToLive(context.Context, *dynamodb.UpdateTimeToLiveInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateTimeToLiveOutput, error)
}

var _ API = (*dynamodb.Client)(nil)

// Topology says what Open does about the table.
type Topology string

const (
	// TopologyVerify looks whether the table is as it must be, and changes nothing:
	// for production. It needs the actions DescribeTable and DescribeTimeToLive.
	TopologyVerify Topology = "verify"
	// TopologyEnsure creates a table that is missing, billed on demand, and turns
	// its TTL on: for development. It needs CreateTable and UpdateTimeToLive
	// besides.
	TopologyEnsure Topology = "ensure"
)

// Defaults of Config.
const (
	DefaultTable   = "headrace-dedup"
	DefaultMaxSkew = 5 * time.Second
)

// Config configures a Store. The zero value of a field means its default.
type Config struct {
	// Client speaks to DynamoDB; it stays the caller's. Its retries and timeouts
	// apply. Required.
	Client API
	// Table is the table's name. Services may share one. Default DefaultTable.
	Table string
	// Topology is what Open does about the table. Default TopologyVerify.
	Topology Topology
	// MaxSkew is by how much the clocks of two workers may differ: leases and marks
	// count that much longer. It must be the same for all workers on a table, at
	// least a millisecond. Default 5 s.
	MaxSkew time.Duration
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	if c.Table == "" {
		c.Table = DefaultTable
	}
	if c.Topology == "" {
		c.Topology = TopologyVerify
	}
	if c.MaxSkew == 0 {
		c.MaxSkew = DefaultMaxSkew
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c
}

var tableName = regexp.MustCompile(`^([a-zA-Z0-9_.-]{3,255}|arn:[^ ]{1,1000})$`)

// Validate reports every field that can't work, by name, value and remedy.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("dynamoinbox: "+format, args...)) }
	if c.Client == nil {
		bad("Client is nil: hand in dynamodb.NewFromConfig(cfg)")
	}
	if !tableName.MatchString(c.Table) {
		bad("Table is %q: give a table's name of 3 to 255 letters, digits, dots, dashes and underscores, or its ARN", c.Table)
	}
	if c.Topology != TopologyVerify && c.Topology != TopologyEnsure {
		bad("Topology is %q: use %q or %q", c.Topology, TopologyVerify, TopologyEnsure)
	}
	if c.MaxSkew < time.Millisecond || c.MaxSkew > time.Hour {
		bad("MaxSkew is %s: use 1 ms to 1 h", c.MaxSkew)
	}
	return errors.Join(errs...)
}
