package brokertest

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/headrace-go/headrace/framework/broker"
)

// Harness is what an adapter brings.
type Harness struct {
	// Start brings up storage of the test's own and has it torn down by
	// t.Cleanup. It is called a few times.
	Start func(t *testing.T) *Storage
	// Latency is how long the adapter may take to hand over what another
	// consumer released. Default 2 s.
	Latency time.Duration
	// Backlog is how many messages the test of a large backlog publishes.
	// Default 100,000, or 5,000 with -short.
	Backlog int
	// Unordered says that messages without a key come in any order, even to one
	// worker.
	Unordered bool
	// NoAge says that the broker tells no age of a backlog that nobody consumes.
	NoAge bool
}

// Storage is one empty broker.
type Storage struct {
	// Open returns a connection to the storage, closed by t.Cleanup. For a broker
	// that lives in one process it may always be the same.
	Open func(t testing.TB) broker.Broker
	// Addr is what the function given to Main opens in another process. Empty:
	// no other process can reach the storage.
	Addr string
	// Stop takes the broker away as a crash would, Restart brings it back with
	// what it held. Nil: it can't be stopped.
	Stop, Restart func()
	// PutMalformed writes an entry with these bytes that can't be decoded. Nil:
	// nothing but the adapter can write.
	PutMalformed func(t testing.TB, topic string, raw []byte)
	// Stock returns the stock Watermill publisher and subscriber on this
	// storage, closed by t.Cleanup. Nil: there is none that shares storage.
	// Where a group gets only what is published after it was made, the publisher
	// serves the groups that are there.
	Stock func(t testing.TB, group string) (message.Publisher, message.Subscriber)
	// StockNeedsPayload says that stock can't carry an empty payload.
	StockNeedsPayload bool
}

// Run runs the whole suite against one storage, and what must stop its broker
// against another.
func Run(t *testing.T, h Harness) {
	if h.Latency == 0 {
		h.Latency = 2 * time.Second
	}
	if h.Backlog == 0 {
		h.Backlog = 100_000
		if testing.Short() {
			h.Backlog = 5_000
		}
	}
	s := h.Start(t)
	f := s.Open(t).Features()
	t.Run("Universal", func(t *testing.T) {
		t.Parallel()
		universal(t, s, !h.Unordered)
	})
	cases := []struct {
		name string
		on   bool
		run  func(*testing.T, env)
	}{
		{"PublishAndReceive", true, testPublishAndReceive},
		{"PublishErrors", true, testPublishErrors},
		{"GroupsEachGetEverything", true, testGroups},
		{"NewGroupGetsTheBacklog", f.ReplayForNewGroup, testNewGroup},
		{"MembersShareOneGroup", f.CompetingConsumers, testMembers},
		{"NamesNeverShareStorage", true, testNames},
		{"NackDelay", f.Delay, testNackDelay},
		{"ReleasedDeliveriesAreUncounted", f.DeliveryCount, testReleased},
		{"OrderPerKey", f.OrderPerKey, testOrder},
		{"DelayedKeyBlocksNoOther", f.OrderPerKey, testDelayedKey},
		{"BusyKeyBlocksNoOther", f.OrderPerKey, testBusyKey},
		{"BacklogStaysOutside", true, testBacklog},
		{"Drain_B08", true, testDrain},
		{"RouterDrain_B08", true, testRouterDrain},
		{"DrainDeadline", true, testDrainDeadline},
		{"CancelDrains", true, testCancel},
		{"Close_B14", true, testClose},
		{"LongHandlerRunsOnce_B09_B16", true, testLongHandler},
		{"ConcurrencyOneTwoReplicas_B09", f.CompetingConsumers, testTwoReplicas},
		{"Crash", s.Addr != "", testCrash},
		{"CountSurvivesCrash", s.Addr != "" && f.DeliveryCount, testCountAcrossCrash},
		{"CrashKeepsOrder", s.Addr != "" && f.OrderPerKey, testCrashOrder},
		{"Malformed_B19", s.PutMalformed != nil, testMalformed},
		{"MalformedKept_B19", s.PutMalformed != nil, testMalformedKept},
		{"Stock", s.Stock != nil, testStock},
		{"Admin", true, testAdmin},
		{"Config", true, testConfig},
	}
	for _, c := range cases {
		if !c.on {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, env{Storage: s, h: h, b: s.Open(t)})
		})
	}
	if s.Stop != nil {
		t.Run("BrokerStopsAndComesBack_B34", func(t *testing.T) {
			t.Parallel()
			own := h.Start(t)
			testRestart(t, env{Storage: own, h: h, b: own.Open(t)})
		})
	}
}

// universal runs Watermill's own suite.
func universal(t *testing.T, s *Storage, ordered bool) {
	open := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		b := s.Open(t)
		sub, err := b.Subscriber(broker.SubscriberConfig{
			Group: group, Concurrency: 1, NackDelay: -1, DrainTimeout: time.Second, Logger: quiet,
		})
		if err != nil {
			t.Fatal(err)
		}
		// The suite leaves some of them open.
		t.Cleanup(func() { _ = sub.Close() })
		return b.Publisher(), sub
	}
	tests.TestPubSub(t, tests.Features{
		ConsumerGroups:                      true,
		GuaranteedOrder:                     ordered,
		GuaranteedOrderWithSingleSubscriber: ordered,
		Persistent:                          true,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) { return open(t, "universal") }, open)
}
