// Package config reads a service's profile: config/<env>.yaml, overridden by
// environment variables, checked before anything starts. A key that nobody
// knows, a value that has no unit or the wrong kind, and an environment without
// a file are errors that name the key, the value and where it came from.
package config

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
)

// Profile is what every Headrace service reads. Embed it in the service's own
// settings:
//
//	type Settings struct {
//		config.Profile `koanf:",squash"`
//		Gateway        Gateway `koanf:"gateway"`
//	}
//
// Each key has one environment variable: HEADRACE_ and the key's path in upper
// case with underscores (broker.url is HEADRACE_BROKER_URL).
type Profile struct {
	// Env is the profile's name. HEADRACE_ENV sets it; Load fills it in.
	Env string `koanf:"-"`

	HTTP     HTTP     `koanf:"http"`
	Admin    Admin    `koanf:"admin"`
	Broker   Broker   `koanf:"broker"`
	Database Database `koanf:"database"`
	Delivery Delivery `koanf:"delivery"`
	Dedup    Dedup    `koanf:"dedup"`
	Outbox   Outbox   `koanf:"outbox"`
	Drain    Drain    `koanf:"drain"`
	Log      Log      `koanf:"log"`
	Trace    Trace    `koanf:"trace"`
}

// HTTP is the API listener.
type HTTP struct {
	// Addr is host:port. Port 0 takes a free one. Empty: no API listener.
	// Default "127.0.0.1:8080".
	Addr string `koanf:"addr"`
	// ReadTimeout bounds reading one request, body included. Default 15 s.
	ReadTimeout time.Duration `koanf:"read_timeout"`
	// WriteTimeout bounds one request from its header to the response's end.
	// Default 30 s.
	WriteTimeout time.Duration `koanf:"write_timeout"`
	// IdleTimeout bounds how long a kept-alive connection waits. Default 60 s.
	IdleTimeout time.Duration `koanf:"idle_timeout"`
	// MaxBodyBytes is the largest request body. Default 1 MiB.
	MaxBodyBytes int64 `koanf:"max_body_bytes"`
}

// Admin is the listener of /healthz, /readyz and /metrics. It has no
// authentication: keep it on loopback or on a network of its own.
type Admin struct {
	// Addr is host:port. Port 0 takes a free one. Empty: no admin listener.
	// Default "127.0.0.1:9080".
	Addr string `koanf:"addr"`
	// StatsInterval is how often lag, oldest age and dead-letter depth are read
	// from the broker. Default 10 s.
	StatsInterval time.Duration `koanf:"stats_interval"`
}

// Broker says which broker the service uses.
type Broker struct {
	// Kind is "redisstream", "sql", "sqs", "sns" or "memory". Default "memory".
	// A program may bring more kinds.
	Kind string `koanf:"kind"`
	// Others are those more kinds. They are no setting: Options.Brokers fills them.
	Others []string `koanf:"-"`
	// URL is the broker's address: redis://host:6379/0 for redisstream; for sql
	// postgres://…, mysql://… or sqlite:<path of a file>. Empty with redisstream
	// starts a server of the process's own: for one laptop only, so the
	// environments staging and production refuse it.
	URL Secret `koanf:"url"`
	// Dir is where that own server keeps its data. Default ".headrace/redis".
	Dir string `koanf:"dir"`
	// Prefix stands before every key in the broker, so that systems can share
	// one. Default "".
	Prefix string `koanf:"prefix"`
	// Retention is how long a message that every group has settled is kept, so
	// that a new group can read it. Default 0: the adapter's own default.
	Retention time.Duration `koanf:"retention"`
	// SQL is for the kind "sql".
	SQL SQLBroker `koanf:"sql"`
	// AWS is for the kinds "sqs" and "sns".
	AWS AWS `koanf:"aws"`
}

// BrokerKinds are the kinds of broker that Headrace has itself.
func BrokerKinds() []string { return []string{"redisstream", "memory", "sql", "sqs", "sns"} }

