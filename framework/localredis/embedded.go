package localredis

import (
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// startEmbedded runs miniredis. Its keys expire only when its clock is moved,
// so that is done here, once a second.
func startEmbedded() (*Server, error) {
	m := miniredis.NewMiniRedis()
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("localredis: start the embedded server: %w", err)
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				m.FastForward(time.Second)
			}
		}
	}()
	return &Server{
		url:  "redis://" + m.Addr() + "/0",
		kind: KindEmbedded,
		stop: func() error {
			close(quit)
			<-done
			m.Close()
			return nil
		},
	}, nil
}
