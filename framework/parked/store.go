// Package parked keeps, in a service's database, the messages that hold up
// their key: the first of a line failed for good, the others came behind it.
// Store is a middleware.ParkStore.
package parked

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/headrace-go/headrace/framework/internal/failpoint"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/middleware"
)

// Config configures a Store.
type Config struct {
	// DB holds the table headrace_parked_keys. Required.
	DB *sql.DB
	// Dialect is DB's. Required.
	Dialect sqltx.Dialect
	// Group is the consumer group whose lines it keeps. Required, at most 255
	// bytes.
	Group string
	// Clock defaults to time.Now.
	Clock func() time.Time
}

// Validate reports every field that can't work.
func (c Config) Validate() error {
	errs := []error{c.Dialect.Validate()}
	if c.DB == nil {
		errs = append(errs, errors.New("parked: DB is nil: pass the service's database"))
	}
	if c.Group == "" || len(c.Group) > maxBytes {
		errs = append(errs, fmt.Errorf("parked: Group has %d bytes: give it 1 to %d", len(c.Group), maxBytes))
	}
	return errors.Join(errs...)
}

// Store keeps the lines of one group. It is safe for concurrent use, by any
// number of replicas.
type Store struct {
	cfg Config
	q   querySet
}

var _ middleware.ParkStore = (*Store)(nil)

// NewStore makes a Store. It opens nothing.
func NewStore(cfg Config) (*Store, error) {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, q: queriesOf(cfg.Dialect)}, nil
}

// Head looks who is first in the key's line: one indexed query.
func (s *Store) Head(ctx context.Context, key, id string, seq int64) (middleware.ParkHead, error) {
	return s.head(ctx, s.cfg.DB, key, id, seq)
}

func (s *Store) head(ctx context.Context, db sqltx.Execer, key, id string, seq int64) (h middleware.ParkHead, err error) {
	err = db.QueryRowContext(ctx, s.q.head, s.cfg.Group, column(key)).Scan(&h.Seq, &h.ID)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return middleware.ParkHead{}, nil
	case err != nil:
		return middleware.ParkHead{}, fmt.Errorf("parked: look for parked messages of %s: %w", s.cfg.Group, err)
	}
	h.Parked, h.Mine = true, seq > 0 && h.Seq == seq || h.ID == column(id)
	return h, nil
}

// Add puts the message at the end of the line; one that is in it keeps its
// place. The row is committed when it returns.
func (s *Store) Add(ctx context.Context, key, id string, seq int64) (own int64, head middleware.ParkHead, err error) {
	opts := sqltx.Options{Dialect: s.cfg.Dialect}
	if s.cfg.Dialect == sqltx.MySQL {
		opts.Isolation = sql.LevelReadCommitted // without gap locks: others insert beside it
	}
	err = sqltx.Run(ctx, s.cfg.DB, opts, func(ctx context.Context, tx *sql.Tx) error {
		find := func() error {
			return tx.QueryRowContext(ctx, s.q.find, s.cfg.Group, column(key), seq, column(id)).Scan(&own)
		}
		err := find()
		if errors.Is(err, sql.ErrNoRows) {
			if _, err = tx.ExecContext(ctx, s.q.add, s.cfg.Group, column(key), column(id), s.cfg.Clock().UnixMicro()); err == nil {
				err = find() // a copy that came at the same time may have been faster
			}
		}
		if err == nil {
			head, err = s.head(ctx, tx, key, id, own)
		}
		return err
	})
	if err != nil {
		return 0, middleware.ParkHead{}, fmt.Errorf("parked: park a message of %s: %w", s.cfg.Group, err)
	}
	failpoint.Hit("parked.added")
	return own, head, nil
}

// Remove takes a message out of its line.
func (s *Store) Remove(ctx context.Context, key, id string, seq int64) error {
	if _, err := s.cfg.DB.ExecContext(ctx, s.q.remove, s.cfg.Group, column(key), seq, column(id)); err != nil {
		return fmt.Errorf("parked: take a message of %s out of its line: %w", s.cfg.Group, err)
	}
	return nil
}

// RemoveIn takes the message at seq out of its line, in the caller's
// transaction.
func (s *Store) RemoveIn(ctx context.Context, tx sqltx.Execer, seq int64) error {
	if _, err := tx.ExecContext(ctx, s.q.removeSeq, s.cfg.Group, seq); err != nil {
		return fmt.Errorf("parked: take a message of %s out of its line: %w", s.cfg.Group, err)
	}
	return nil
}

// Clear forgets all lines of the group and returns how many messages stood in
// them.
func (s *Store) Clear(ctx context.Context) (int64, error) {
	res, err := s.cfg.DB.ExecContext(ctx, s.q.clear, s.cfg.Group)
	if err != nil {
		return 0, fmt.Errorf("parked: forget the parked messages of %s: %w", s.cfg.Group, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("parked: forget the parked messages of %s: %w", s.cfg.Group, err)
	}
	return n, nil
}

// Count returns how many messages of the group stand in lines, and in how many
// lines.
func (s *Store) Count(ctx context.Context) (messages, keys int64, err error) {
	if err := s.cfg.DB.QueryRowContext(ctx, s.q.count, s.cfg.Group).Scan(&messages, &keys); err != nil {
		return 0, 0, fmt.Errorf("parked: count the parked messages of %s: %w", s.cfg.Group, err)
	}
	return messages, keys, nil
}

// maxBytes is the longest value of a column.
const maxBytes = 255

// column is v as the table holds it. What a column could not hold, or what a
// database might take for another, is replaced by its hash.
func column(v string) string {
	odd := func(r rune) bool { return r < 0x20 || r == 0x7f }
	if len(v) <= maxBytes && utf8.ValidString(v) && !strings.ContainsFunc(v, odd) {
		return v
	}
	sum := sha256.Sum256([]byte(v))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// querySet is the queries of a dialect. Placeholders come once each and in
// order.
type querySet struct {
	head      string // group, key
	find      string // group, key, seq, id
	add       string // group, key, id, time
	remove    string // group, key, seq, id
	removeSeq string // group, seq
	clear     string // group
	count     string // group
}

func queriesOf(d sqltx.Dialect) querySet {
	add := `INSERT INTO headrace_parked_keys (handler, ordering_key, event_id, parked_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`
	if d == sqltx.MySQL {
		// Of the errors that IGNORE would hide none but the duplicate can come.
		add = `INSERT IGNORE INTO headrace_parked_keys (handler, ordering_key, event_id, parked_at) VALUES ($1, $2, $3, $4)`
	}
	return querySet{
		head:      d.Rebind(`SELECT seq, event_id FROM headrace_parked_keys WHERE handler = $1 AND ordering_key = $2 ORDER BY seq LIMIT 1`),
		find:      d.Rebind(`SELECT seq FROM headrace_parked_keys WHERE handler = $1 AND ordering_key = $2 AND (seq = $3 OR event_id = $4) ORDER BY seq LIMIT 1`),
		add:       d.Rebind(add),
		remove:    d.Rebind(`DELETE FROM headrace_parked_keys WHERE handler = $1 AND ordering_key = $2 AND (seq = $3 OR event_id = $4)`),
		removeSeq: d.Rebind(`DELETE FROM headrace_parked_keys WHERE handler = $1 AND seq = $2`),
		clear:     d.Rebind(`DELETE FROM headrace_parked_keys WHERE handler = $1`),
		count:     d.Rebind(`SELECT count(*), count(DISTINCT ordering_key) FROM headrace_parked_keys WHERE handler = $1`),
	}
}
