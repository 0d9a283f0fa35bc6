package framework_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/httpx"
	"github.com/headrace-go/headrace/pkg/events"
)

type roomBooked struct {
	Room string `json:"room"`
}

func (d roomBooked) Validate() error { return events.Require("room", d.Room) }

type keyIssued struct {
	Room string `json:"room"`
}

var (
	booked = events.Define[roomBooked]("room.booked", "1.0")
	issued = events.Define[keyIssued]("key.issued", "1.0")
)

// A service with one transactional handler, one plain one and an API, from the
// profile to the drain.
func Example() {
	profile := config.Default()
	profile.HTTP.Addr, profile.Admin.Addr = "", "" // the example calls the API without a port
	profile.Database.Driver, profile.Database.DSN = "sqlite", ":memory:"
	quiet := slog.New(slog.DiscardHandler)

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	conn, err := connect.Open(ctx, profile, quiet)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	app, err := framework.New(framework.Config{
		Service: "hotel", Profile: profile, DB: conn.DB, Dialect: conn.Dialect, Broker: conn.Broker, OutboxWaker: conn.Waker, Logger: quiet,
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	framework.HandleTx(app, booked, "issue-key", func(ctx context.Context, tx *sql.Tx, e events.Event[roomBooked]) error {
		return framework.Emit(ctx, tx, issued.New(e.Data.Room, keyIssued{Room: e.Data.Room}))
	}, framework.OrderByKey())
	done := make(chan struct{})
	framework.Handle(app, issued, "open-door", func(ctx context.Context, e events.Event[keyIssued]) error {
		fmt.Println("a key for room", e.Data.Room)
		close(done)
		return nil
	})
	app.Emits(booked.Descriptor())
	app.HTTP(httpx.Handler(func(w http.ResponseWriter, r *http.Request) error {
		var in roomBooked
		if err := httpx.DecodeJSON(w, r, &in, 0); err != nil {
			return err
		}
		err := app.Tx(r.Context(), func(ctx context.Context, tx *sql.Tx) error {
			return framework.Emit(ctx, tx, booked.New(in.Room, in))
		})
		if err != nil {
			return err
		}
		return httpx.WriteJSON(w, http.StatusAccepted, in)
	}))

	ran := make(chan error, 1)
	go func() { ran <- app.Run(ctx) }()
	<-app.Ready()
	for _, body := range []string{`{"room":"7"}`, `{"rom":"7"}`} {
		answer := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodPost, "/bookings", strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		app.Handler().ServeHTTP(answer, request)
		fmt.Println(answer.Code, answer.Header().Get("Content-Type"))
	}
	<-done
	stop()
	fmt.Println("drained:", <-ran)
	// Unordered output:
	// 202 application/json
	// 422 application/problem+json
	// a key for room 7
	// drained: <nil>
}

func ExampleCodeOf() {
	err := fmt.Errorf("read: %w", framework.Errorf(framework.CodeNotFound, "no order %s", "42"))
	fmt.Println(framework.CodeOf(err), framework.CodeOf(errors.New("disk full")))
	// Output: not_found internal
}

// What Validate refuses is told with the handler, the danger and the remedy.
func ExampleApp_Validate() {
	profile := config.Default()
	conn, err := connect.Open(context.Background(), profile, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	app, err := framework.New(framework.Config{Service: "hotel", Profile: profile, Broker: conn.Broker})
	if err != nil {
		fmt.Println(err)
		return
	}
	framework.HandleTx(app, booked, "issue-key", func(context.Context, *sql.Tx, events.Event[roomBooked]) error { return nil })
	fmt.Println(app.Validate())
	// Output: handler "issue-key": it is transactional and the service has no database: its effect, its inbox row and its events could not commit together: set Config.DB, or register it with Handle (rule transaction-without-database)
}
