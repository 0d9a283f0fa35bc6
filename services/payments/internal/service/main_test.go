package service

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/headrace-go/headrace/framework"
)

// asProgram, when set, makes the test binary the service itself: tests that kill
// a process start it so.
const asProgram = "PAYMENTS_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(program())
	}
	goleak.VerifyTestMain(closesIdle{m})
}

// program runs the service and prints its address once it is ready.
func program() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := Main{Environ: os.Environ(), Stdout: os.Stderr, Started: func(a *framework.App) {
		fmt.Println("ready " + a.HTTPAddr())
	}}.Run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// closesIdle ends the client's idle connections before leaks are looked for.
type closesIdle struct{ m *testing.M }

func (c closesIdle) Run() int {
	code := c.m.Run()
	http.DefaultClient.CloseIdleConnections()
	return code
}
