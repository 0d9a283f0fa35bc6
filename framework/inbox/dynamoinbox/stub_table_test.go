package dynamoinbox

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

func (s *stub) DescribeTable(ctx context.Context, in *dynamodb.DescribeTableInput, _ ...func(*dynamodb.Options)) (*dynamodb.DescribeTableOutput, error) {
	err := s.begin(ctx, "DescribeTable", aws.ToString(in.TableName))
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if s.table.TableStatus == types.TableStatusCreating {
		if s.creating--; s.creating <= 0 {
			s.table.TableStatus = types.TableStatusActive
		}
	}
	described := *s.table
	return &dynamodb.DescribeTableOutput{Table: &described}, nil
}

func (s *stub) CreateTable(ctx context.Context, in *dynamodb.CreateTableInput, _ ...func(*dynamodb.Options)) (*dynamodb.CreateTableOutput, error) {
	err := s.begin(ctx, "CreateTable", aws.ToString(in.TableName))
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if s.table != nil {
		return nil, &types.ResourceInUseException{Message: aws.String("Table already exists")}
	}
	if in.BillingMode != types.BillingModePayPerRequest && in.ProvisionedThroughput == nil {
		return nil, invalid("No provisioned throughput specified for the table")
	}
	if len(in.KeySchema) != len(in.AttributeDefinitions) {
		return nil, invalid("Number of attributes in KeySchema does not exactly match number of attributes defined in AttributeDefinitions")
	}
	s.table = &types.TableDescription{
		TableName: in.TableName, TableStatus: types.TableStatusCreating, KeySchema: in.KeySchema, AttributeDefinitions: in.AttributeDefinitions,
		BillingModeSummary: &types.BillingModeSummary{BillingMode: in.BillingMode},
	}
	s.ttl.TimeToLiveStatus = types.TimeToLiveStatusDisabled
	return &dynamodb.CreateTableOutput{}, s.answer("CreateTable")
}

func (s *stub) DescribeTimeToLive(ctx context.Context, in *dynamodb.DescribeTimeToLiveInput, _ ...func(*dynamodb.Options)) (*dynamodb.DescribeTimeToLiveOutput, error) {
	err := s.begin(ctx, "DescribeTimeToLive", aws.ToString(in.TableName))
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	described := s.ttl
	return &dynamodb.DescribeTimeToLiveOutput{TimeToLiveDescription: &described}, nil
}

func (s *stub) UpdateTimeToLive(ctx context.Context, in *dynamodb.UpdateTimeToLiveInput, _ ...func(*dynamodb.Options)) (*dynamodb.UpdateTimeToLiveOutput, error) {
	err := s.begin(ctx, "UpdateTimeToLive", aws.ToString(in.TableName))
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if s.table.TableStatus != types.TableStatusActive {
		return nil, &types.ResourceInUseException{Message: aws.String("Table is being created")}
	}
	if s.ttl.TimeToLiveStatus != types.TimeToLiveStatusDisabled {
		return nil, invalid("TimeToLive is already enabled")
	}
	s.ttl = types.TimeToLiveDescription{AttributeName: in.TimeToLiveSpecification.AttributeName, TimeToLiveStatus: types.TimeToLiveStatusEnabling}
	return &dynamodb.UpdateTimeToLiveOutput{}, s.answer("UpdateTimeToLive")
}
