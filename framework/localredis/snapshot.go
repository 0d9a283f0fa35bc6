package localredis

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// snapshotName is the file in Dir that holds what the embedded server had.
const snapshotName = "embedded.snapshot"

// snapshotFormat is raised when a reader of the older format would go wrong.
const snapshotFormat = 1

// snapshot is everything that an embedded server holds, in the order of the keys.
type snapshot struct {
	Format int
	Keys   []savedKey
}

// savedKey is one key. Which field holds its value says Type.
type savedKey struct {
	Name, Type string
	TTL        time.Duration // 0: does not expire
	Text       string        // string
	List       []string      // list, set; hash: fields and values in turn
	Scores     []savedScore  // zset
	Entries    []savedEntry  // stream
	Groups     []savedGroup  // stream
}

type savedScore struct {
	Member string
	Score  float64
}

type savedEntry struct {
	ID     string
	Values []string
}

type savedGroup struct {
	Name, LastDelivered string
	Pending             []savedPending
}

type savedPending struct {
	ID, Consumer string
	Deliveries   int64
}

// take reads everything that m, which client talks to, holds now. Commands of
// others may run meanwhile.
func take(ctx context.Context, m *miniredis.Miniredis, client *redis.Client) (snapshot, error) {
	s := snapshot{Format: snapshotFormat}
	for _, name := range m.Keys() {
		k := savedKey{Name: name, Type: m.Type(name), TTL: m.TTL(name)}
		err := k.read(ctx, m, client)
		switch {
		case errors.Is(err, miniredis.ErrKeyNotFound) || err != nil && strings.Contains(err.Error(), "no such key"):
			continue // gone meanwhile
		case err != nil:
			return s, fmt.Errorf("read the key %q: %w", name, err)
		}
		s.Keys = append(s.Keys, k)
	}
	return s, nil
}

func (k *savedKey) read(ctx context.Context, m *miniredis.Miniredis, client *redis.Client) (err error) {
	switch k.Type {
	case "string":
		k.Text, err = m.Get(k.Name)
	case "list":
		k.List, err = m.List(k.Name)
	case "set":
		k.List, err = m.Members(k.Name)
		slices.Sort(k.List)
	case "hash":
		var fields []string
		fields, err = m.HKeys(k.Name)
		for _, f := range fields {
			k.List = append(k.List, f, m.HGet(k.Name, f))
		}
	case "zset":
		var scores map[string]float64
		scores, err = m.SortedSet(k.Name)
		for member, score := range scores {
			k.Scores = append(k.Scores, savedScore{member, score})
		}
		slices.SortFunc(k.Scores, func(a, b savedScore) int { return strings.Compare(a.Member, b.Member) })
	case "stream":
		err = k.readStream(ctx, client)
	}
	return err
}

// readStream reads what the groups have got before what of it is pending, and
// the entries last: an entry that is delivered meanwhile is then new or pending,
// and never counts as acked.
func (k *savedKey) readStream(ctx context.Context, client *redis.Client) error {
	groups, err := client.XInfoGroups(ctx, k.Name).Result()
	if err != nil {
		return err
	}
	for _, g := range groups {
		saved := savedGroup{Name: g.Name, LastDelivered: g.LastDeliveredID}
		pending, err := client.XPendingExt(ctx, &redis.XPendingExtArgs{
			Stream: k.Name, Group: g.Name, Start: "-", End: "+", Count: math.MaxInt32,
		}).Result()
		if err != nil && !strings.HasPrefix(err.Error(), "NOGROUP") {
			return err
		}
		for _, p := range pending {
			saved.Pending = append(saved.Pending, savedPending{p.ID, p.Consumer, p.RetryCount})
		}
		k.Groups = append(k.Groups, saved)
	}
	slices.SortFunc(k.Groups, func(a, b savedGroup) int { return strings.Compare(a.Name, b.Name) })
	// The client's own type for entries loses the order of the fields.
	rows, err := client.Do(ctx, "XRANGE", k.Name, "-", "+").Slice()
	if err != nil {
		return err
	}
	for _, row := range rows {
		e, ok := entry(row)
		if !ok {
			return fmt.Errorf("an entry can't be read: %T", row)
		}
		k.Entries = append(k.Entries, e)
	}
	return nil
}

