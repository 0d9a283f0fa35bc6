package config_test

import (
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
)

// The delays of the second level of retries are a list of durations, in the file
// and in the environment, and show as such.
func TestRedeliverDelays(t *testing.T) {
	t.Parallel()
	fsys := fstest.MapFS{"config/local.yaml": {Data: []byte("delivery: {redeliver: [1m, 10m], max_elapsed: 5s}")}}
	var p struct {
		config.Profile `koanf:",squash"`
	}
	require.NoError(t, config.Load(&p, config.Options{FS: fsys}))
	require.Equal(t, []time.Duration{time.Minute, 10 * time.Minute}, p.Delivery.Redeliver)
	require.Equal(t, 5*time.Second, p.Delivery.MaxElapsed)
	require.Equal(t, time.Minute, p.Delivery.TransientBudget)

	x, err := config.Explain(&p, config.Options{FS: fsys, Environ: []string{"HEADRACE_DELIVERY_REDELIVER=2s,1h"}})
	require.NoError(t, err)
	require.NoError(t, x.Faults)
	require.Equal(t, []time.Duration{2 * time.Second, time.Hour}, p.Delivery.Redeliver)
	for _, s := range x.Settings {
		if s.Key == "delivery.redeliver" {
			require.Equal(t, []string{"2s", "1h0m0s"}, s.Value)
			require.Equal(t, config.FromEnvironment, s.Source)
		}
	}
	require.ErrorContains(t, config.Load(&p, config.Options{FS: fsys, Environ: []string{"HEADRACE_DELIVERY_REDELIVER=2s,0s"}}), "delivery.redeliver")
	require.ErrorContains(t, config.Load(&p, config.Options{FS: fsys, Environ: []string{"HEADRACE_DELIVERY_REDELIVER=30"}}), "needs a unit")
}
