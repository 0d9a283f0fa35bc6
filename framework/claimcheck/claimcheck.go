// Package claimcheck keeps payloads that are too large for a broker in a bucket:
// S3 in production, a folder on a laptop, memory in a test. The message carries a
// reference, and the broker's adapter fetches the payload before a handler sees
// the message.
//
// A payload is stored under its own hash, so that a resend writes the same object
// and a reader can tell whether it got what was sent. Several groups read one
// object, and none knows when the last has: nothing is deleted by reading. Give
// the bucket a lifecycle rule that expires objects after the longest time for
// which a message may still come, or call Sweep; a message's queue keeps it 14
// days, and a dead letter may wait longer.
package claimcheck

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/fileblob" // file://
	_ "gocloud.dev/blob/memblob"  // mem://
	_ "gocloud.dev/blob/s3blob"   // s3://
	"gocloud.dev/gcerrors"
)

// DefaultPrefix stands before the name of every object.
const DefaultPrefix = "headrace-payloads/"

// Config configures a Store. One of URL and Bucket is required.
type Config struct {
	// URL names the bucket: "s3://bucket?region=eu-central-1", with
	// "&endpoint=http://127.0.0.1:4566&use_path_style=true" for an emulator; a
	// folder as "file:///var/lib/payloads", or a relative path such as
	// ".headrace/payloads", which is made where it is missing; "mem://" ends with
	// the process.
	URL string
	// Bucket is used instead of URL. Close leaves it open.
	Bucket *blob.Bucket
	// Prefix stands before the name of every object. Default DefaultPrefix.
	Prefix string
}

// Store is a bucket of payloads. It is safe for concurrent use.
type Store struct {
	bucket *blob.Bucket
	own    bool
	prefix string
}

// Open opens the bucket. It fails when the URL is not one that is known; whether
// the bucket answers shows Put.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if (cfg.URL == "") == (cfg.Bucket == nil) {
		return nil, errors.New("claimcheck: set one of URL and Bucket")
	}
	s := &Store{bucket: cfg.Bucket, prefix: cfg.Prefix}
	if s.prefix == "" {
		s.prefix = DefaultPrefix
	}
	if s.bucket != nil {
		return s, nil
	}
	at, err := bucketURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	if s.bucket, err = blob.OpenBucket(ctx, at); err != nil {
		// The library's error names the whole URL.
		reason := strings.ReplaceAll(err.Error(), strconv.Quote(at), shown(cfg.URL))
		return nil, fmt.Errorf("claimcheck: open bucket %s: write s3://name?region=…, a folder, or mem://: %s",
			shown(cfg.URL), strings.ReplaceAll(reason, at, shown(cfg.URL)))
	}
	s.own = true
	return s, nil
}

// bucketURL turns a folder's path into a URL and makes the folder.
func bucketURL(raw string) (string, error) {
	path, isFile := strings.CutPrefix(raw, "file://")
	if strings.Contains(raw, "://") && !isFile {
		return raw, nil
	}
	path, query, _ := strings.Cut(path, "?")
	dir, err := filepath.Abs(filepath.FromSlash(path))
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("claimcheck: make folder %q: %w", path, err)
	}
	params, err := url.ParseQuery(query)
	if err != nil {
		return "", fmt.Errorf("claimcheck: bucket %s: its parameters can't be read: %w", shown(raw), err)
	}
	// Writing beside the file makes the move atomic; attribute files only clutter.
	params.Set("no_tmp_dir", "true")
	params.Set("metadata", "skip")
	slashed := filepath.ToSlash(dir)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed
	}
	return (&url.URL{Scheme: "file", Path: slashed, RawQuery: params.Encode()}).String(), nil
}

// shown is a URL without what may be secret in it.
func shown(raw string) string {
	at, _, _ := strings.Cut(raw, "?")
	if u, err := url.Parse(at); err == nil {
		return fmt.Sprintf("%q", u.Redacted())
	}
	return "(a URL that can't be parsed)"
}

// Put stores payload and returns its reference, which names the payload's hash.
// The same payload gives the same reference; it is written again, so that its age
// starts anew.
func (s *Store) Put(ctx context.Context, payload []byte) (ref string, err error) {
	sum := sha256.Sum256(payload)
	ref = hex.EncodeToString(sum[:])
	err = s.bucket.WriteAll(ctx, s.key(ref), payload, &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return "", fmt.Errorf("claimcheck: write payload %s (%d bytes): %w", ref, len(payload), err)
	}
	return ref, nil
}

// Get returns what Put stored. A payload that is gone, or no longer what was
// stored, gives an error that wraps fs.ErrNotExist.
func (s *Store) Get(ctx context.Context, ref string) ([]byte, error) {
	if len(ref) != 2*sha256.Size || strings.Trim(ref, "0123456789abcdef") != "" {
		return nil, fmt.Errorf("claimcheck: reference %q is none of ours: %w", ref, fs.ErrNotExist)
	}
	payload, err := s.bucket.ReadAll(ctx, s.key(ref))
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, fmt.Errorf("claimcheck: payload %s is gone: did the bucket's lifecycle expire it too early? %w", ref, fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("claimcheck: read payload %s: %w", ref, err)
	}
	if sum := sha256.Sum256(payload); hex.EncodeToString(sum[:]) != ref {
		return nil, fmt.Errorf("claimcheck: payload %s was changed in the bucket (%d bytes): %w", ref, len(payload), fs.ErrNotExist)
	}
	return payload, nil
}

// Sweep deletes payloads that were last written before then and returns how many.
// It is for buckets without a lifecycle rule, such as a folder.
func (s *Store) Sweep(ctx context.Context, before time.Time) (int, error) {
	removed := 0
	list := s.bucket.List(&blob.ListOptions{Prefix: s.prefix})
	for {
		o, err := list.Next(ctx)
		if errors.Is(err, io.EOF) {
			return removed, nil
		}
		if err != nil {
			return removed, fmt.Errorf("claimcheck: list payloads: %w", err)
		}
		if o.IsDir || !o.ModTime.Before(before) {
			continue
		}
		switch err := s.bucket.Delete(ctx, o.Key); {
		case err == nil:
			removed++
		case gcerrors.Code(err) == gcerrors.NotFound: // another sweeper was faster
		default:
			return removed, fmt.Errorf("claimcheck: delete payload %s: %w", o.Key, err)
		}
	}
}

// key is the object's name, in 256 folders so that no folder gets huge.
func (s *Store) key(ref string) string { return s.prefix + ref[:2] + "/" + ref }

// Close closes a bucket that Open opened.
func (s *Store) Close() error {
	if !s.own {
		return nil
	}
	if err := s.bucket.Close(); err != nil {
		return fmt.Errorf("claimcheck: close: %w", err)
	}
	return nil
}
