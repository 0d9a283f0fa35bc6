package dynamoinbox

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/middleware"
)

// clock is a worker's, which a test sets.
type clock struct{ ns atomic.Int64 }

func newClock(at time.Time) *clock {
	c := &clock{}
	c.ns.Store(at.UnixNano())
	return c
}

func (c *clock) now() time.Time      { return time.Unix(0, c.ns.Load()) }
func (c *clock) add(d time.Duration) { c.ns.Add(int64(d)) }

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// Clocks that differ by up to MaxSkew never give a key to two live workers; one
// that is further ahead takes a claim over early by the rest.
func TestSkew(t *testing.T) {
	t.Parallel()
	const lease, skew = time.Minute, 5 * time.Second
	for _, ahead := range []time.Duration{-time.Hour, -skew, 0, skew, 20 * time.Second} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			client := newStub()
			here, there := newClock(noon), newClock(noon.Add(ahead))
			holder := open(t, Config{Client: client, MaxSkew: skew, Clock: here.now})
			other := open(t, Config{Client: client, MaxSkew: skew, Clock: there.now})
			held, err := holder.Claim(t.Context(), "k", lease)
			require.NoError(t, err)
			free := lease + skew - ahead // what passes until the other may have it
			here.add(free - time.Millisecond)
			there.add(free - time.Millisecond)
			if ahead <= skew {
				require.GreaterOrEqual(t, here.now().Sub(noon), lease-time.Millisecond, "the lease is over for its holder too")
			}
			c, err := other.Claim(t.Context(), "k", lease)
			require.NoError(t, err)
			require.Equal(t, middleware.ClaimBusy, c.State)
			require.Equal(t, time.Millisecond, c.RetryAfter)
			there.add(time.Millisecond)
			c, err = other.Claim(t.Context(), "k", lease)
			require.NoError(t, err)
			require.Equal(t, middleware.ClaimAcquired, c.State)
			require.ErrorIs(t, holder.Commit(t.Context(), held, time.Hour), middleware.ErrClaimLost, "the condition, not a clock, says so")
			require.NoError(t, other.Commit(t.Context(), c, time.Hour))
		})
	}
}

// The TTL lies after the end of what the item holds, whoever's clock is right.
func TestTTL(t *testing.T) {
	t.Parallel()
	client := newStub()
	s := open(t, Config{Client: client, Clock: newClock(noon).now})
	ttl := func() int64 { return number(client.items["k"][attrTTL]) }
	c, err := s.Claim(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	require.Equal(t, noon.Add(time.Minute+DefaultMaxSkew+time.Hour+time.Second).Unix(), ttl())
	require.NoError(t, s.Commit(t.Context(), c, 24*time.Hour))
	require.Equal(t, noon.Add(24*time.Hour+DefaultMaxSkew+time.Hour+time.Second).Unix(), ttl())
	require.Equal(t, noon.Add(24*time.Hour).UnixMilli(), number(client.items["k"][attrExpires]))
}

// The client tries again when an answer was lost: the write was made, so its
// condition does not hold the second time.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	client := newStub()
	s := open(t, Config{Client: retrying{client}})
	lost := 0
	client.applied = func(op string) error {
		if n := len(client.calls); n > 1 && client.calls[n-2] == op {
			return nil // it is the second try
		}
		lost++
		return errors.New("connection reset")
	}
	for _, key := range []string{"committed", "released"} {
		c, err := s.Claim(t.Context(), key, time.Minute)
		require.NoError(t, err)
		require.Equal(t, middleware.ClaimAcquired, c.State)
		require.Equal(t, text(client.items[key][attrToken]), c.Token)
		if key == "released" {
			require.NoError(t, s.Release(t.Context(), c))
			require.Empty(t, client.items[key])
			continue
		}
		require.NoError(t, s.Commit(t.Context(), c, time.Hour))
		require.True(t, flag(client.items[key][attrDone]))
	}
	require.Equal(t, 4, lost)
}

// An answer that comes so late that another may hold the key is no claim.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	client, at := newStub(), newClock(noon)
	s := open(t, Config{Client: client, Clock: at.now})
	client.applied = func(string) error {
		at.add(time.Minute + DefaultMaxSkew)
		return nil
	}
	_, err := s.Claim(t.Context(), "k", time.Minute)
	require.ErrorContains(t, err, "after the lease's end")
	next, err := s.Claim(t.Context(), "k", time.Hour)
	require.NoError(t, err)
	require.Equal(t, middleware.ClaimAcquired, next.State)
}