// Database says where the service's own tables are, the outbox's and the
// inbox's among them.
type Database struct {
	// Driver is "sqlite", "postgres" or "mysql" (MySQL 8.0.19 or MariaDB 10.6, or
	// later). Empty: no database, so no HandleTx, no outbox, and dedup in memory.
	// Default "".
	Driver string `koanf:"driver"`
	// DSN is a file's path for sqlite (its folder is made), ":memory:" for a
	// database that ends with the process, or a postgres:// or mysql:// URL.
	DSN Secret `koanf:"dsn"`
	// MaxOpenConns bounds the pool. Default 20.
	MaxOpenConns int `koanf:"max_open_conns"`
	// MaxIdleConns bounds what the pool keeps open. Default 10.
	MaxIdleConns int `koanf:"max_idle_conns"`
	// ConnMaxLifetime is the oldest a connection gets. Default 30 m; 0 is no
	// limit.
	ConnMaxLifetime time.Duration `koanf:"conn_max_lifetime"`
	// ConnectTimeout bounds how long start-up waits for the database. Default
	// 15 s.
	ConnectTimeout time.Duration `koanf:"connect_timeout"`
	// BusyTimeout is how long an SQLite statement waits for a lock. Default 5 s.
	BusyTimeout time.Duration `koanf:"busy_timeout"`
	// Migrate brings the service's own tables up to date at start. Off, start-up
	// only checks them: run the program's command "migrate" with a role that may
	// change the schema. Default false.
	Migrate bool `koanf:"migrate"`
}

// Delivery is the policy of every handler that sets none of its own.
type Delivery struct {
	// MaxAttempts is how often a message is tried in one delivery. Without
	// Redeliver that is all; then it is dead-lettered. Default 5.
	MaxAttempts int `koanf:"max_attempts"`
	// MaxElapsed bounds the time from the first attempt of a delivery to the start
	// of its last. Default 0: no bound but MaxAttempts.
	MaxElapsed time.Duration `koanf:"max_elapsed"`
	// Redeliver are the delays of the second level: a message whose attempts are
	// used up goes back to the broker, which holds it for the first delay, then its
	// attempts begin anew, and so on; after the last one it is dead-lettered. A
	// crash counts as a delivery. Default none.
	Redeliver []time.Duration `koanf:"redeliver"`
	// TransientBudget is how long errors that are no fault of the message (a
	// deadlock, a database or broker that is away) are retried in process, without
	// consuming attempts; then the message is given back, uncounted. Default 1 m.
	TransientBudget time.Duration `koanf:"transient_budget"`
	// BackoffBase and BackoffCap bound the full-jitter wait between attempts:
	// the nth wait is random in [0, min(cap, base x 2^n)]. Defaults 100 ms, 30 s.
	BackoffBase time.Duration `koanf:"backoff_base"`
	BackoffCap  time.Duration `koanf:"backoff_cap"`
	// HandlerTimeout is one attempt's deadline. Default 30 s.
	HandlerTimeout time.Duration `koanf:"handler_timeout"`
	// Concurrency is how many messages one handler runs at once. Default 10.
	Concurrency int `koanf:"concurrency"`
	// MaxInFlight bounds what one handler has fetched and not settled. Default
	// 0: ten times the concurrency.
	MaxInFlight int `koanf:"max_in_flight"`
	// Lease is how long a silent consumer keeps a message. Default 30 s.
	Lease time.Duration `koanf:"lease"`
	// MaxDeliveries is how often the broker may hand a message out, crashes
	// counted, before it is dead-lettered unrun. Default 10.
	MaxDeliveries int `koanf:"max_deliveries"`
	// NackDelay is how long a message that was given back is held. Default 1 s.
	NackDelay time.Duration `koanf:"nack_delay"`
}

