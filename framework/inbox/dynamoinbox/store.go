package dynamoinbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/uuid"

	"github.com/headrace-go/headrace/middleware"
)

// Attributes of an item.
const (
	attrKey     = "id"         // S, the partition key
	attrToken   = "token"      // S, who holds or held the claim
	attrDone    = "done"       // BOOL
	attrExpires = "expires_at" // N, unix milliseconds: the lease's end, or the mark's
	attrResult  = "result"     // B, kept with a mark
	attrTTL     = "ttl"        // N, unix seconds: when DynamoDB may remove the item
)

// ttlSlack is how long after its end DynamoDB may remove an item at the earliest:
// its clock may be ahead of the worker's.
const ttlSlack = time.Hour

// Store is a middleware.ResultStore in DynamoDB. It is safe for concurrent use by
// any number of processes.
type Store struct {
	cfg      Config
	ttlSlack time.Duration
}

var _ middleware.ResultStore = (*Store)(nil)

// Open makes a Store on a table that it looks at, or creates, as cfg.Topology
// says. The error names the table and what to do.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, ttlSlack: ttlSlack}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Claim takes the key for the lease, which begins with the call, unless it is
// done or busy. Leases count in milliseconds, rounded up.
func (s *Store) Claim(ctx context.Context, key string, lease time.Duration) (middleware.Claim, error) {
	if err := middleware.CheckDedupKey(key); err != nil {
		return middleware.Claim{}, fmt.Errorf("dynamoinbox: %w", err)
	}
	if lease <= 0 {
		return middleware.Claim{}, fmt.Errorf("dynamoinbox: the lease of a claim is %s: it must be positive", lease)
	}
	now := s.cfg.Clock()
	expires := ends(now, lease)
	token := uuid.NewString()
	_, err := s.cfg.Client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: &s.cfg.Table,
		Item: map[string]types.AttributeValue{
			attrKey:     str(key),
			attrToken:   str(token),
			attrDone:    &types.AttributeValueMemberBOOL{Value: false},
			attrExpires: num(expires),
			attrTTL:     num(s.ttl(expires)),
		},
		ConditionExpression:      aws.String("attribute_not_exists(#id) OR #expires <= :over"),
		ExpressionAttributeNames: map[string]string{"#id": attrKey, "#expires": attrExpires},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":over": num(now.Add(-s.cfg.MaxSkew).UnixMilli()),
		},
		ReturnValuesOnConditionCheckFailure: types.ReturnValuesOnConditionCheckFailureAllOld,
	})
	if err == nil {
		return s.acquired(key, token, expires)
	}
	var taken *types.ConditionalCheckFailedException
	if !errors.As(err, &taken) {
		return middleware.Claim{}, s.failed("claim", key, err)
	}
	item := taken.Item
	if len(item) == 0 { // not every emulator tells
		if item, err = s.read(ctx, key); err != nil {
			return middleware.Claim{}, s.failed("claim", key, err)
		}
	}
	switch {
	case len(item) == 0: // given back in between
		return middleware.Claim{Key: key, State: middleware.ClaimBusy}, nil
	case text(item[attrToken]) == token: // the answer to an earlier try was lost
		return s.acquired(key, token, expires)
	case flag(item[attrDone]):
		return middleware.Claim{Key: key, State: middleware.ClaimDone, Result: bytesOf(item[attrResult])}, nil
	}
	left := time.UnixMilli(number(item[attrExpires])).Add(s.cfg.MaxSkew).Sub(s.cfg.Clock())
	return middleware.Claim{Key: key, State: middleware.ClaimBusy, RetryAfter: max(left, 0)}, nil
}

// acquired refuses a claim that another may have taken over before its answer
// came.
func (s *Store) acquired(key, token string, expires int64) (middleware.Claim, error) {
	if late := s.cfg.Clock().Sub(time.UnixMilli(expires)); late >= s.cfg.MaxSkew {
		return middleware.Claim{}, fmt.Errorf("dynamoinbox: claim %q in table %q: the answer came %s after the lease's end: lengthen the lease or look at the way to DynamoDB", key, s.cfg.Table, late)
	}
	return middleware.Claim{Key: key, Token: token, State: middleware.ClaimAcquired}, nil
}

// Commit turns an acquired claim into a done key for the retention.
func (s *Store) Commit(ctx context.Context, c middleware.Claim, retention time.Duration) error {
	return s.CommitResult(ctx, c, retention, nil)
}