// Errors name the table and the remedy, and carry the service's code, by which
// the framework knows throttling as transient.
func TestErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		code string
		want string
	}{
		"throttled":   {&types.ProvisionedThroughputExceededException{}, "ProvisionedThroughputExceededException", "bill it on demand"},
		"slowed down": {&smithy.GenericAPIError{Code: "ThrottlingException"}, "ThrottlingException", "bill it on demand"},
		"no table":    {&types.ResourceNotFoundException{}, "ResourceNotFoundException", "TopologyEnsure"},
		"no right":    {&smithy.GenericAPIError{Code: "AccessDeniedException"}, "AccessDeniedException", "dynamodb:PutItem"},
		"no login":    {&smithy.GenericAPIError{Code: "UnrecognizedClientException"}, "UnrecognizedClientException", "credentials"},
		"other table": {invalid("The provided key element does not match the schema"), "ValidationException", "no sort key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newStub()
			s := open(t, Config{Client: client, Table: "payments-dedup"})
			client.fail = func(string) error { return c.err }
			_, claim := s.Claim(t.Context(), "k", time.Minute)
			_, look := Open(t.Context(), Config{Client: client, Table: "payments-dedup"})
			held := middleware.Claim{Key: "k", Token: "t"}
			for _, err := range []error{claim, look, s.Commit(t.Context(), held, time.Hour), s.Release(t.Context(), held)} {
				require.ErrorContains(t, err, `table "payments-dedup"`)
				require.ErrorContains(t, err, c.want)
				require.NotErrorIs(t, err, middleware.ErrClaimLost)
				var api interface{ ErrorCode() string }
				require.ErrorAs(t, err, &api)
				require.Equal(t, c.code, api.ErrorCode())
			}
		})
	}
	client := newStub()
	s := open(t, Config{Client: client})
	client.fail = func(op string) error { // the emulator's way, and the second read fails
		if op == "PutItem" {
			return &types.ConditionalCheckFailedException{}
		}
		return &types.ProvisionedThroughputExceededException{}
	}
	_, err := s.Claim(t.Context(), "k", time.Minute)
	require.ErrorContains(t, err, "throttled")
	client.fail = func(op string) error {
		if op == "PutItem" {
			return &types.ConditionalCheckFailedException{}
		}
		return nil
	}
	c, err := s.Claim(t.Context(), "k", time.Minute)
	require.NoError(t, err)
	require.Equal(t, middleware.Claim{Key: "k", State: middleware.ClaimBusy}, c, "given back between write and read")
}

// The stub is strict: what the service refuses it refuses.
func TestStubIsStrict(t *testing.T) {
	t.Parallel()
	names, values := map[string]string{"#a": "a"}, item{":v": num(1)}
	for _, bad := range []string{"token = :v AND #a = :v", "#a = :w", "#a <= :v AND ttl = :v"} {
		require.Error(t, checkExpressions(names, values, &bad), bad)
	}
	require.Error(t, checkExpressions(names, values, aws.String("attribute_not_exists(#a)")), "a value is unused")
	require.Error(t, checkExpressions(names, nil, nil), "a name is unused")
	_, err := size(item{attrKey: str("k"), "r": &types.AttributeValueMemberB{Value: make([]byte, 400*1024)}})
	require.ErrorContains(t, err, "exceeded the maximum allowed size")
	_, err = holds(nil, aws.String("#a > :v"), names, values)
	require.Error(t, err)
	require.False(t, compare(str("1"), num(1), "="), "types are not converted")
	require.True(t, compare(num(9), num(10), "<="), "numbers are no text")
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), Config{Table: "x", Topology: "create", MaxSkew: -1})
	for _, want := range []string{"Client is nil", `Table is "x"`, `Topology is "create"`, "MaxSkew is -1ns"} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, Config{Client: newStub(), Table: "arn:aws:dynamodb:eu-central-1:123456789012:table/dedup"}.WithDefaults().Validate())
	require.Error(t, Config{Client: newStub(), Table: strings.Repeat("x", 256)}.WithDefaults().Validate())
}