// Dedup is the policy of idempotency keys.
type Dedup struct {
	// Retention is how long the key of a handled event is kept. It must exceed
	// RedeliveryWindow. Default 720 h (30 days).
	Retention time.Duration `koanf:"retention"`
	// RedeliveryWindow is the longest time after which a copy of an event may
	// still come: the broker's retention and how long a dead letter waits for its
	// replay. Default 336 h (14 days).
	RedeliveryWindow time.Duration `koanf:"redelivery_window"`
	// Lease is how long a claim holds while its handler runs, where the key is
	// not part of the handler's own transaction. Default 0: the handler's
	// timeout and a minute.
	Lease time.Duration `koanf:"lease"`
	// CleanupInterval is how often expired keys are deleted. Default 10 m.
	CleanupInterval time.Duration `koanf:"cleanup_interval"`
}

// Outbox is the relay's policy. Zero leaves the relay's own default.
type Outbox struct {
	// PollInterval is how often the relay looks when nothing woke it.
	PollInterval time.Duration `koanf:"poll_interval"`
	// BatchSize is how many rows one claim takes.
	BatchSize int `koanf:"batch_size"`
	// PublishTimeout bounds one publish to the broker.
	PublishTimeout time.Duration `koanf:"publish_timeout"`
	// MaxAttempts is how often a row may fail, while others go through, before it
	// is parked; negative: never for that.
	MaxAttempts int `koanf:"max_attempts"`
	// Parallelism is how many batches are under way at once.
	Parallelism int `koanf:"parallelism"`
	// StrictOrder holds the later rows of a key back while an earlier one of it
	// is parked. Default false.
	StrictOrder bool `koanf:"strict_order"`
	// Retention is how long a sent row is kept; 0 deletes it at once.
	Retention time.Duration `koanf:"retention"`
	// StuckAfter is the age of the oldest unsent row from which the service is
	// unready; negative: never.
	StuckAfter time.Duration `koanf:"stuck_after"`
}

// Drain is how a shutdown goes.
type Drain struct {
	// Delay is waited between readiness going off and the intake stopping, for
	// load balancers that look only now and then. Default 0.
	Delay time.Duration `koanf:"delay"`
	// Timeout bounds the whole drain after Delay: intake, handlers, outbox.
	// Default 25 s, below the usual 30 s between SIGTERM and SIGKILL.
	Timeout time.Duration `koanf:"timeout"`
}

// Log is how the service logs.
type Log struct {
	// Level is "debug", "info", "warn" or "error". Default "info".
	Level string `koanf:"level"`
	// Format is "json" or "text". Default "json".
	Format string `koanf:"format"`
}

// Trace is where spans go.
type Trace struct {
	// Endpoint is the OTLP/HTTP collector's URL, such as
	// http://jaeger:4318. Empty: spans are made and carried on, not exported.
	Endpoint string `koanf:"endpoint"`
	// Ratio is the share of new traces that are sampled, 0 to 1. A trace that
	// comes with a sampling decision keeps it. Default 1.
	Ratio float64 `koanf:"ratio"`
}

// Common returns p. Settings that embed a Profile have this method too: it is how
// framework/program finds what all services read.
func (p Profile) Common() Profile { return p }

const (
	defaultHTTPAddr  = "127.0.0.1:8080"
	defaultAdminAddr = "127.0.0.1:9080"
	defaultConnLife  = 30 * time.Minute
)

// Default returns the profile in which no key is set.
func Default() Profile {
	p := Profile{}.WithDefaults()
	p.HTTP.Addr, p.Admin.Addr = defaultHTTPAddr, defaultAdminAddr
	p.Database.ConnMaxLifetime = defaultConnLife
	p.Trace.Ratio = 1
	return p
}

