package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/middleware"
)

// SQLStore is a middleware.ResultStore in the table headrace_dedup. A claim is a
// lease by the database's clock, so workers whose clocks differ never both hold
// a key; a claim whose worker died frees itself when the lease ends. It is safe
// for concurrent use by any number of processes.
type SQLStore struct {
	db   *sql.DB
	opts sqltx.Options
	q    querySet
}

var _ middleware.ResultStore = (*SQLStore)(nil)

// NewSQLStore makes a store on db, which must have the tables of package schema.
func NewSQLStore(db *sql.DB, d sqltx.Dialect) (*SQLStore, error) {
	if db == nil {
		return nil, errors.New("inbox: NewSQLStore: db is nil")
	}
	q, ok := queries[d]
	if !ok {
		return nil, d.Validate()
	}
	return &SQLStore{db: db, opts: sqltx.Options{Dialect: d, Isolation: q.isolation, MaxElapsed: 5 * time.Second}, q: q}, nil
}

// Claim takes the key for the lease, unless it is done or busy.
func (s *SQLStore) Claim(ctx context.Context, key string, lease time.Duration) (middleware.Claim, error) {
	if err := middleware.CheckDedupKey(key); err != nil {
		return middleware.Claim{}, fmt.Errorf("inbox: %w", err)
	}
	if lease <= 0 {
		return middleware.Claim{}, fmt.Errorf("inbox: the lease of a claim is %s: it must be positive", lease)
	}
	c := middleware.Claim{Key: key, Token: uuid.NewString()}
	err := sqltx.Run(ctx, s.db, s.opts, func(ctx context.Context, tx *sql.Tx) error {
		if s.q.returns {
			var got string
			err := tx.QueryRowContext(ctx, s.q.claim, key, c.Token, lease.Microseconds()).Scan(&got)
			if err == nil {
				c.State = middleware.ClaimAcquired
				return nil
			}
			if !errors.Is(err, sql.ErrNoRows) {
				return err
			}
		} else if _, err := tx.ExecContext(ctx, s.q.claim, key, c.Token, lease.Microseconds()); err != nil {
			return err
		}
		var token string
		var done bool
		var left int64
		var result []byte
		err := tx.QueryRowContext(ctx, s.q.look, key).Scan(&token, &done, &left, &result)
		switch {
		case errors.Is(err, sql.ErrNoRows): // given back in between
			c.State, c.RetryAfter, c.Result = middleware.ClaimBusy, 0, nil
			return nil
		case err != nil:
			return err
		case token == c.Token:
			c.State = middleware.ClaimAcquired
		case done:
			c.State, c.Result = middleware.ClaimDone, result
		default:
			c.State, c.RetryAfter = middleware.ClaimBusy, max(time.Duration(left)*time.Microsecond, 0)
		}
		return nil
	})
	if err != nil {
		return middleware.Claim{}, fmt.Errorf("inbox: claim %q: %w", key, err)
	}
	if c.State != middleware.ClaimAcquired {
		c.Token = ""
	}
	return c, nil
}

// Commit turns an acquired claim into a done key for the retention.
func (s *SQLStore) Commit(ctx context.Context, c middleware.Claim, retention time.Duration) error {
	return s.commit(ctx, c, retention, nil)
}

// CommitResult is Commit which keeps result with the mark.
func (s *SQLStore) CommitResult(ctx context.Context, c middleware.Claim, retention time.Duration, result []byte) error {
	if err := middleware.CheckResult(result); err != nil {
		return fmt.Errorf("inbox: commit the claim on %q: %w", c.Key, err)
	}
	if len(result) == 0 {
		return s.commit(ctx, c, retention, nil)
	}
	return s.commit(ctx, c, retention, result)
}

// commit takes a result or nil, which SQL calls NULL.
func (s *SQLStore) commit(ctx context.Context, c middleware.Claim, retention time.Duration, result any) error {
	if retention <= 0 {
		return fmt.Errorf("inbox: the retention of a dedup key is %s: it must be positive", retention)
	}
	n, err := s.exec(ctx, s.q.commit, result, retention.Microseconds(), c.Key, c.Token)
	if err != nil {
		return fmt.Errorf("inbox: commit the claim on %q: %w", c.Key, err)
	}
	if n == 0 {
		return fmt.Errorf("inbox: commit the claim on %q: %w", c.Key, middleware.ErrClaimLost)
	}
	return nil
}

// Release gives an acquired claim back. One that is gone is no error.
func (s *SQLStore) Release(ctx context.Context, c middleware.Claim) error {
	if _, err := s.exec(ctx, s.q.release, c.Key, c.Token); err != nil {
		return fmt.Errorf("inbox: release the claim on %q: %w", c.Key, err)
	}
	return nil
}

func (s *SQLStore) exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = sqltx.Run(ctx, s.db, s.opts, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err = res.RowsAffected()
		return err
	})
	return n, err
}
