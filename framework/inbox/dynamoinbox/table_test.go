package dynamoinbox

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"
)

// Ensure creates what is missing, also when replicas do so at once, and changes
// nothing the second time; verify only looks.
func TestEnsureThenVerify(t *testing.T) {
	t.Parallel()
	client := newStub()
	client.creating = 3
	_, err := Open(t.Context(), Config{Client: client})
	require.ErrorContains(t, err, `table "headrace-dedup"`)
	require.ErrorContains(t, err, "create the table")
	require.NotContains(t, client.calls, "CreateTable")

	var replicas sync.WaitGroup
	for range 8 {
		replicas.Go(func() {
			if _, err := Open(t.Context(), Config{Client: client, Topology: TopologyEnsure}); err != nil {
				t.Error(err)
			}
		})
	}
	replicas.Wait()
	require.Equal(t, types.BillingModePayPerRequest, client.table.BillingModeSummary.BillingMode)
	require.Equal(t, attrTTL, aws.ToString(client.ttl.AttributeName))

	for _, topology := range []Topology{TopologyVerify, TopologyEnsure} {
		client.calls = nil
		_, err = Open(t.Context(), Config{Client: client, Topology: topology})
		require.NoError(t, err)
		require.Equal(t, []string{"DescribeTable", "DescribeTimeToLive"}, client.calls)
	}
}

func TestEnsureThenVerifyOnAnEmulator(t *testing.T) {
	t.Parallel()
	client, table := emulator(t)
	_, err := Open(t.Context(), Config{Client: client, Table: table})
	require.ErrorContains(t, err, table)
	require.ErrorContains(t, err, "create the table")
	for _, topology := range []Topology{TopologyEnsure, TopologyEnsure, TopologyVerify} {
		_, err = Open(t.Context(), Config{Client: client, Table: table, Topology: topology})
		require.NoError(t, err)
	}
}

// A table that is not as it must be is refused, by name and with the remedy.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	attr := func(name string, kind types.ScalarAttributeType) types.AttributeDefinition {
		return types.AttributeDefinition{AttributeName: &name, AttributeType: kind}
	}
	key := func(name string, kind types.KeyType) types.KeySchemaElement {
		return types.KeySchemaElement{AttributeName: &name, KeyType: kind}
	}
	for name, c := range map[string]struct {
		spoil  func(*stub)
		ensure bool
		want   []string
	}{
		"another key": {func(s *stub) {
			s.table.KeySchema = []types.KeySchemaElement{key("pk", types.KeyTypeHash)}
			s.table.AttributeDefinitions = []types.AttributeDefinition{attr("pk", types.ScalarAttributeTypeS)}
		}, true, []string{"HASH pk (S)", "HASH id (S)"}},
		"a key of another type": {func(s *stub) {
			s.table.AttributeDefinitions = []types.AttributeDefinition{attr("id", types.ScalarAttributeTypeB)}
		}, true, []string{"HASH id (B)"}},
		"a sort key": {func(s *stub) {
			s.table.KeySchema = append(s.table.KeySchema, key("at", types.KeyTypeRange))
			s.table.AttributeDefinitions = append(s.table.AttributeDefinitions, attr("at", types.ScalarAttributeTypeN))
		}, true, []string{"RANGE at (N)"}},
		"being deleted": {func(s *stub) { s.table.TableStatus = types.TableStatusDeleting }, true, []string{"DELETING"}},
		"no TTL": {func(s *stub) {
			s.ttl = types.TimeToLiveDescription{TimeToLiveStatus: types.TimeToLiveStatusDisabled}
		}, false, []string{"has no TTL", "aws dynamodb update-time-to-live"}},
		"TTL on another attribute": {func(s *stub) { s.ttl.AttributeName = aws.String("until") }, true, []string{`"until"`}},
		"TTL that can't be turned on": {func(s *stub) {
			s.ttl.TimeToLiveStatus = types.TimeToLiveStatusDisabling
		}, true, []string{"DISABLING", "already enabled"}},
		"no right to look at the TTL": {func(s *stub) {
			s.fail = func(op string) error {
				if op == "DescribeTimeToLive" {
					return &smithy.GenericAPIError{Code: "AccessDeniedException"}
				}
				return nil
			}
		}, false, []string{"look at its TTL", "dynamodb:PutItem"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newStub()
			open(t, Config{Client: client})
			c.spoil(client)
			cfg := Config{Client: client}
			if c.ensure {
				cfg.Topology = TopologyEnsure
			}
			_, err := Open(t.Context(), cfg)
			require.ErrorContains(t, err, `table "headrace-dedup"`)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// Open gives up waiting for a new table when its context ends.
func TestEnsureObeysItsContext(t *testing.T) {
	t.Parallel()
	client := newStub()
	client.creating = 1 << 30
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Open(ctx, Config{Client: client, Topology: TopologyEnsure})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A machine whose clock is wrong does not start.
func TestClockIsChecked(t *testing.T) {
	t.Parallel()
	ahead := time.Duration(0)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.Header().Set("Date", time.Now().Add(-ahead).UTC().Format(http.TimeFormat))
		if r.Header.Get("X-Amz-Target") == "DynamoDB_20120810.DescribeTimeToLive" {
			_, _ = w.Write([]byte(`{"TimeToLiveDescription":{"AttributeName":"ttl","TimeToLiveStatus":"ENABLED"}}`))
			return
		}
		_, _ = w.Write([]byte(`{"Table":{"TableStatus":"ACTIVE","KeySchema":[{"AttributeName":"id","KeyType":"HASH"}],"AttributeDefinitions":[{"AttributeName":"id","AttributeType":"S"}]}}`))
	}))
	t.Cleanup(server.Close)
	client := dynamodb.New(dynamodb.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(server.URL), HTTPClient: server.Client(),
		Credentials: credentials.NewStaticCredentialsProvider("a", "b", ""),
	})
	_, err := Open(t.Context(), Config{Client: client})
	require.NoError(t, err)
	for _, ahead = range []time.Duration{time.Minute, -time.Minute} {
		_, err = Open(t.Context(), Config{Client: client})
		require.ErrorContains(t, err, "clock differs from DynamoDB's")
		require.ErrorContains(t, err, "NTP")
	}
}
