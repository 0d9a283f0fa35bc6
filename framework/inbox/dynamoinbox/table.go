package dynamoinbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

const (
	// tablePatience is how long a new table may take to be ready.
	tablePatience = 2 * time.Minute
	// clockGrain is how coarse DynamoDB's own time is known, with the way to it.
	clockGrain = 2 * time.Second
)

// prepare looks at the table, or creates it.
func (s *Store) prepare(ctx context.Context) error {
	ensure := s.cfg.Topology == TopologyEnsure
	out, err := s.describe(ctx)
	var missing *types.ResourceNotFoundException
	if ensure && errors.As(err, &missing) {
		out, err = s.create(ctx)
	}
	if err != nil {
		return s.table("look at it", err)
	}
	if err := s.checkClock(out); err != nil {
		return err
	}
	if ensure && out.Table != nil && out.Table.TableStatus == types.TableStatusCreating {
		if out, err = s.await(ctx); err != nil {
			return s.table("wait until it is ready", err)
		}
	}
	if err := s.checkTable(out.Table); err != nil {
		return err
	}
	return s.prepareTTL(ctx, ensure)
}

func (s *Store) table(what string, err error) error {
	return fmt.Errorf("dynamoinbox: table %q: %s: %w%s", s.cfg.Table, what, err, remedy(err))
}

func (s *Store) describe(ctx context.Context) (*dynamodb.DescribeTableOutput, error) {
	return s.cfg.Client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &s.cfg.Table})
}

func (s *Store) create(ctx context.Context) (*dynamodb.DescribeTableOutput, error) {
	_, err := s.cfg.Client.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName:            &s.cfg.Table,
		BillingMode:          types.BillingModePayPerRequest,
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String(attrKey), AttributeType: types.ScalarAttributeTypeS}},
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String(attrKey), KeyType: types.KeyTypeHash}},
	})
	var raced *types.ResourceInUseException // another replica was faster
	if err != nil && !errors.As(err, &raced) {
		return nil, err
	}
	return s.await(ctx)
}

// await waits until the table takes writes.
func (s *Store) await(ctx context.Context) (*dynamodb.DescribeTableOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, tablePatience)
	defer cancel()
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		out, err := s.describe(ctx)
		var missing *types.ResourceNotFoundException // not known everywhere yet
		if err != nil && !errors.As(err, &missing) {
			return nil, err
		}
		if err == nil && out.Table != nil && out.Table.TableStatus != types.TableStatusCreating {
			return out, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-timer.C:
		}
	}
}

func (s *Store) checkTable(t *types.TableDescription) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("dynamoinbox: table %q "+format, append([]any{s.cfg.Table}, args...)...)
	}
	if t == nil {
		return bad("was described without a description: is the client's endpoint DynamoDB?")
	}
	if st := t.TableStatus; st != types.TableStatusActive && st != types.TableStatusUpdating {
		return bad("is %s: it must be ACTIVE", st)
	}
	keys := ""
	for _, k := range t.KeySchema {
		kind := types.ScalarAttributeType("?")
		for _, a := range t.AttributeDefinitions {
			if aws.ToString(a.AttributeName) == aws.ToString(k.AttributeName) {
				kind = a.AttributeType
			}
		}
		keys += fmt.Sprintf(" %s %s (%s)", k.KeyType, aws.ToString(k.AttributeName), kind)
	}
	if want := " HASH " + attrKey + " (S)"; keys != want {
		return bad("has the key schema%s, not%s: name another table, or create this one anew", keys, want)
	}
	return nil
}

func (s *Store) prepareTTL(ctx context.Context, ensure bool) error {
	var cause error
	for try := 1; ; try++ {
		out, err := s.cfg.Client.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &s.cfg.Table})
		if err != nil {
			return s.table("look at its TTL", err)
		}
		var status types.TimeToLiveStatus
		attr := ""
		if d := out.TimeToLiveDescription; d != nil {
			status, attr = d.TimeToLiveStatus, aws.ToString(d.AttributeName)
		}
		on := status == types.TimeToLiveStatusEnabled || status == types.TimeToLiveStatusEnabling
		switch {
		case on && attr == attrTTL:
			return nil
		case on:
			return fmt.Errorf("dynamoinbox: table %q has its TTL on the attribute %q, not on %q: name another table, or change its TTL", s.cfg.Table, attr, attrTTL)
		case !ensure || try > 1:
			return errors.Join(fmt.Errorf("dynamoinbox: table %q has no TTL (it is %q): its items would never go; enable TTL on the attribute %q (aws dynamodb update-time-to-live --table-name %s --time-to-live-specification Enabled=true,AttributeName=%s)",
				s.cfg.Table, status, attrTTL, s.cfg.Table, attrTTL), cause)
		}
		_, cause = s.cfg.Client.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
			TableName:               &s.cfg.Table,
			TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: aws.String(attrTTL), Enabled: aws.Bool(true)},
		})
		// A replica that was faster has turned it on: look again.
		if cause != nil && code(cause) != "ValidationException" {
			return s.table("turn its TTL on", cause)
		}
	}
}

// checkClock compares this machine's clock with DynamoDB's answer.
func (s *Store) checkClock(out *dynamodb.DescribeTableOutput) error {
	skew, ok := awsmiddleware.GetAttemptSkew(out.ResultMetadata)
	if ok && skew.Abs() > s.cfg.MaxSkew+clockGrain {
		return fmt.Errorf("dynamoinbox: this machine's clock differs from DynamoDB's by %s, more than MaxSkew (%s): leases are compared by it; set the clock (NTP)", skew.Round(time.Second), s.cfg.MaxSkew)
	}
	return nil
}
