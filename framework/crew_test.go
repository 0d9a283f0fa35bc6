package framework

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCrew(t *testing.T) {
	c := newCrew()
	ran := make(chan int, 10)
	c.do(func() { ran <- 0 })
	require.Equal(t, 0, <-ran, "before its start, on a goroutine of its own")
	c.start(2)
	// However often an attempt ends its goroutine, the crew is complete again.
	for range 20 {
		var gone sync.WaitGroup
		for range 3 {
			gone.Add(1)
			c.do(func() { defer gone.Done(); runtime.Goexit() })
		}
		gone.Wait()
	}
	require.ErrorIs(t, c.wait(func() error { runtime.Goexit(); return nil }), errGoroutineEnded)
	require.NoError(t, c.wait(func() error { return nil }))
	block := make(chan struct{})
	for i := range 5 {
		c.do(func() { <-block; ran <- i })
	}
	close(block)
	sum := 0
	for range 5 {
		sum += <-ran
	}
	require.Equal(t, 10, sum)
	c.stop()
	ended := make(chan struct{})
	go func() { c.hold.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		require.Fail(t, "the crew does not end")
	}
	c.do(func() { ran <- 7 })
	require.Equal(t, 7, <-ran, "after its end too")
}
