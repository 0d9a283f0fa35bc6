package rabbitmq

import (
	"context"
	"fmt"
	"math"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/headrace-go/headrace/framework/broker"
)

// topology remembers what was declared by this process.
type topology struct {
	turn sync.Mutex // one declares at a time

	mu     sync.Mutex
	topics map[string]bool            // by topic: its exchange, or its own queue where it has no other
	own    map[string]bool            // by topic: its own queue
	groups map[string]map[string]bool // topic → groups
}

func (t *topology) note(m *map[string]bool, name string, there bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if *m == nil {
		*m = make(map[string]bool)
	}
	if there {
		(*m)[name] = true
	} else {
		delete(*m, name)
	}
}

func (t *topology) has(m *map[string]bool, name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return (*m)[name]
}

func (t *topology) addGroup(sub broker.Subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups == nil {
		t.groups = make(map[string]map[string]bool)
	}
	if t.groups[sub.Topic] == nil {
		t.groups[sub.Topic] = make(map[string]bool)
	}
	t.groups[sub.Topic][sub.Group] = true
}

func (t *topology) groupsOf(topic string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for g := range t.groups[topic] {
		out = append(out, g)
	}
	return out
}

// EnsureTopology declares exchanges, queues and bindings where they are missing.
// One that is there with other properties is an error.
func (b *Broker) EnsureTopology(ctx context.Context, subs ...broker.Subscription) error {
	for _, sub := range subs {
		if sub.Topic == "" || sub.Group == "" {
			return fmt.Errorf("rabbitmq: topic %q, group %q: name both", sub.Topic, sub.Group)
		}
		if b.closed.Load() {
			return fmt.Errorf("rabbitmq: %w", broker.ErrClosed)
		}
		if err := b.ensure(ctx, sub); err != nil {
			return fmt.Errorf("rabbitmq: topic %q, group %q: %w", sub.Topic, sub.Group, err)
		}
	}
	return nil
}

func (b *Broker) ensure(ctx context.Context, sub broker.Subscription) error {
	if ownOnly(sub.Topic) {
		return b.ensureOwn(ctx, sub.Topic)
	}
	b.topo.turn.Lock()
	defer b.topo.turn.Unlock()
	exchange, queue := b.names.exchange(sub.Topic), b.names.queue(sub.Topic, sub.Group)
	err := b.main.with(ctx, func(ch *amqp.Channel) error {
		if err := declareExchange(ch, exchange); err != nil {
			return err
		}
		args := b.queueArgs()
		if b.cfg.SingleActive {
			args["x-single-active-consumer"] = true
		}
		if err := declareQueue(ch, queue, args); err != nil {
			return err
		}
		if err := ch.QueueBind(queue, "", exchange, false, nil); err != nil {
			return fmt.Errorf("bind queue %q to exchange %q: %w", queue, exchange, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.topo.note(&b.topo.topics, sub.Topic, true)
	b.topo.addGroup(sub)
	return nil
}

// ensureTopic makes what a publish to the topic needs, once.
func (b *Broker) ensureTopic(ctx context.Context, topic string) error {
	if b.topo.has(&b.topo.topics, topic) {
		return nil
	}
	if ownOnly(topic) {
		return b.ensureOwn(ctx, topic)
	}
	b.topo.turn.Lock()
	defer b.topo.turn.Unlock()
	err := b.main.with(ctx, func(ch *amqp.Channel) error { return declareExchange(ch, b.names.exchange(topic)) })
	if err == nil {
		b.topo.note(&b.topo.topics, topic, true)
	}
	return err
}

// ensureOwn makes the topic's own queue.
func (b *Broker) ensureOwn(ctx context.Context, topic string) error {
	b.topo.turn.Lock()
	defer b.topo.turn.Unlock()
	err := b.main.with(ctx, func(ch *amqp.Channel) error { return declareQueue(ch, b.names.own(topic), b.queueArgs()) })
	if err != nil {
		return err
	}
	b.topo.note(&b.topo.own, topic, true)
	if ownOnly(topic) {
		b.topo.note(&b.topo.topics, topic, true)
	}
	return nil
}

// forgetTopic has everything of the topic declared again.
func (b *Broker) forgetTopic(topic string) {
	b.topo.note(&b.topo.topics, topic, false)
	b.topo.note(&b.topo.own, topic, false)
}

// queueArgs are the properties of every queue.
func (b *Broker) queueArgs() amqp.Table {
	args := amqp.Table{
		amqp.QueueTypeArg: amqp.QueueTypeQuorum,
		// With a limit a message that is given back returns to the head of its
		// queue, without one to its end; and RabbitMQ 4 drops after 20 deliveries
		// where none is set.
		"x-delivery-limit": int32(math.MaxInt32),
	}
	if b.cfg.Replicas > 0 {
		args["x-quorum-initial-group-size"] = int32(b.cfg.Replicas)
	}
	return args
}

func declareExchange(ch *amqp.Channel, name string) error {
	if err := ch.ExchangeDeclare(name, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
		return mismatch(err, "exchange", name, "a durable fanout")
	}
	return nil
}

func declareQueue(ch *amqp.Channel, name string, args amqp.Table) error {
	if _, err := ch.QueueDeclare(name, true, false, false, false, args); err != nil {
		return mismatch(err, "queue", name, fmt.Sprintf("a durable queue with %v", args))
	}
	return nil
}

func mismatch(err error, what, name, want string) error {
	err = fmt.Errorf("declare %s %q: %w", what, name, err)
	if code(err) == amqp.PreconditionFailed {
		return fmt.Errorf("%w: it should be %s: delete the one that is there, once it is empty, or choose another prefix", err, want)
	}
	return err
}
