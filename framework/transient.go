package framework

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/sqltx"
)

// dbError marks an error as the database's own, whose work may be done again.
// An outside call's lost connection looks the same to sqltx.IsTransient and must
// consume an attempt.
type dbError struct{ err error }

func (e *dbError) Error() string { return e.err.Error() }
func (e *dbError) Unwrap() error { return e.err }

// transientError is what Transient returns.
type transientError struct{ err error }

func (e *transientError) Error() string { return e.err.Error() }
func (e *transientError) Unwrap() error { return e.err }

// Transient marks err as an outage that is no fault of the message: it is tried
// again for delivery.transient_budget without consuming attempts, then given back
// to the broker, uncounted, to come again after delivery.backoff_cap. Nil stays
// nil.
//
// The database's conflicts and lost connections, a broker that does not take what
// a handler publishes, and throttling by a cloud service are known without it. A
// lost connection to any other system is not: it consumes attempts, so that a
// gateway that is down for good ends somewhere. RetryAfter is for one that says
// when to come again.
func Transient(err error) error {
	if err == nil {
		return nil
	}
	return &transientError{err}
}

// isTransient goes by types and codes, never by text.
func isTransient(err error) bool {
	var (
		db     *dbError
		marked *transientError
	)
	return errors.As(err, &db) || errors.As(err, &marked) || ofBroker(err) || isThrottled(err) ||
		sqltx.IsTransient(err) && !ofNetwork(err)
}

// ofBroker tells whether the broker did not confirm a publish that it may take
// another time.
func ofBroker(err error) bool {
	var e *broker.PublishError
	return errors.As(err, &e) && !errors.Is(err, broker.ErrRejected)
}

// throttles are the codes with which AWS services ask to slow down.
var throttles = []string{
	"Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
	"TooManyRequestsException", "ProvisionedThroughputExceededException", "RequestLimitExceeded", "SlowDown",
	"BandwidthLimitExceeded", "PriorRequestNotComplete", "TransactionInProgressException", "EC2ThrottledException",
	"KmsThrottled",
}

// busies are the codes with which Redis says that it can't serve now.
var busies = []string{"LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "READONLY", "BUSY"}

// isThrottled goes by the codes that the clients of AWS and of Redis carry, with
// no import of either.
func isThrottled(err error) bool {
	var aws interface{ ErrorCode() string }
	if errors.As(err, &aws) && slices.Contains(throttles, aws.ErrorCode()) {
		return true
	}
	var redis interface {
		error
		RedisError()
	}
	if !errors.As(err, &redis) {
		return false
	}
	code, _, _ := strings.Cut(redis.Error(), " ") // the protocol's own first word
	return slices.Contains(busies, code)
}

// foreignError hides an error from sqltx.Run, which would replay the whole
// transaction for a gateway that refuses connections.
type foreignError struct{ err error }

func (e *foreignError) Error() string { return e.err.Error() }

// ofDatabase tells whether a transient error that a transaction's function
// returned came from the database.
func ofDatabase(ctx context.Context, tx *sql.Tx, err error) bool {
	if !sqltx.IsTransient(err) {
		return false
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) || !ofNetwork(err) {
		return true
	}
	_, probe := tx.ExecContext(ctx, "SELECT 1")
	return probe != nil && sqltx.IsTransient(probe)
}

func ofNetwork(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) || slices.ContainsFunc([]error{
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE,
	}, func(target error) bool { return errors.Is(err, target) })
}
