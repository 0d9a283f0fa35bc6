package service

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/services/notifications"
	"github.com/headrace-go/headrace/services/notifications/internal/testdb"
)

// logBuffer is a writer for many goroutines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run runs the program and returns once it is ready; stop ends and awaits it.
func run(t *testing.T, environ ...string) (a *framework.App, stop func() error, log *logBuffer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	started, ended := make(chan *framework.App, 1), make(chan error, 1)
	log = &logBuffer{}
	m := Main{Environ: environ, Stdout: log, Started: func(a *framework.App) { started <- a }}
	go func() { ended <- m.Run(ctx) }()
	select {
	case a = <-started:
	case err := <-ended:
		t.Fatalf("the program ended: %v\n%s", err, log)
	case <-time.After(patience):
		t.Fatalf("the program is not ready\n%s", log)
	}
	return a, func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			t.Fatalf("the program does not end\n%s", log)
			return nil
		}
	}, log
}

func TestMainServesAndDrains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	environ := []string{
		"HEADRACE_ENV=test", "HEADRACE_LOG_LEVEL=debug", "HEADRACE_DATABASE_DSN=" + filepath.Join(dir, "state", "notifications.db"),
		"HEADRACE_NOTIFICATIONS_FOLDER=" + filepath.Join(dir, "mail"),
	}
	a, stop, log := run(t, environ...)
	res, err := http.Post("http://"+a.HTTPAddr()+"/v1/codes", "application/json", strings.NewReader(codeBodyText))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusAccepted, res.StatusCode)

	admin := a.AdminAddr()
	require.NoError(t, Main{Args: []string{"healthcheck"}, Environ: append(environ, "HEADRACE_ADMIN_ADDR="+admin), Stdout: log}.Run(t.Context()))
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "mail", "*-sms.txt"))
		return err == nil && len(files) == 1
	}, patience, 5*time.Millisecond)
	require.NoError(t, stop())
	require.Error(t, Main{Args: []string{"healthcheck"}, Environ: append(environ, "HEADRACE_ADMIN_ADDR="+admin), Stdout: log}.Run(t.Context()))
	require.Contains(t, log.String(), filepath.Join(dir, "mail"), "whoever looks for the mails is told where they are")
	require.NotContains(t, log.String(), "441632960961")

	// What was sent outlives the program.
	a, stop, _ = run(t, environ...)
	res, err = http.Get("http://" + a.HTTPAddr() + "/v1/notifications?state=sent")
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Contains(t, string(body), "one_time_code")
	require.NoError(t, stop())
}

// The service's part of B41: replicas that start at once on an empty database
// end with one schema, and a replica that may not migrate says what to do.
func TestReplicasStartAtOnceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	environ := []string{"HEADRACE_ENV=test", "HEADRACE_DATABASE_DRIVER=postgres", "HEADRACE_DATABASE_DSN=" + testdb.PostgresDSN(t), "HEADRACE_NOTIFICATIONS_FOLDER=" + t.TempDir()}

	err := Main{Environ: append(environ, "HEADRACE_NOTIFICATIONS_MIGRATE=false"), Stdout: &logBuffer{}}.Run(t.Context())
	require.ErrorIs(t, err, migrate.ErrPending)
	require.ErrorContains(t, err, "notifications migrate")

	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := (Main{Args: []string{"migrate"}, Environ: environ, Stdout: &logBuffer{}}).Run(t.Context()); err != nil {
				t.Errorf("migrate: %v", err)
			}
		})
	}
	wg.Wait()
	_, stop, _ := run(t, append(environ, "HEADRACE_NOTIFICATIONS_MIGRATE=false")...)
	require.NoError(t, stop())
}

