package program_test

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/program"
	"github.com/headrace-go/headrace/pkg/events"
)

// explain shows the handlers with the sources of their numbers, on a broker and a
// database that do not answer, and says why a service would not start.
func TestExplainCommand(t *testing.T) {
	t.Parallel()
	broken := events.Define[struct{}]("lamp.broken", "1.0")
	p := lampsProgram()
	p.Build = func(_ context.Context, _ settings, base framework.Config) (*framework.App, error) {
		a, err := framework.New(base)
		if err != nil {
			return nil, err
		}
		if err := base.DB.QueryRow("SELECT COUNT(*) FROM rooms").Scan(new(int)); err != nil {
			return nil, err
		}
		framework.Handle(a, broken, "replace", func(context.Context, events.Event[struct{}]) error { return nil }, framework.Timeout(time.Second))
		return a, a.Validate()
	}
	nowhere := []string{
		"HEADRACE_ENV=test", "HEADRACE_BROKER_KIND=redisstream", "HEADRACE_BROKER_URL=redis://127.0.0.1:1/0",
		"HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=postgres://127.0.0.1:1/nothing", "HEADRACE_DELIVERY_MAX_ATTEMPTS=3",
	}
	run := func(args []string, environ ...string) (string, error) {
		var out bytes.Buffer
		err := p.Run(t.Context(), program.Call{Args: args, Environ: append(nowhere, environ...), Stdout: &out, Stderr: &out})
		return out.String(), err
	}
	text, err := run([]string{"explain"})
	require.NoError(t, err)
	require.Contains(t, text, "smart-lamps on redisstream, profile test")
	require.Contains(t, text, "group smart-lamps.replace")

	text, err = run([]string{"explain", "--json"})
	require.NoError(t, err)
	var x framework.Explanation
	require.NoError(t, json.Unmarshal([]byte(text), &x))
	sources := map[string]config.Source{}
	for _, n := range x.Handlers[0].Numbers {
		sources[n.Name] = n.Source
	}
	require.Equal(t, config.FromEnvironment, sources["attempts in a delivery"])
	require.Equal(t, framework.FromCode, sources["timeout of an attempt"])
	require.Equal(t, config.FromDefault, sources["lease"])

	text, err = run([]string{"explain"}, "HEADRACE_DELIVERY_REDELIVER=1s,1s", "HEADRACE_DELIVERY_MAX_DELIVERIES=2")
	require.ErrorContains(t, err, "smart-lamps would not start: 1 findings")
	require.Contains(t, text, "redeliveries-above-limit")
	_, err = run([]string{"explain"}, "HEADRACE_DELIVERY_LEASE=soon")
	require.ErrorContains(t, err, "delivery.lease")
}
