package dynamoinbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"
)

type item = map[string]types.AttributeValue

// stub is one DynamoDB table in memory, as strict as the service where emulators
// are not: it refuses reserved words, names and values that are given and not
// used, empty keys and items above 400 KB, and it hands the old item over with a
// condition that failed.
type stub struct {
	mu    sync.Mutex
	table *types.TableDescription // nil: none
	ttl   types.TimeToLiveDescription
	items map[string]item
	// fail answers a call instead of the table, when it returns an error.
	fail func(op string) error
	// applied is called after a write was made, before it is answered.
	applied func(op string) error
	// creating is how often a new table is described as not ready.
	creating int
	calls    []string
}

func newStub() *stub { return &stub{items: map[string]item{}} }

func invalid(format string, args ...any) error {
	return &smithy.GenericAPIError{Code: "ValidationException", Message: fmt.Sprintf(format, args...)}
}

// begin locks; the caller unlocks. It returns why the call fails, if it does.
func (s *stub) begin(ctx context.Context, op, table string) error {
	s.mu.Lock()
	s.calls = append(s.calls, op)
	if err := ctx.Err(); err != nil {
		return &aws.RequestCanceledError{Err: err}
	}
	if s.fail != nil {
		if err := s.fail(op); err != nil {
			return err
		}
	}
	if op != "CreateTable" && (s.table == nil || aws.ToString(s.table.TableName) != table) {
		return &types.ResourceNotFoundException{Message: aws.String("Requested resource not found")}
	}
	return nil
}

func (s *stub) answer(op string) error {
	if s.applied != nil {
		return s.applied(op)
	}
	return nil
}

// Some of the reserved words, among them those that this package must escape.
var reserved = regexp.MustCompile(`(?i)\b(token|ttl|key|keys|name|value|status|result|data|state|hash|range|time|timestamp|owner|size|type|count|end)\b`)

var (
	placeholder = regexp.MustCompile(`[#:][A-Za-z0-9_]+`)
	function    = regexp.MustCompile(`^attribute_not_exists\((#\w+)\)$`)
	comparison  = regexp.MustCompile(`^(#\w+) (=|<=) (:\w+)$`)
	assignment  = regexp.MustCompile(`^(#\w+) = (:\w+)$`)
)

func checkExpressions(names map[string]string, values item, expressions ...*string) error {
	used := map[string]bool{}
	for _, e := range expressions {
		for _, p := range placeholder.FindAllString(aws.ToString(e), -1) {
			used[p] = true
			_, name := names[p]
			_, value := values[p]
			if !name && !value {
				return invalid("An expression attribute name or value used in expression is not defined: %s", p)
			}
		}
		if word := reserved.FindString(placeholder.ReplaceAllString(aws.ToString(e), "")); word != "" {
			return invalid("Attribute name is a reserved keyword; reserved keyword: %s", word)
		}
	}
	for _, p := range slices.Concat(slices.Collect(maps.Keys(names)), slices.Collect(maps.Keys(values))) {
		if !used[p] {
			return invalid("Value provided in ExpressionAttributeNames or -Values unused in expressions: %s", p)
		}
	}
	return nil
}

// holds evaluates the conditions that this package writes, OR of ANDs.
func holds(old item, expression *string, names map[string]string, values item) (bool, error) {
	if expression == nil {
		return true, nil
	}
	for _, alternative := range strings.Split(*expression, " OR ") {
		all := true
		for _, term := range strings.Split(alternative, " AND ") {
			if m := function.FindStringSubmatch(term); m != nil {
				all = all && old[names[m[1]]] == nil
				continue
			}
			m := comparison.FindStringSubmatch(term)
			if m == nil {
				return false, invalid("Invalid ConditionExpression: %s", term)
			}
			all = all && compare(old[names[m[1]]], values[m[3]], m[2])
		}
		if all {
			return true, nil
		}
	}
	return false, nil
}

// compare is false for attributes of different types, or that are not there.
func compare(have, want types.AttributeValue, op string) bool {
	switch w := want.(type) {
	case *types.AttributeValueMemberS:
		h, ok := have.(*types.AttributeValueMemberS)
		return ok && op == "=" && h.Value == w.Value
	case *types.AttributeValueMemberBOOL:
		h, ok := have.(*types.AttributeValueMemberBOOL)
		return ok && op == "=" && h.Value == w.Value
	case *types.AttributeValueMemberN:
		h, ok := have.(*types.AttributeValueMemberN)
		return ok && (number(h) == number(w) || op == "<=" && number(h) < number(w))
	}
	return false
}

