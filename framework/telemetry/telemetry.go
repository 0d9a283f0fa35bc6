// Package telemetry sets up OpenTelemetry tracing from a profile: spans go to an
// OTLP/HTTP collector where one is configured, and are made and carried on
// either way.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/headrace-go/headrace/framework/config"
)

// Provider is a tracer provider and its end.
type Provider struct {
	trace.TracerProvider
	shutdown func(context.Context) error
}

// Shutdown exports what is left, until ctx ends, and stops. Call it after the
// App's Run has returned.
func (p *Provider) Shutdown(ctx context.Context) error { return p.shutdown(ctx) }

// Open makes the provider of one service. It sets no global and waits for no
// collector: one that is away costs spans, never a start.
func Open(ctx context.Context, service string, profile config.Profile) (*Provider, error) {
	opts := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", service),
			attribute.String("deployment.environment.name", profile.Env),
		)),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(profile.Trace.Ratio))),
	}
	if endpoint := profile.Trace.Endpoint; endpoint != "" {
		exporter, err := newExporter(ctx, endpoint)
		if err != nil {
			return nil, err
		}
		opts = append(opts, sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(time.Second)))
	}
	tp := sdktrace.NewTracerProvider(opts...)
	return &Provider{TracerProvider: tp, shutdown: tp.Shutdown}, nil
}

func newExporter(ctx context.Context, endpoint string) (sdktrace.SpanExporter, error) {
	u, err := url.Parse(endpoint)
	if err == nil && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		err = errors.New("no http:// or https:// URL")
	}
	if err != nil {
		return nil, fmt.Errorf("telemetry: trace.endpoint (%s) can't be used: %w: write http://host:4318, or leave it empty", config.EnvName("trace.endpoint"), err)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithTimeout(5*time.Second))
	if err != nil {
		return nil, fmt.Errorf("telemetry: make the exporter for trace.endpoint: %w", err)
	}
	return exporter, nil
}
