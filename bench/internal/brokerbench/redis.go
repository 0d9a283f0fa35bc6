package brokerbench

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	stock "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/broker/redisstream"
	"github.com/headrace-go/headrace/framework/inbox/redisinbox"
	"github.com/headrace-go/headrace/pkg/events"
)

const group = "g"

func (b *bench) redisSubjects(ctx context.Context) ([]subject, error) {
	ours, err := redisstream.Open(ctx, redisstream.Config{URL: b.Redis, Prefix: b.prefix, Logger: quiet})
	if err != nil {
		return nil, err
	}
	b.onClose(func() { _ = ours.Close() })
	store, err := redisinbox.New(redisinbox.Config{Client: b.redis, Prefix: b.prefix + "dedup:"})
	if err != nil {
		return nil, err
	}
	b.onClose(func() { b.clean(context.WithoutCancel(ctx)) })
	// filled is a job on a topic that holds n messages.
	filled := func(run func(ctx context.Context, n int, m *meter, topic string) error) job {
		return func(ctx context.Context, n int, m *meter) error {
			topic := "order.placed-" + events.NewID()
			if err := fill(ctx, ours.Publisher(), topic, n); err != nil {
				return err
			}
			defer b.redis.Del(ctx, b.prefix+topic)
			return run(ctx, n, m, topic)
		}
	}
	stockConsume := filled(b.stockRedisConsume)
	byHand := filled(b.handRedisConsume)
	return []subject{
		{
			broker: "Redis Streams", what: "publish", share: 1,
			ours: func(ctx context.Context, n int, m *meter) error {
				topic := events.NewID()
				defer b.redis.Del(ctx, b.prefix+topic)
				return publishing(n, m, func(msgs []*message.Message) error { return ours.Publisher().PublishBatch(ctx, topic, msgs) })
			},
			stock: b.stockRedisPublish,
			hand:  b.handRedisPublish,
		},
		{
			broker: "Redis Streams", what: "consume and ack", share: 1,
			ours: filled(func(ctx context.Context, n int, m *meter, topic string) error {
				sub, err := ours.Subscriber(broker.SubscriberConfig{Group: group, Logger: quiet})
				if err != nil {
					return err
				}
				return draining(ctx, n, m, sub, topic, true)
			}),
			stock: stockConsume,
			hand:  byHand,
		},
		{
			broker: "Redis Streams", what: "the same with the whole stack and duplicates known in Redis", share: 2,
			ours: filled(func(ctx context.Context, n int, m *meter, topic string) error {
				c := withStack(ours, store)
				c.Profile.Delivery.Concurrency, c.Profile.Delivery.MaxInFlight = 50, 500
				return app(ctx, n, m, c, topic, plain)
			}),
			stock: stockConsume,
			hand:  byHand,
		},
	}, nil
}

// clean removes the run's keys.
func (b *bench) clean(ctx context.Context) {
	keys := b.redis.Scan(ctx, 0, b.prefix+"*", 1000).Iterator()
	var batch []string
	for keys.Next(ctx) {
		if batch = append(batch, keys.Val()); len(batch) == 1000 {
			b.redis.Unlink(ctx, batch...)
			batch = batch[:0]
		}
	}
	if len(batch) > 0 {
		b.redis.Unlink(ctx, batch...)
	}
}

func (b *bench) stockRedisPublish(ctx context.Context, n int, m *meter) error {
	topic := b.prefix + events.NewID()
	defer b.redis.Del(ctx, topic)
	pub, err := stock.NewPublisher(stock.PublisherConfig{Client: b.redis}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	// Its Close would close the client.
	return publishing(n, m, func(msgs []*message.Message) error { return pub.Publish(topic, msgs...) })
}

func (b *bench) handRedisPublish(ctx context.Context, n int, m *meter) error {
	topic := b.prefix + events.NewID()
	defer b.redis.Del(ctx, topic)
	codec := stock.DefaultMarshallerUnmarshaller{}
	return publishing(n, m, func(msgs []*message.Message) error {
		pipe := b.redis.Pipeline()
		for _, msg := range msgs {
			fields, err := codec.Marshal(topic, msg)
			if err != nil {
				return err
			}
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: fields})
		}
		_, err := pipe.Exec(ctx)
		return err
	})
}

func (b *bench) stockRedisConsume(ctx context.Context, n int, m *meter, topic string) error {
	opts, err := redis.ParseURL(b.Redis)
	if err != nil {
		return err
	}
	sub, err := stock.NewSubscriber(stock.SubscriberConfig{
		Client: redis.NewClient(opts), ConsumerGroup: group, DisableIndefiniteInitialBlock: true,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	return draining(ctx, n, m, sub, b.prefix+topic, false)
}

func (b *bench) handRedisConsume(ctx context.Context, n int, m *meter, topic string) error {
	stream := b.prefix + topic
	codec := stock.DefaultMarshallerUnmarshaller{}
	m.start()
	defer m.stop()
	if err := b.redis.XGroupCreateMkStream(ctx, stream, group, "0").Err(); err != nil {
		return err
	}
	for n > 0 {
		got, err := b.redis.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: group, Consumer: "c", Streams: []string{stream, ">"}, Count: 100, Block: time.Second,
		}).Result()
		if err != nil {
			return err
		}
		if len(got) == 0 {
			return errors.New("the stream ended early")
		}
		ids := make([]string, 0, len(got[0].Messages))
		for _, entry := range got[0].Messages {
			if _, err := codec.Unmarshal(entry.Values); err != nil {
				return err
			}
			ids = append(ids, entry.ID)
		}
		if err := b.redis.XAck(ctx, stream, group, ids...).Err(); err != nil {
			return err
		}
		n -= len(ids)
	}
	return nil
}