// WithDefaults returns p with every zero field that has a default filled in,
// but for those where zero says something: an address (no listener), a ratio
// (sample nothing), a connection's lifetime (no limit).
func (p Profile) WithDefaults() Profile {
	def(&p.Env, "local")
	def(&p.HTTP.ReadTimeout, 15*time.Second)
	def(&p.HTTP.WriteTimeout, 30*time.Second)
	def(&p.HTTP.IdleTimeout, time.Minute)
	def(&p.HTTP.MaxBodyBytes, 1<<20)
	def(&p.Admin.StatsInterval, 10*time.Second)
	def(&p.Broker.Kind, "memory")
	def(&p.Broker.Dir, ".headrace/redis")
	def(&p.Database.MaxOpenConns, 20)
	def(&p.Database.MaxIdleConns, 10)
	def(&p.Database.ConnectTimeout, 15*time.Second)
	def(&p.Database.BusyTimeout, 5*time.Second)
	def(&p.Delivery.MaxAttempts, 5)
	def(&p.Delivery.BackoffBase, 100*time.Millisecond)
	def(&p.Delivery.BackoffCap, 30*time.Second)
	def(&p.Delivery.TransientBudget, time.Minute)
	def(&p.Delivery.HandlerTimeout, 30*time.Second)
	def(&p.Delivery.Concurrency, 10)
	def(&p.Delivery.Lease, 30*time.Second)
	def(&p.Delivery.MaxDeliveries, 10)
	def(&p.Delivery.NackDelay, time.Second)
	def(&p.Dedup.Retention, 30*24*time.Hour)
	def(&p.Dedup.RedeliveryWindow, 14*24*time.Hour)
	def(&p.Dedup.CleanupInterval, 10*time.Minute)
	def(&p.Drain.Timeout, 25*time.Second)
	def(&p.Log.Level, "info")
	def(&p.Log.Format, "json")
	return p
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports every key whose value can't work, by key, value and remedy.
func (p Profile) Validate() error {
	var errs []error
	bad := func(key string, value any, remedy string) {
		errs = append(errs, fmt.Errorf("config: %s is %#v: %s (%s)", key, value, remedy, EnvName(key)))
	}
	oneOf := func(key, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		bad(key, value, fmt.Sprintf("it must be one of %s%s", quoted(allowed), didYouMean(value, allowed)))
	}
	addr := func(key, value string) {
		if value == "" {
			return
		}
		if _, _, err := net.SplitHostPort(value); err != nil {
			bad(key, value, "write host:port, such as 127.0.0.1:8080, or leave it empty for no listener")
		}
	}
	positive := func(key string, d time.Duration) {
		if d <= 0 {
			bad(key, d.String(), "it must be above 0")
		}
	}
	notNegative := func(key string, d time.Duration) {
		if d < 0 {
			bad(key, d.String(), "it must not be negative")
		}
	}
	atLeastOne := func(key string, n int) {
		if n < 1 {
			bad(key, n, "it must be 1 or more")
		}
	}

	addr("http.addr", p.HTTP.Addr)
	addr("admin.addr", p.Admin.Addr)
	positive("http.read_timeout", p.HTTP.ReadTimeout)
	positive("http.write_timeout", p.HTTP.WriteTimeout)
	positive("http.idle_timeout", p.HTTP.IdleTimeout)
	if p.HTTP.MaxBodyBytes < 1 {
		bad("http.max_body_bytes", p.HTTP.MaxBodyBytes, "it must be 1 or more")
	}
	positive("admin.stats_interval", p.Admin.StatsInterval)
	oneOf("broker.kind", p.Broker.Kind, append(BrokerKinds(), p.Broker.Others...)...)
	p.validateAWS(bad, oneOf)
	p.validateSQL(bad)
	if several := p.Env == "staging" || p.Env == "production"; several && p.Broker.Kind == "redisstream" && p.Broker.URL == "" {
		bad("broker.url", "", "without it each service would start a Redis of its own: set the shared one's address")
	}
	notNegative("broker.retention", p.Broker.Retention)
	oneOf("database.driver", p.Database.Driver, "", "sqlite", "postgres", "mysql")
	if p.Database.Driver != "" && strings.TrimSpace(p.Database.DSN.Reveal()) == "" {
		bad("database.dsn", "", fmt.Sprintf("database.driver is %q, so say where: a file's path for sqlite, a postgres:// URL for postgres, a mysql:// URL for mysql", p.Database.Driver))
	}
	atLeastOne("database.max_open_conns", p.Database.MaxOpenConns)
	if p.Database.MaxIdleConns < 0 {
		bad("database.max_idle_conns", p.Database.MaxIdleConns, "it must not be negative")
	}
	notNegative("database.conn_max_lifetime", p.Database.ConnMaxLifetime)
	positive("database.connect_timeout", p.Database.ConnectTimeout)
	notNegative("database.busy_timeout", p.Database.BusyTimeout)
	atLeastOne("delivery.max_attempts", p.Delivery.MaxAttempts)
	positive("delivery.backoff_base", p.Delivery.BackoffBase)
	if p.Delivery.BackoffCap < p.Delivery.BackoffBase {
		bad("delivery.backoff_cap", p.Delivery.BackoffCap.String(), fmt.Sprintf("it must not be below delivery.backoff_base (%s)", p.Delivery.BackoffBase))
	}
	notNegative("delivery.max_elapsed", p.Delivery.MaxElapsed)
	for _, d := range p.Delivery.Redeliver {
		positive("delivery.redeliver", d)
	}
	positive("delivery.transient_budget", p.Delivery.TransientBudget)
	positive("delivery.handler_timeout", p.Delivery.HandlerTimeout)
	atLeastOne("delivery.concurrency", p.Delivery.Concurrency)
	if p.Delivery.MaxInFlight != 0 && p.Delivery.MaxInFlight < p.Delivery.Concurrency {
		bad("delivery.max_in_flight", p.Delivery.MaxInFlight, fmt.Sprintf("it must be 0 or at least delivery.concurrency (%d)", p.Delivery.Concurrency))
	}
	if p.Delivery.Lease < time.Second {
		bad("delivery.lease", p.Delivery.Lease.String(), "it must be 1s or more")
	}
	atLeastOne("delivery.max_deliveries", p.Delivery.MaxDeliveries)
	notNegative("delivery.nack_delay", p.Delivery.NackDelay)
	positive("dedup.redelivery_window", p.Dedup.RedeliveryWindow)
	if p.Dedup.Retention <= p.Dedup.RedeliveryWindow {
		bad("dedup.retention", p.Dedup.Retention.String(), fmt.Sprintf("it must exceed dedup.redelivery_window (%s), or a late copy is handled again", p.Dedup.RedeliveryWindow))
	}
	notNegative("dedup.lease", p.Dedup.Lease)
	positive("dedup.cleanup_interval", p.Dedup.CleanupInterval)
	notNegative("outbox.poll_interval", p.Outbox.PollInterval)
	notNegative("outbox.publish_timeout", p.Outbox.PublishTimeout)
	notNegative("outbox.retention", p.Outbox.Retention)
	if p.Outbox.BatchSize < 0 {
		bad("outbox.batch_size", p.Outbox.BatchSize, "it must not be negative")
	}
	if p.Outbox.Parallelism < 0 {
		bad("outbox.parallelism", p.Outbox.Parallelism, "it must not be negative")
	}
	notNegative("drain.delay", p.Drain.Delay)
	positive("drain.timeout", p.Drain.Timeout)
	oneOf("log.level", strings.ToLower(p.Log.Level), "debug", "info", "warn", "error")
	oneOf("log.format", p.Log.Format, "json", "text")
	if p.Trace.Ratio < 0 || p.Trace.Ratio > 1 {
		bad("trace.ratio", p.Trace.Ratio, "it must be between 0 and 1")
	}
	return errors.Join(errs...)
}