func TestEveryProfileLoads(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(notifications.Files, "config/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 4)
	for _, file := range files {
		env := strings.TrimSuffix(filepath.Base(file), ".yaml")
		s := Defaults()
		err := config.Load(&s, config.Options{FS: notifications.Files, Env: env, Environ: []string{
			"HEADRACE_DATABASE_DSN=postgres://notifications:s3cret@db/notifications", "HEADRACE_BROKER_URL=redis://:s3cret@redis:6379/0",
			"HEADRACE_NOTIFICATIONS_EMAIL_SMTP_HOST=mail.example", "HEADRACE_NOTIFICATIONS_CODES_SECRET=" + strings.Repeat("s", 32),
		}})
		require.NoError(t, err, env)
		require.Equal(t, env, s.Env)
		routes, err := s.routes()
		require.NoError(t, err)
		require.Len(t, routes, 4)
	}
}

// B43, the service's own section.
func TestSettingsThatCannotWorkAreNamed(t *testing.T) {
	t.Parallel()
	const own = "HEADRACE_NOTIFICATIONS_"
	cases := map[string]struct{ env, variable, named string }{
		"misspelt":              {"test", own + "EMAIL_FORM=a@b.example", own + "EMAIL_FORM"},
		"duration":              {"test", own + "MAX_AGE=30", "max_age"},
		"unknown channel":       {"test", own + "RULES_ORDER_CONFIRMED=pigeon", "rules.order_confirmed"},
		"channel that is off":   {"test", own + "RULES_ORDER_CONFIRMED=email,webhook", "webhook"},
		"channel twice":         {"test", own + "RULES_PAYMENT_FAILED=email,email:order_cancelled", "twice"},
		"no sender":             {"test", own + "EMAIL_FROM=", "email.from"},
		"unknown transport":     {"test", own + "EMAIL_TRANSPORT=pigeon", "email.transport"},
		"smtp without a host":   {"test", own + "EMAIL_TRANSPORT=smtp", "smtp.host"},
		"provider without url":  {"test", own + "SMS_TRANSPORT=http", "sms.url"},
		"webhook unsigned":      {"test", own + "WEBHOOK_URL=https://receiver.example", "webhook.secret"},
		"short code secret":     {"test", own + "CODES_SECRET=short", "codes.secret"},
		"a code for ever":       {"test", own + "CODES_TTL=24h", "codes.ttl"},
		"a hundred guesses":     {"test", own + "CODES_MAX_ATTEMPTS=100", "codes.max_attempts"},
		"retention too short":   {"test", own + "RETENTION_NOTIFICATIONS=1h", "retention.notifications"},
		"no database":           {"test", "HEADRACE_DATABASE_DRIVER=", "database.driver"},
		"files in production":   {"production", own + "EMAIL_TRANSPORT=folder", "email.transport"},
		"local secret in prod.": {"production", own + "CODES_SECRET=local-only-secret-that-protects-nothing", "codes.secret"},
		"no shared broker":      {"production", "HEADRACE_DATABASE_DSN=postgres://db/notifications", "broker.url"},
		"unknown profile":       {"produktion", "HEADRACE_HTTP_ADDR=:1", "produktion"},
		"unknown arguments":     {"test", "HEADRACE_HTTP_ADDR=127.0.0.1:0", "serv"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := Main{Args: []string{"serv"}, Environ: []string{"HEADRACE_ENV=" + c.env, c.variable}, Stdout: &logBuffer{}}
			err := m.Run(t.Context())
			require.ErrorContains(t, err, c.named)
			require.NotContains(t, err.Error(), "local-only-secret")
		})
	}
}

func TestTemplateThatDoesNotExistStopsTheStart(t *testing.T) {
	t.Parallel()
	err := Main{Environ: []string{
		"HEADRACE_ENV=test", "HEADRACE_NOTIFICATIONS_FOLDER=" + t.TempDir(), "HEADRACE_NOTIFICATIONS_RULES_ORDER_CONFIRMED=email:welcome",
	}, Stdout: &logBuffer{}}.Run(t.Context())
	require.ErrorContains(t, err, `"welcome"`)
}