// CommitResult is Commit which keeps result with the mark. A write costs a unit
// for each kilobyte of it.
func (s *Store) CommitResult(ctx context.Context, c middleware.Claim, retention time.Duration, result []byte) error {
	if err := middleware.CheckResult(result); err != nil {
		return fmt.Errorf("dynamoinbox: commit the claim on %q: %w", c.Key, err)
	}
	if retention <= 0 {
		return fmt.Errorf("dynamoinbox: the retention of a dedup key is %s: it must be positive", retention)
	}
	expires := ends(s.cfg.Clock(), retention)
	in := &dynamodb.UpdateItemInput{
		TableName:                &s.cfg.Table,
		Key:                      map[string]types.AttributeValue{attrKey: str(c.Key)},
		UpdateExpression:         aws.String("SET #done = :done, #expires = :expires, #ttl = :ttl"),
		ConditionExpression:      aws.String("#token = :token"),
		ExpressionAttributeNames: map[string]string{"#done": attrDone, "#expires": attrExpires, "#ttl": attrTTL, "#token": attrToken},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":done":    &types.AttributeValueMemberBOOL{Value: true},
			":expires": num(expires),
			":ttl":     num(s.ttl(expires)),
			":token":   str(c.Token),
		},
	}
	if len(result) > 0 {
		*in.UpdateExpression += ", #result = :result"
		in.ExpressionAttributeNames["#result"] = attrResult
		in.ExpressionAttributeValues[":result"] = &types.AttributeValueMemberB{Value: result}
	}
	if _, err := s.cfg.Client.UpdateItem(ctx, in); err != nil {
		return s.failed("commit the claim on", c.Key, lost(err))
	}
	return nil
}

// Release gives an acquired claim back. One that is gone is no error.
func (s *Store) Release(ctx context.Context, c middleware.Claim) error {
	_, err := s.cfg.Client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName:                &s.cfg.Table,
		Key:                      map[string]types.AttributeValue{attrKey: str(c.Key)},
		ConditionExpression:      aws.String("#token = :token AND #done = :false"),
		ExpressionAttributeNames: map[string]string{"#token": attrToken, "#done": attrDone},
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":token": str(c.Token),
			":false": &types.AttributeValueMemberBOOL{Value: false},
		},
	})
	if err != nil && !errors.Is(lost(err), middleware.ErrClaimLost) {
		return s.failed("release the claim on", c.Key, err)
	}
	return nil
}

func (s *Store) read(ctx context.Context, key string) (map[string]types.AttributeValue, error) {
	out, err := s.cfg.Client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName:      &s.cfg.Table,
		Key:            map[string]types.AttributeValue{attrKey: str(key)},
		ConsistentRead: aws.Bool(true),
	})
	if err != nil {
		return nil, err
	}
	return out.Item, nil
}

// lost is ErrClaimLost for a condition that did not hold.
func lost(err error) error {
	var failed *types.ConditionalCheckFailedException
	if errors.As(err, &failed) {
		return middleware.ErrClaimLost
	}
	return err
}

// ends is when d from now is over, in unix milliseconds, rounded up.
func ends(now time.Time, d time.Duration) int64 {
	return now.Add(d + time.Millisecond - 1).UnixMilli()
}

func (s *Store) ttl(expires int64) int64 {
	return time.UnixMilli(expires).Add(s.cfg.MaxSkew+s.ttlSlack).Unix() + 1
}

func str(s string) types.AttributeValue { return &types.AttributeValueMemberS{Value: s} }

func num(n int64) types.AttributeValue {
	return &types.AttributeValueMemberN{Value: strconv.FormatInt(n, 10)}
}

func text(v types.AttributeValue) string {
	if s, ok := v.(*types.AttributeValueMemberS); ok {
		return s.Value
	}
	return ""
}

func flag(v types.AttributeValue) bool {
	b, ok := v.(*types.AttributeValueMemberBOOL)
	return ok && b.Value
}

func bytesOf(v types.AttributeValue) []byte {
	if b, ok := v.(*types.AttributeValueMemberB); ok {
		return b.Value
	}
	return nil
}

func number(v types.AttributeValue) int64 {
	if n, ok := v.(*types.AttributeValueMemberN); ok {
		i, _ := strconv.ParseInt(n.Value, 10, 64)
		return i
	}
	return 0
}
