package dynamoinbox

import (
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go"

	"github.com/headrace-go/headrace/middleware"
)

// failed says what could not be done, in which table, and what to do about it.
// The client's error stays in the chain: throttling by its code, an ended context
// as such.
func (s *Store) failed(what, key string, err error) error {
	if errors.Is(err, middleware.ErrClaimLost) {
		return fmt.Errorf("dynamoinbox: %s %q: %w", what, key, err)
	}
	return fmt.Errorf("dynamoinbox: %s %q in table %q: %w%s", what, key, s.cfg.Table, err, remedy(err))
}

// remedy is what to do about an error of the client, or "".
func remedy(err error) string {
	var missing *types.ResourceNotFoundException
	if errors.As(err, &missing) {
		return ": create the table in this account and region, with the partition key \"" + attrKey + "\" (S) and TTL on \"" + attrTTL + "\", or open it with TopologyEnsure in development"
	}
	switch code(err) {
	case "AccessDeniedException":
		return ": allow the process's role dynamodb:PutItem, GetItem, UpdateItem, DeleteItem, DescribeTable and DescribeTimeToLive on it (and CreateTable and UpdateTimeToLive for TopologyEnsure)"
	case "UnrecognizedClientException", "InvalidSignatureException", "ExpiredTokenException", "MissingAuthenticationTokenException":
		return ": give the process credentials that are valid in this region"
	case "ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded":
		return ": the table is throttled: it is tried again; bill it on demand, or raise its write capacity"
	case "ValidationException":
		return ": is the table one of this package, with the partition key \"" + attrKey + "\" (S) and no sort key?"
	}
	return ""
}

// code is the service's error code, or "".
func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}
