package programtest

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/framework/testenv"
)

// Replicas checks, on a Postgres database of its own, that replicas that migrate
// at once on an empty database end with one schema, that one that may not migrate
// says what to do before that, and starts after it. Name is the service's; the
// environment is added to that of the profile "test".
func Replicas(t *testing.T, p Program, name string, environ ...string) {
	t.Helper()
	environ = append([]string{
		"HEADRACE_ENV=test", "HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=" + testenv.PostgresDSN(t),
	}, environ...)
	checking := append(environ[:len(environ):len(environ)], "HEADRACE_DATABASE_MIGRATE=false")

	_, err := Command(t, p, checking)
	require.ErrorIs(t, err, migrate.ErrPending)
	require.ErrorContains(t, err, name+" migrate")

	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if out, err := Command(t, p, environ, "migrate"); err != nil {
				t.Errorf("programtest: migrate: %v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	require.NoError(t, Start(t, p, checking...).Stop())
}
