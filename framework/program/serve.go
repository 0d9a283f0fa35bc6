package program

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/telemetry"
)

// flushTimeout bounds the export of the last spans at the end.
const flushTimeout = 5 * time.Second

// environment is what a program works with besides the service's own settings.
type environment struct {
	profile config.Profile
	// plain is the log without the service's name, which the App adds itself;
	// logger has it.
	plain, logger *slog.Logger
	conns         *connect.Connections
}

// base is what an App is made of.
func (e *environment) base(name string, tracer trace.TracerProvider) framework.Config {
	return framework.Config{
		Service: name, Profile: e.profile, DB: e.conns.DB, Dialect: e.conns.Dialect, Broker: e.conns.Broker,
		OutboxWaker: e.conns.Waker, Logger: e.plain, Tracer: tracer,
	}
}

func (p Program[S]) serve(ctx context.Context, c Call) (err error) {
	settings, env, err := p.load(c)
	if err != nil {
		return err
	}
	tracer, err := telemetry.Open(ctx, p.Name, env.profile)
	if err != nil {
		return fmt.Errorf("set up tracing: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if flushed := tracer.Shutdown(ctx); flushed != nil {
			env.logger.WarnContext(ctx, "the last spans were not exported", "error", flushed)
		}
	}()
	if env.conns, err = connect.Open(ctx, env.profile, env.logger, p.Brokers...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.conns.Close()) }()
	if err := p.schema(ctx, settings, env, env.profile.Database.Migrate); err != nil {
		return err
	}
	app, err := p.Build(ctx, settings, env.base(p.Name, tracer))
	if err != nil {
		return err
	}
	defer tellStarted(ctx, app, c.Started)()
	return app.Run(ctx)
}

// tellStarted calls started once the App is ready. The function that it returns
// gives up on that and waits for the call to end.
func tellStarted(ctx context.Context, app *framework.App, started func(*framework.App)) (end func()) {
	if started == nil {
		return func() {}
	}
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-app.Ready():
			started(app)
		case <-ctx.Done():
		}
	})
	return func() { stop(); wg.Wait() }
}
