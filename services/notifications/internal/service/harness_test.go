package service

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/frameworktest/apitest"
	"github.com/headrace-go/headrace/framework/frameworktest/programtest"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/notifications"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

func TestMain(m *testing.M) { programtest.Main(m, Program()) }

// harness is the service as it runs, on a memory broker, with a client that
// holds it to its API document.
type harness struct {
	*frameworktest.System
	*frameworktest.Running
	*apitest.Client
	t      *testing.T
	db     frameworktest.DB
	folder string
	log    *programtest.Log
	events *frameworktest.Feed
}

// setup is what a test changes of the service.
type setup struct {
	settings func(*Settings)
	channels map[domain.Channel]app.Channel
}

// start runs the service on db until the test ends.
func start(t *testing.T, db frameworktest.DB, with setup) *harness {
	t.Helper()
	h := &harness{System: frameworktest.New(t), t: t, db: db, folder: t.TempDir(), log: &programtest.Log{}}
	h.events = h.Listen("notification.sent", "notification.failed")
	s := settings(t)
	s.Notifications.Folder = h.folder
	if with.settings != nil {
		with.settings(&s)
	}
	require.NoError(t, s.Validate())
	base := h.Config(Name, s.Profile, db)
	base.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(h.log, t.Output()), &slog.HandlerOptions{Level: slog.LevelInfo}))
	a, err := New(s, base, with.channels)
	require.NoError(t, err)
	h.Running = h.Start(a)
	document, err := notifications.Files.ReadFile("api/openapi.yaml")
	require.NoError(t, err)
	h.Client = apitest.New(t, h.URL(), document)
	return h
}

func settings(t *testing.T) Settings {
	t.Helper()
	s := Defaults()
	require.NoError(t, config.Load(&s, config.Options{FS: notifications.Files, Env: "test", Environ: []string{}}))
	return s
}

// next waits for the next event of the service.
func (h *harness) next(typ string) events.Envelope {
	h.t.Helper()
	e := h.events.Next(typ)
	require.Equal(h.t, Name, e.Source)
	return e
}

// publish publishes a draft as another service would.
func (h *harness) publish(d events.Draft) events.Envelope {
	h.t.Helper()
	e := seal(h.t, d)
	h.Send(d.Topic, e)
	return e
}

func seal(t *testing.T, d events.Draft) events.Envelope {
	t.Helper()
	return frameworktest.Seal(t, events.Stamp{Source: "orders", CorrelationID: "journey-1"}, d)
}

// list returns the notifications that a query selects.
func (h *harness) list(query string) []map[string]any {
	h.t.Helper()
	res := h.Call(http.MethodGet, "/v1/notifications?"+query, "")
	require.Equal(h.t, http.StatusOK, res.Status, "%s", res.Body)
	var page struct {
		Notifications []map[string]any `json:"notifications"`
	}
	require.NoError(h.t, json.Unmarshal(res.Body, &page))
	return page.Notifications
}