func entry(row any) (e savedEntry, ok bool) {
	pair, _ := row.([]any)
	if len(pair) != 2 {
		return e, false
	}
	id, isText := pair[0].(string)
	values, isList := pair[1].([]any)
	e = savedEntry{ID: id, Values: make([]string, len(values))}
	for i, v := range values {
		if e.Values[i], ok = v.(string); !ok {
			return e, false
		}
	}
	return e, isText && isList
}

// restore puts everything into m, which is empty.
func (s snapshot) restore(ctx context.Context, m *miniredis.Miniredis, client *redis.Client) error {
	for _, k := range s.Keys {
		if err := k.restore(ctx, m, client); err != nil {
			return fmt.Errorf("restore the key %q: %w", k.Name, err)
		}
	}
	return nil
}

func (k savedKey) restore(ctx context.Context, m *miniredis.Miniredis, client *redis.Client) (err error) {
	switch k.Type {
	case "string":
		err = m.Set(k.Name, k.Text)
	case "list":
		_, err = m.Push(k.Name, k.List...)
	case "set":
		_, err = m.SetAdd(k.Name, k.List...)
	case "hash":
		m.HSet(k.Name, k.List...)
	case "zset":
		for _, s := range k.Scores {
			if _, err = m.ZAdd(k.Name, s.Score, s.Member); err != nil {
				break
			}
		}
	case "stream":
		err = k.restoreStream(ctx, m, client)
	}
	if err == nil && k.TTL > 0 {
		m.SetTTL(k.Name, k.TTL)
	}
	return err
}

// restoreStream leaves pending what was pending: it is claimed anew once the
// lease is over, as after the loss of a consumer.
func (k savedKey) restoreStream(ctx context.Context, m *miniredis.Miniredis, client *redis.Client) error {
	here := make(map[string]bool, len(k.Entries))
	for _, e := range k.Entries {
		if _, err := m.XAdd(k.Name, e.ID, e.Values); err != nil {
			return err
		}
		here[e.ID] = true
	}
	for _, g := range k.Groups {
		if err := client.XGroupCreateMkStream(ctx, k.Name, g.Name, g.LastDelivered).Err(); err != nil {
			return fmt.Errorf("group %q: %w", g.Name, err)
		}
		for _, p := range g.Pending {
			if !here[p.ID] {
				continue // acked and trimmed while the snapshot was taken
			}
			err := client.Do(ctx, "XCLAIM", k.Name, g.Name, p.Consumer, 0, p.ID,
				"RETRYCOUNT", p.Deliveries, "FORCE", "JUSTID").Err()
			if err != nil {
				return fmt.Errorf("group %q: entry %s: %w", g.Name, p.ID, err)
			}
		}
	}
	return nil
}

func (s snapshot) encode() ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(s)
	return b.Bytes(), err
}

// readSnapshot returns what dir holds, an empty one where there is none.
func readSnapshot(dir string) (snapshot, error) {
	s := snapshot{Format: snapshotFormat}
	path := filepath.Join(dir, snapshotName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		s = snapshot{}
		err = gob.NewDecoder(bytes.NewReader(b)).Decode(&s)
	}
	if err == nil && s.Format != snapshotFormat {
		err = fmt.Errorf("its format is %d, this program knows %d", s.Format, snapshotFormat)
	}
	if err != nil {
		return s, fmt.Errorf("read what the embedded Redis saved: %s: %w: move the file away to start empty", path, err)
	}
	return s, nil
}

// writeSnapshot replaces what dir holds, all or nothing.
func writeSnapshot(dir string, b []byte) error {
	f, err := os.CreateTemp(dir, snapshotName+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, snapshotName))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
