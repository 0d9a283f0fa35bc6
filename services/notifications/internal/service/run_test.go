package service

import (
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/services/notifications"
)

func TestProgramServesAndDrains(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	environ := []string{
		"HEADRACE_ENV=test", "HEADRACE_LOG_LEVEL=debug", "HEADRACE_DATABASE_DSN=" + filepath.Join(dir, "state", "notifications.db"),
		"HEADRACE_NOTIFICATIONS_FOLDER=" + filepath.Join(dir, "mail"),
	}
	running := programtest.Start(t, Program(), environ...)
	a := running.App
	res, err := http.Post("http://"+a.HTTPAddr()+"/v1/codes", "application/json", strings.NewReader(codeBodyText))
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusAccepted, res.StatusCode)

	admin := a.AdminAddr()
	_, err = programtest.Command(t, Program(), append(environ, "HEADRACE_ADMIN_ADDR="+admin), "healthcheck")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(dir, "mail", "*-sms.txt"))
		return err == nil && len(files) == 1
	}, frameworktest.Timeout, 5*time.Millisecond)
	require.NoError(t, running.Stop())
	_, err = programtest.Command(t, Program(), append(environ, "HEADRACE_ADMIN_ADDR="+admin), "healthcheck")
	require.Error(t, err)
	require.Contains(t, running.Log.String(), filepath.Join(dir, "mail"), "whoever looks for the mails is told where they are")
	require.NotContains(t, running.Log.String(), "441632960961")

	// What was sent outlives the program.
	running = programtest.Start(t, Program(), environ...)
	a = running.App
	res, err = http.Get("http://" + a.HTTPAddr() + "/v1/notifications?state=sent")
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Contains(t, string(body), "one_time_code")
	require.NoError(t, running.Stop())
}

// The service's part of B41: replicas that start at once on an empty database
// end with one schema, and a replica that may not migrate says what to do.
func TestReplicasStartAtOnceOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	programtest.Replicas(t, Program(), Name, "HEADRACE_NOTIFICATIONS_FOLDER="+t.TempDir())
}

// profiles are the environments of a service and what each must be given:
// addresses and secrets, and nothing else.
var profiles = map[string][]string{
	"local": nil, "test": nil, "sqlite": nil, "aws-local": nil,
	"compose": {"HEADRACE_BROKER_URL=redis://:s3cret@redis:6379/0", "HEADRACE_DATABASE_DSN=postgres://notifications:s3cret@db/notifications"},
	"staging": {"HEADRACE_BROKER_URL=postgres://:s3cret@db/broker", "HEADRACE_DATABASE_DSN=postgres://notifications:s3cret@db/notifications",
		"HEADRACE_NOTIFICATIONS_EMAIL_SMTP_HOST=mail.example", "HEADRACE_NOTIFICATIONS_CODES_SECRET=" + strings.Repeat("s", 32)},
	"mariadb": {"HEADRACE_BROKER_URL=mysql://:s3cret@db/broker", "HEADRACE_DATABASE_DSN=mysql://notifications:s3cret@db/notifications"},
	"production": {"HEADRACE_DATABASE_DSN=postgres://notifications:s3cret@db/notifications",
		"HEADRACE_NOTIFICATIONS_EMAIL_SMTP_HOST=mail.example", "HEADRACE_NOTIFICATIONS_CODES_SECRET=" + strings.Repeat("s", 32)},
}

func TestEveryProfileLoads(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(notifications.Files, "config/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, len(profiles))
	for env, environ := range profiles {
		s := Defaults()
		require.NoError(t, config.Load(&s, config.Options{FS: notifications.Files, Env: env, Environ: append([]string{}, environ...)}), env)
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
	cases := map[string]struct{ command, env, variable, named string }{
		"misspelt":              {"healthcheck", "test", own + "EMAIL_FORM=a@b.example", own + "EMAIL_FORM"},
		"duration":              {"healthcheck", "test", own + "MAX_AGE=30", "max_age"},
		"unknown channel":       {"healthcheck", "test", own + "RULES_ORDER_CONFIRMED=pigeon", "rules.order_confirmed"},
		"channel that is off":   {"healthcheck", "test", own + "RULES_ORDER_CONFIRMED=email,webhook", "webhook"},
		"channel twice":         {"healthcheck", "test", own + "RULES_PAYMENT_FAILED=email,email:order_cancelled", "twice"},
		"no sender":             {"healthcheck", "test", own + "EMAIL_FROM=", "email.from"},
		"unknown transport":     {"healthcheck", "test", own + "EMAIL_TRANSPORT=pigeon", "email.transport"},
		"smtp without a host":   {"healthcheck", "test", own + "EMAIL_TRANSPORT=smtp", "smtp.host"},
		"provider without url":  {"healthcheck", "test", own + "SMS_TRANSPORT=http", "sms.url"},
		"webhook unsigned":      {"healthcheck", "test", own + "WEBHOOK_URL=https://receiver.example", "webhook.secret"},
		"short code secret":     {"healthcheck", "test", own + "CODES_SECRET=short", "codes.secret"},
		"a code for ever":       {"healthcheck", "test", own + "CODES_TTL=24h", "codes.ttl"},
		"a hundred guesses":     {"healthcheck", "test", own + "CODES_MAX_ATTEMPTS=100", "codes.max_attempts"},
		"retention too short":   {"healthcheck", "test", own + "RETENTION_NOTIFICATIONS=1h", "retention.notifications"},
		"no database":           {"healthcheck", "test", "HEADRACE_DATABASE_DRIVER=", "database.driver"},
		"files in production":   {"healthcheck", "production", own + "EMAIL_TRANSPORT=folder", "email.transport"},
		"local secret in prod.": {"healthcheck", "production", own + "CODES_SECRET=local-only-secret-that-protects-nothing", "codes.secret"},
		"no shared broker":      {"healthcheck", "staging", "HEADRACE_DATABASE_DSN=postgres://db/notifications", "broker.url"},
		"unknown profile":       {"healthcheck", "nowhere", "HEADRACE_HTTP_ADDR=:1", "nowhere"},
		"unknown arguments":     {"serv", "test", "HEADRACE_HTTP_ADDR=127.0.0.1:0", "serv"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := programtest.Command(t, Program(), []string{"HEADRACE_ENV=" + c.env, c.variable}, c.command)
			require.ErrorContains(t, err, c.named)
			require.NotContains(t, err.Error(), "local-only-secret")
		})
	}
}

func TestTemplateThatDoesNotExistStopsTheStart(t *testing.T) {
	t.Parallel()
	_, err := programtest.Command(t, Program(), []string{
		"HEADRACE_ENV=test", "HEADRACE_NOTIFICATIONS_FOLDER=" + t.TempDir(), "HEADRACE_NOTIFICATIONS_RULES_ORDER_CONFIRMED=email:welcome",
	})
	require.ErrorContains(t, err, `"welcome"`)
}
