package redisinbox

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/testenv"
	"github.com/headrace-go/headrace/middleware"
)

// Many callers share their trips, whether the keys lie on one server or not; one
// whose key holds something else fails alone.
func TestCallersShareTrips(t *testing.T) {
	server := testenv.Redis(t)
	for _, apart := range []bool{false, true} {
		t.Run(fmt.Sprintf("apart=%t", apart), func(t *testing.T) {
			client := server.Client()
			require.NoError(t, client.ScriptFlush(t.Context()).Err())
			s, err := New(Config{Client: client, Prefix: fmt.Sprintf("share-%t:", apart)})
			require.NoError(t, err)
			s.claims.apart.Store(apart)
			s.commits.apart.Store(apart)
			require.NoError(t, client.LPush(t.Context(), s.cfg.Prefix+"17", "a list").Err())
			var wg sync.WaitGroup
			for i := range 300 {
				wg.Go(func() {
					key := fmt.Sprint(i)
					c, err := s.Claim(t.Context(), key, time.Minute)
					if i == 17 {
						if err == nil {
							t.Error("a key of another type was claimed")
						}
						return
					}
					if err != nil || c.State != middleware.ClaimAcquired {
						t.Errorf("%s: %v, %v", key, c.State, err)
						return
					}
					if again, err := s.Claim(t.Context(), key, time.Minute); err != nil || again.State != middleware.ClaimBusy || again.RetryAfter <= 0 {
						t.Errorf("%s, claimed twice: %+v, %v", key, again, err)
					}
					if err := s.Commit(t.Context(), c, time.Hour); err != nil {
						t.Errorf("%s: %v", key, err)
					}
					if done, err := s.Claim(t.Context(), key, time.Minute); err != nil || done.State != middleware.ClaimDone {
						t.Errorf("%s, committed: %v, %v", key, done.State, err)
					}
				})
			}
			wg.Wait()
		})
	}
}
