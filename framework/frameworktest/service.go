package frameworktest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/pkg/events"
)

// Config is what a service's constructor gets in a test: the profile, the
// database and the System's broker, with short waits between attempts and a log
// that goes to the test's.
func (s *System) Config(service string, p config.Profile, db DB) framework.Config {
	s.t.Helper()
	p.Delivery.BackoffBase, p.Delivery.BackoffCap = time.Millisecond, 5*time.Millisecond
	return framework.Config{
		Service: service, Profile: p, DB: db.DB, Dialect: db.Dialect, Broker: s.broker, Logger: Logger(s.t),
	}
}

// URL is the address of the app's API: "http://127.0.0.1:12345".
func (r *Running) URL() string { return "http://" + r.App.HTTPAddr() }

// Seal makes an event of a draft, as the service that st names would; the id and
// the time are st's or new ones.
func Seal(t testing.TB, st events.Stamp, d events.Draft) events.Envelope {
	t.Helper()
	if st.ID == "" {
		st.ID = events.NewID()
	}
	if st.Now.IsZero() {
		st.Now = time.Now()
	}
	e, err := d.Seal(st)
	if err != nil {
		t.Fatalf("frameworktest: %v", err)
	}
	return e
}

// PublishAs publishes a draft as the service that st names would, and returns
// what was sent.
func (s *System) PublishAs(st events.Stamp, d events.Draft) events.Envelope {
	s.t.Helper()
	e := Seal(s.t, st, d)
	s.Send(d.Topic, e)
	return e
}

// Data returns an event's data.
func Data[T any](t testing.TB, e events.Envelope) T {
	t.Helper()
	var d T
	if err := json.Unmarshal(e.Data, &d); err != nil {
		t.Fatalf("frameworktest: data of %s: %v", e.Type, err)
	}
	return d
}
