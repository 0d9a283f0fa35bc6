package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/logging"
	"github.com/headrace-go/headrace/framework/telemetry"
	"github.com/headrace-go/headrace/services/payments"
)

// flushTimeout bounds the export of the last spans at the end.
const flushTimeout = 5 * time.Second

// Main is the program: environment in, logs out.
type Main struct {
	// Args are the arguments without the program's name: none to serve,
	// "migrate" to bring the schema up to date and end, "healthcheck" to ask a
	// service on this machine whether it is ready.
	Args []string
	// Environ is the environment as os.Environ gives it.
	Environ []string
	// Stdout receives the log. Required.
	Stdout io.Writer
	// Started, when set, is called once the service is ready.
	Started func(*framework.App)
}

// Run runs the program until ctx ends and the service has drained. A setting
// that can't work, a database that does not answer or a schema that is not
// current is an error before anything is served.
func (m Main) Run(ctx context.Context) error {
	if m.Environ == nil {
		m.Environ = []string{}
	}
	var s Settings
	if err := config.Load(&s, config.Options{FS: payments.Files, Environ: m.Environ}); err != nil {
		return err
	}
	logger, err := logging.New(m.Stdout, s.Log)
	if err != nil {
		return err
	}
	command := ""
	if len(m.Args) > 0 {
		command = m.Args[0]
	}
	switch {
	case len(m.Args) > 1:
		return fmt.Errorf("unknown arguments %q: give none, \"migrate\" or \"healthcheck\"", m.Args)
	case command == "":
		return m.serve(ctx, s, logger)
	case command == "migrate":
		return migrateOnly(ctx, s, logger.With("service", Name))
	case command == "healthcheck":
		return healthcheck(ctx, s.Admin.Addr)
	}
	return fmt.Errorf("unknown argument %q: give none, \"migrate\" or \"healthcheck\"", command)
}

func (m Main) serve(ctx context.Context, s Settings, plain *slog.Logger) (err error) {
	logger := plain.With("service", Name) // the App adds it to its own
	tracer, err := telemetry.Open(ctx, Name, s.Profile)
	if err != nil {
		return fmt.Errorf("set up tracing: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if flushed := tracer.Shutdown(ctx); flushed != nil {
			logger.WarnContext(ctx, "the last spans were not exported", "error", flushed)
		}
	}()
	conns, err := connect.Open(ctx, s.Profile, logger)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	if err := schemaUp(ctx, s, conns, logger); err != nil {
		return err
	}
	gateway, err := OpenGateway(ctx, s.Payments.Gateway, conns.DB, conns.Dialect, logger)
	if err != nil {
		return fmt.Errorf("open the %s gateway: %w", s.Payments.Gateway.Kind, err)
	}
	a, err := New(s, Conns{
		DB: conns.DB, Dialect: conns.Dialect, Broker: conns.Broker, Gateway: gateway, Waker: conns.Waker, Logger: plain, Tracer: tracer,
	})
	if err != nil {
		return err
	}
	if m.Started != nil {
		background, stop := context.WithCancel(ctx)
		told := make(chan struct{})
		defer func() { stop(); <-told }()
		go func() {
			defer close(told)
			select {
			case <-a.Ready():
				m.Started(a)
			case <-background.Done():
			}
		}()
	}
	return a.Run(ctx)
}
