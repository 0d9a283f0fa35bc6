package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/stretchr/testify/require"
)

var metricName = regexp.MustCompile(`headrace_[a-z_]+`)

// TestDashboardsNameRealMetrics scrapes the running services and checks that
// every metric of the alert rules and dashboards exists in at least one of them,
// from the start: a rule over a name that nobody exports never fires.
func TestDashboardsNameRealMetrics(t *testing.T) {
	t.Parallel()
	s := newSystem(t, embedded)
	s.start(nil)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := s.place(ctx, "order", "tok_ok")
	require.NoError(t, err)
	exported := func() map[string]bool {
		names := map[string]bool{}
		for _, p := range s.procs {
			resp, err := http.Get("http://" + p.admin + "/metrics")
			require.NoError(t, err)
			for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
				name, _, _ := strings.Cut(lines.Text(), "{")
				name, _, _ = strings.Cut(name, " ")
				names[name] = true
			}
			resp.Body.Close()
		}
		return names
	}
	files, err := filepath.Glob("../deploy/grafana/dashboards/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range append(files, "../deploy/prometheus/alerts.yml") {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		// A backlog shows after the first look at the broker.
		eventually(t, 30*time.Second, func() error {
			have := exported()
			for _, want := range metricName.FindAllString(string(b), -1) {
				if !have[want] && !have[want+"_bucket"] {
					return fmt.Errorf("%s names %s, which no service exports", f, want)
				}
			}
			return nil
		})
	}
}

// TestComposeSetsKnownKeys loads docker-compose.yml with the compose library and
// checks that every variable that it sets is a key of that service's
// configuration, that images are pinned and that everything has a health check.
func TestComposeSetsKnownKeys(t *testing.T) {
	t.Parallel()
	o, err := cli.NewProjectOptions([]string{"../docker-compose.yml"}, cli.WithoutEnvironmentResolution, cli.WithName("headrace"), cli.WithProfiles([]string{"mariadb"}))
	require.NoError(t, err)
	project, err := o.LoadProject(context.Background())
	require.NoError(t, err)
	for _, want := range append([]string{"postgres", "redis", "mariadb", "aws", "prometheus", "grafana", "jaeger"}, names...) {
		require.Contains(t, project.Services, want)
	}
	for name, service := range project.Services {
		require.NotNil(t, service.HealthCheck, "%s has no health check", name)
		if service.Build == nil {
			_, tag, found := strings.Cut(service.Image, ":")
			require.True(t, found && tag != "latest", "%s: image %q is not pinned", name, service.Image)
			continue
		}
		dockerfile := filepath.Join("..", service.Build.Dockerfile)
		if filepath.IsAbs(service.Build.Dockerfile) {
			dockerfile = service.Build.Dockerfile
		}
		require.FileExists(t, dockerfile)
		known := configKeys(t, name)
		for key := range service.Environment {
			require.Contains(t, known, key, "docker-compose.yml sets %s for %s, which is no key of its configuration", key, name)
		}
	}
}

// configKeys asks a service for the variables that it knows.
func configKeys(t *testing.T, service string) []string {
	t.Helper()
	out, err := command(t, service, "config", "--json")
	require.NoError(t, err, "%s", out)
	var keys []struct{ Env string }
	require.NoError(t, json.Unmarshal(out, &keys), "%s", out)
	known := []string{"HEADRACE_ENV", "HEADRACE_CONFIG_DIR"}
	for _, k := range keys {
		known = append(known, k.Env)
	}
	slices.Sort(known)
	return known
}
