package redisstream

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// reader does the blocking reads of one subscription. On a single server it
// keeps a connection of its own, whose id lets a drain end a read in progress;
// on a cluster the read ends by itself after BlockTime.
type reader struct {
	client redis.UniversalClient
	single *redis.Client // nil on a cluster
	conn   *redis.Conn
	id     atomic.Int64 // the connection's id while a read may block; else 0
	known  int64
}

func newReader(client redis.UniversalClient) *reader {
	r := &reader{client: client}
	r.single, _ = client.(*redis.Client)
	return r
}

// read runs XREADGROUP. When ctx ends it comes back soon, with what the server
// had handed out by then. It is called from one goroutine.
func (r *reader) read(ctx context.Context, args *redis.XReadGroupArgs) ([]redis.XStream, error) {
	if r.single == nil {
		return r.client.XReadGroup(ctx, args).Result()
	}
	if r.conn == nil {
		r.conn = r.single.Conn()
	}
	if r.known == 0 {
		// Without the right to ask, a drain waits for BlockTime.
		id, err := r.conn.ClientID(ctx).Result()
		var answer redis.Error
		switch {
		case err == nil:
			r.known = id
		case errors.As(err, &answer):
			r.known = -1
		default:
			r.reset()
			return nil, err
		}
	}
	r.id.Store(r.known)
	stop := context.AfterFunc(ctx, func() { r.unblock(context.WithoutCancel(ctx)) })
	streams, err := r.conn.XReadGroup(ctx, args).Result()
	r.id.Store(0)
	stop()
	var answer redis.Error
	if err != nil && !errors.As(err, &answer) {
		r.reset()
	}
	return streams, err
}

// unblock ends a read in progress. The read may be about to start, so this is
// repeated until it is over.
func (r *reader) unblock(ctx context.Context) {
	for {
		id := r.id.Load()
		if id <= 0 {
			return
		}
		if r.client.ClientUnblock(ctx, id).Err() != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// reset gives the connection up; the next read takes another.
func (r *reader) reset() {
	r.known = 0
	if r.conn != nil {
		_ = r.conn.Close()
		r.conn = nil
	}
}
