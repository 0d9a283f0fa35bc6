package program_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/framework/program"
	"github.com/headrace-go/headrace/pkg/events"
)

// needy is a service whose one handler needs much of its broker.
func needy() program.Program[settings] {
	type thing struct{ N int }
	made := events.Define[thing]("thing.made", "1.0")
	profile := func(broker, database string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte("broker: " + broker + "\ndatabase: " + database + "\nlamps: {rooms: [hall]}\n")}
	}
	return program.Program[settings]{
		Name: "needy",
		Files: fstest.MapFS{
			"config/cloud.yaml":  profile("{kind: sns}", "{driver: postgres}"),
			"config/shared.yaml": profile("{kind: sql}", "{driver: postgres}"),
			"config/redis.yaml":  profile("{kind: redisstream}", `{driver: sqlite, dsn: "things.db"}`),
		},
		Build: func(_ context.Context, s settings, base framework.Config) (*framework.App, error) {
			a, err := framework.New(base)
			if err != nil {
				return nil, err
			}
			framework.HandleTx(a, made, "keep", func(context.Context, *sql.Tx, events.Event[thing]) error { return nil }, framework.OrderByKey(), framework.NeedDelay(2*time.Hour),
				framework.NeedPayload(400<<10), framework.NeedReplay())
			return a, a.Validate()
		},
	}
}

func TestNeedsAgainstEachBroker(t *testing.T) {
	t.Parallel()
	report := func(env string, more ...string) program.NeedsReport {
		t.Helper()
		out, err := programtest.Command(t, needy(), append([]string{"HEADRACE_ENV=" + env}, more...), "needs", "--json")
		require.NoError(t, err)
		var r program.NeedsReport
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
		require.Equal(t, []string{"needy", env}, []string{r.Service, r.Env})
		return r
	}
	met := func(r program.NeedsReport) map[string]framework.Met {
		all := map[string]framework.Met{}
		for _, n := range r.Needs {
			all[n.Need] = n.Met
		}
		return all
	}
	const order, delay, payload, replay, counted = "order per key", "delay of 2h0m0s", "events of 409600 bytes", "replay for a new group", "deliveries counted"

	r := report("shared")
	require.Equal(t, map[string]framework.Met{order: "yes", delay: "yes", payload: "yes", replay: "yes", counted: "yes"}, met(r))
	require.Empty(t, r.Refused)
	require.Equal(t, []program.MissingSetting{
		{Key: "broker.url", Env: "HEADRACE_BROKER_URL"}, {Key: "database.dsn", Env: "HEADRACE_DATABASE_DSN"},
	}, r.Missing)

	r = report("redis")
	require.Equal(t, map[string]framework.Met{order: "partly", delay: "emulated", payload: "yes", replay: "yes", counted: "yes"}, met(r))
	require.Empty(t, r.Refused)
	require.Empty(t, r.Missing)

	r = report("cloud")
	require.Equal(t, map[string]framework.Met{order: "no", delay: "yes", payload: "no", replay: "no", counted: "yes"}, met(r))
	require.Len(t, r.Refused, 3)
	out, err := programtest.Command(t, needy(), []string{"HEADRACE_ENV=cloud"}, "needs")
	require.ErrorIs(t, err, program.ErrNeedsUnmet)
	for _, said := range []string{"profile cloud, broker sns", "replay for a new group", "broker.aws.claim_check_url", "refused: handler \"keep\"", "HEADRACE_DATABASE_DSN"} {
		require.Contains(t, out, said)
	}

	// The emulations and FIFO queues are a matter of configuration; replay is not.
	r = report("cloud", "HEADRACE_BROKER_AWS_FIFO=true", "HEADRACE_BROKER_AWS_CLAIM_CHECK_URL=s3://bucket?region=eu-central-1")
	require.Equal(t, map[string]framework.Met{order: "yes", delay: "yes", payload: "emulated", replay: "no", counted: "yes"}, met(r))
	require.Len(t, r.Refused, 1)

	// What is wrong and not merely missing stays an error.
	_, err = programtest.Command(t, needy(), []string{"HEADRACE_ENV=shared", "HEADRACE_BROKER_URL=redis://host/0"}, "needs")
	require.ErrorContains(t, err, "broker.url")
	_, err = programtest.Command(t, needy(), []string{"HEADRACE_ENV=cloud", "HEADRACE_DRAIN_TIMEOUT=-1s"}, "needs", "--json")
	require.ErrorContains(t, err, "drain.timeout")
}
