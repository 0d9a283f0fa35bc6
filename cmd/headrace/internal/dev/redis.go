package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/localredis"
)

// redisKeeper keeps a local Redis up until it is closed: one that dies is started
// again on its port and folder, so that the services find it where it was.
type redisKeeper struct {
	url    string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of the server's Close, once done is closed
}

// redisBackoff spaces the attempts to start a Redis again.
const redisBackoff = 2 * time.Second

func keepRedis(ctx context.Context, folder string, say func(format string, args ...any)) (*redisKeeper, error) {
	o := localredis.Options{Dir: folder, Logger: slog.New(slog.DiscardHandler)}
	srv, err := localredis.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(srv.URL())
	if err == nil {
		o.Port, err = strconv.Atoi(u.Port())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the address %q of the local Redis: %w", srv.URL(), err), srv.Close())
	}
	say("%s at %s", srv.Kind(), srv.URL())
	if srv.Kind() == localredis.KindEmbedded {
		say("no redis-server on PATH: an in-process Redis, saved to %s about once a second; a kill -9 of this process loses the events of the last one", folder)
	}
	k := &redisKeeper{url: srv.URL(), done: make(chan struct{})}
	ctx, k.cancel = context.WithCancel(ctx)
	go func() {
		defer close(k.done)
		for srv != nil {
			select {
			case <-ctx.Done():
				k.err = srv.Close()
				return
			case <-srv.Done():
			}
			say("redis-server ended (%s); starting it again", ending(srv.Err()))
			srv = again(ctx, o, say)
		}
	}()
	return k, nil
}

// again starts the server until that works. It returns nil when ctx ends first.
func again(ctx context.Context, o localredis.Options, say func(format string, args ...any)) *localredis.Server {
	for {
		srv, err := localredis.Start(ctx, o)
		if err == nil {
			say("redis-server is up again")
			return srv
		}
		if ctx.Err() == nil {
			say("redis-server does not start (%s); trying again in %s", err, redisBackoff)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(redisBackoff):
		}
	}
}

// Close stops the server and waits for its end.
func (k *redisKeeper) Close() error {
	k.cancel()
	<-k.done
	return k.err
}

// checkRedis tells whether the Redis that was named by hand is one, and is there,
// and is wanted.
func checkRedis(ctx context.Context, address, env string, all map[string]config.Profile) error {
	if address == "" {
		return nil
	}
	opts, err := redis.ParseURL(address)
	if err != nil {
		return errors.New("--redis is no address of a Redis: write redis://user:password@host:6379/0") // the value may hold a password
	}
	wanted := false
	for _, p := range all {
		wanted = wanted || p.Broker.Kind == "redisstream"
	}
	if !wanted {
		return fmt.Errorf("--redis is given, but no service of profile %q has the broker redisstream: leave it out, or choose another profile with --env", env)
	}
	opts.MaxRetries, opts.DialerRetries, opts.DialTimeout = -1, 1, answerWithin
	client := redis.NewClient(opts)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := client.Ping(ctx).Err(); err != nil {
		return fmt.Errorf("--redis: no Redis answers at %s: %w: start it, or leave --redis out to have one started", opts.Addr, err)
	}
	return nil
}
