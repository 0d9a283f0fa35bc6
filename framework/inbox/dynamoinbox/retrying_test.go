package dynamoinbox

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

// retrying sends a write that was not answered once more, as the SDK does.
type retrying struct{ *stub }

func (r retrying) PutItem(ctx context.Context, in *dynamodb.PutItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.PutItemOutput, error) {
	return again(func() (*dynamodb.PutItemOutput, error) { return r.stub.PutItem(ctx, in) })
}

func (r retrying) UpdateItem(ctx context.Context, in *dynamodb.UpdateItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error) {
	return again(func() (*dynamodb.UpdateItemOutput, error) { return r.stub.UpdateItem(ctx, in) })
}

func (r retrying) DeleteItem(ctx context.Context, in *dynamodb.DeleteItemInput, _ ...func(*dynamodb.Options)) (*dynamodb.DeleteItemOutput, error) {
	return again(func() (*dynamodb.DeleteItemOutput, error) { return r.stub.DeleteItem(ctx, in) })
}

func again[T any](send func() (T, error)) (T, error) {
	out, err := send()
	if err != nil && code(err) == "" {
		return send()
	}
	return out, err
}