// size is an item's, as the service counts it for its limit.
func size(i item) (n int, err error) {
	for name, v := range i {
		n += len(name)
		switch v := v.(type) {
		case *types.AttributeValueMemberS:
			n += len(v.Value)
		case *types.AttributeValueMemberB:
			n += len(v.Value)
		case *types.AttributeValueMemberN:
			if _, err := strconv.ParseFloat(v.Value, 64); err != nil || len(v.Value) > 38 {
				return 0, invalid("The parameter cannot be converted to a numeric value: %s", v.Value)
			}
			n += 1 + (len(v.Value)+1)/2
		case *types.AttributeValueMemberBOOL:
			n++
		default:
			return 0, invalid("an attribute of the type %T", v)
		}
	}
	if n > 400*1024 {
		return 0, invalid("Item size has exceeded the maximum allowed size")
	}
	return n, nil
}

func keyOf(i item) (string, error) {
	k, ok := i[attrKey].(*types.AttributeValueMemberS)
	if !ok {
		return "", invalid("One or more parameter values were invalid: Missing the key %s in the item", attrKey)
	}
	if k.Value == "" || len(k.Value) > 2048 {
		return "", invalid("One or more parameter values are not valid: a key of %d bytes", len(k.Value))
	}
	return k.Value, nil
}

// copied shares no bytes with i, as what came over a network.
func copied(i item) item {
	out := maps.Clone(i)
	for name, v := range out {
		if b, ok := v.(*types.AttributeValueMemberB); ok {
			out[name] = &types.AttributeValueMemberB{Value: slices.Clone(b.Value)}
		}
	}
	return out
}

func failedCondition(old item, give types.ReturnValuesOnConditionCheckFailure) error {
	e := &types.ConditionalCheckFailedException{Message: aws.String("The conditional request failed")}
	if give == types.ReturnValuesOnConditionCheckFailureAllOld {
		e.Item = copied(old)
	}
	return e
}

// write checks a write and its condition on the old item, which it returns.
func (s *stub) write(key, expressions item, names map[string]string, give types.ReturnValuesOnConditionCheckFailure, condition *string, more ...*string) (string, item, error) {
	k, err := keyOf(key)
	if err != nil {
		return "", nil, err
	}
	if err := checkExpressions(names, expressions, append(more, condition)...); err != nil {
		return "", nil, err
	}
	old := s.items[k]
	ok, err := holds(old, condition, names, expressions)
	if err == nil && !ok {
		err = failedCondition(old, give)
	}
	return k, old, err
}

func (s *stub) PutItem(ctx context.Context, in *dynamodb.PutItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error) {
	err := s.begin(ctx, "PutItem", aws.ToString(in.TableName))
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	k, _, err := s.write(in.Item, in.ExpressionAttributeValues, in.ExpressionAttributeNames, in.ReturnValuesOnConditionCheckFailure, in.ConditionExpression)
	if err != nil {
		return nil, err
	}
	if _, err := size(in.Item); err != nil {
		return nil, err
	}
	s.items[k] = copied(in.Item)
	return &dynamodb.PutItemOutput{}, s.answer("PutItem")
}

func (s *stub) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	err := s.begin(ctx, "UpdateItem", aws.ToString(in.TableName))
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	k, old, err := s.write(in.Key, in.ExpressionAttributeValues, in.ExpressionAttributeNames, in.ReturnValuesOnConditionCheckFailure, in.ConditionExpression, in.UpdateExpression)
	if err != nil {
		return nil, err
	}
	updated := maps.Clone(old)
	sets, ok := strings.CutPrefix(aws.ToString(in.UpdateExpression), "SET ")
	if !ok {
		return nil, invalid("Invalid UpdateExpression: %s", aws.ToString(in.UpdateExpression))
	}
	for _, set := range strings.Split(sets, ", ") {
		m := assignment.FindStringSubmatch(set)
		if m == nil || in.ExpressionAttributeNames[m[1]] == attrKey {
			return nil, invalid("Invalid UpdateExpression: %s", set)
		}
		updated[in.ExpressionAttributeNames[m[1]]] = in.ExpressionAttributeValues[m[2]]
	}
	if _, err := size(updated); err != nil {
		return nil, err
	}
	s.items[k] = copied(updated)
	return &dynamodb.UpdateItemOutput{}, s.answer("UpdateItem")
}

func (s *stub) DeleteItem(ctx context.Context, in *dynamodb.DeleteItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.DeleteItemOutput, error) {
	err := s.begin(ctx, "DeleteItem", aws.ToString(in.TableName))
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	k, _, err := s.write(in.Key, in.ExpressionAttributeValues, in.ExpressionAttributeNames, in.ReturnValuesOnConditionCheckFailure, in.ConditionExpression)
	if err != nil {
		return nil, err
	}
	delete(s.items, k)
	return &dynamodb.DeleteItemOutput{}, s.answer("DeleteItem")
}

func (s *stub) GetItem(ctx context.Context, in *dynamodb.GetItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error) {
	err := s.begin(ctx, "GetItem", aws.ToString(in.TableName))
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	k, err := keyOf(in.Key)
	if err != nil {
		return nil, err
	}
	if !aws.ToBool(in.ConsistentRead) {
		return nil, errors.New("an eventually consistent read may not see the last write")
	}
	return &dynamodb.GetItemOutput{Item: copied(s.items[k])}, nil
}
