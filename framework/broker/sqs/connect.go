package sqs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
)

const (
	// emulatorRegion is the region on a loopback endpoint where none is set.
	emulatorRegion = "us-east-1"
	// idleConns is how many connections are kept for the next request.
	idleConns = 256
)

// connect makes the clients that were not handed in.
func (b *Broker) connect(ctx context.Context) error {
	cfg, err := loadAWS(ctx, b.cfg)
	if err != nil {
		return err
	}
	b.cfg.Region = cfg.Region
	if own, ok := cfg.HTTPClient.(wholeBodies); ok {
		if c, ok := own.inner.(*http.Client); ok {
			b.closeIdle = c.CloseIdleConnections
		}
	}
	if b.sqs == nil {
		b.sqs = sqs.NewFromConfig(cfg)
	}
	if b.sns == nil && b.cfg.Mode == ModeSNS {
		b.sns = sns.NewFromConfig(cfg)
	}
	return nil
}

func loadAWS(ctx context.Context, c Config) (aws.Config, error) {
	var opts []func(*config.LoadOptions) error
	if c.Region != "" {
		opts = append(opts, config.WithRegion(c.Region))
	}
	if c.Endpoint != "" {
		opts = append(opts, config.WithBaseEndpoint(c.Endpoint))
	}
	local := loopback(c.Endpoint)
	if local {
		env, err := config.NewEnvConfig()
		if err == nil && !env.Credentials.HasKeys() && env.SharedConfigProfile == "" {
			opts = append(opts, config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("headrace", "headrace", "")))
		}
	}
	cfg, err := config.LoadDefaultConfig(ctx, opts...)
	if err != nil {
		return aws.Config{}, fmt.Errorf("sqs: load the AWS configuration: %w", err)
	}
	if cfg.Region == "" && local {
		cfg.Region = emulatorRegion
	}
	if cfg.Region == "" {
		return aws.Config{}, errors.New("sqs: Region is empty and the environment names none: set it, such as \"eu-central-1\", or AWS_REGION")
	}
	// The SDK keeps few idle connections: parallel sends would open new ones all
	// the time. Its own client carries what the environment says (a CA bundle).
	client, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
	if !ok && cfg.HTTPClient == nil {
		client = awshttp.NewBuildableClient()
	}
	if client != nil {
		t := client.GetTransport()
		t.MaxIdleConns, t.MaxIdleConnsPerHost = idleConns, idleConns
		// The SDK's own has no way to close what is idle.
		cfg.HTTPClient = wholeBodies{&http.Client{Transport: t, Timeout: client.GetTimeout(), CheckRedirect: samePlace}}
	}
	return cfg, nil
}

// samePlace follows the redirects that keep method and body, as the SDK's client
// does.
func samePlace(r *http.Request, _ []*http.Request) error {
	if r.Response == nil || r.Response.StatusCode == http.StatusTemporaryRedirect || r.Response.StatusCode == http.StatusPermanentRedirect {
		return nil
	}
	return http.ErrUseLastResponse
}

// wholeBodies hands request bodies to the transport as a copy. The SDK closes a
// body as soon as the response's header is there; when the transport has not yet
// looked for the body's end by then (a fast server, a busy machine) it takes that
// for a failed write and drops the connection, and with it the rest of the
// response: messages that were received stay hidden for a lease, and what was
// sent is sent again.
type wholeBodies struct{ inner aws.HTTPClient }

func (c wholeBodies) Do(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return c.inner.Do(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r2 := *r
	r2.Body = io.NopCloser(bytes.NewReader(body))
	r2.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return c.inner.Do(&r2)
}

// loopback tells whether the endpoint is on this machine.
func loopback(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil || endpoint == "" {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// code is the service's error code, or "".
func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// noQueue tells that the queue does not exist.
func noQueue(err error) bool {
	var gone *types.QueueDoesNotExist
	if errors.As(err, &gone) {
		return true
	}
	switch code(err) {
	case "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist":
		return true
	}
	return false
}

// denied tells that the caller is known and may not do that.
func denied(err error) bool {
	switch code(err) {
	case "AccessDenied", "AccessDeniedException":
		return true
	}
	return false
}

// hopeless tells that an entry will be refused however often it is sent.
func hopeless(code string) bool {
	switch code {
	case "InvalidMessageContents", "InvalidParameterValue", "InvalidParameter", "ParameterValueInvalid",
		"MissingParameter", "InvalidAttributeName", "InvalidAttributeValue", "BatchRequestTooLong",
		"AWS.SimpleQueueService.BatchRequestTooLong", "ValidationError":
		return true
	}
	return false
}
