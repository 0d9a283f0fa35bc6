package deadletter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const journalFormat = "headrace.replay/1"

// journal is the file that tells which letters were published and perhaps not
// deleted. It knows a letter by its digest: positions may be given anew by a
// broker that was set up afresh, and a letter must never be deleted because
// another one was published.
type journal struct {
	f         *os.File
	path      string
	published map[string]bool
	settled   bool
}

type journalLine struct {
	Format string `json:"format,omitempty"`
	Topic  string `json:"topic,omitempty"`
	// Published is a digest.
	Published string `json:"published,omitempty"`
	ID        string `json:"id,omitempty"`
}

// openJournal reads what an earlier replay left and goes on behind it. A line
// that a crash cut off is dropped.
func openJournal(path, topic string) (*journal, error) {
	fail := func(err error) (*journal, error) { return nil, fmt.Errorf("deadletter: journal %s: %w", path, err) }
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fail(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fail(err)
	}
	j := &journal{f: f, path: path, published: map[string]bool{}}
	whole, err := j.read(topic)
	if err == nil {
		err = f.Truncate(whole)
	}
	if err == nil {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err == nil && whole == 0 {
		err = j.write(journalLine{Format: journalFormat, Topic: topic})
	}
	if err != nil {
		f.Close()
		return fail(err)
	}
	return j, nil
}

// read returns how many bytes of whole lines there are.
func (j *journal) read(topic string) (whole int64, err error) {
	r := bufio.NewReader(j.f)
	for n := 0; ; n++ {
		b, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil
		}
		if err != nil {
			return whole, err
		}
		var l journalLine
		if err := json.Unmarshal(b, &l); err != nil {
			return whole, fmt.Errorf("line %d is none of a replay's: name another file: %w", n+1, err)
		}
		switch {
		case n == 0 && (l.Format != journalFormat || l.Topic != topic):
			return whole, fmt.Errorf("it belongs to a replay of %q, not of %q: finish that one, or name another file", l.Topic, topic)
		case l.Published != "":
			j.published[l.Published] = true
		}
		whole += int64(len(b))
	}
}

// add writes down, safely, that the letters were published.
func (j *journal) add(letters []Letter) error {
	if j == nil || len(letters) == 0 {
		return nil
	}
	lines := make([]journalLine, len(letters))
	for i, l := range letters {
		lines[i] = journalLine{Published: l.Digest(), ID: l.ID}
	}
	return j.write(lines...)
}

func (j *journal) write(lines ...journalLine) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, l := range lines {
		if err := enc.Encode(l); err != nil {
			return fmt.Errorf("deadletter: journal %s: %w", j.path, err)
		}
	}
	if _, err := j.f.Write(b.Bytes()); err != nil {
		return fmt.Errorf("deadletter: journal %s: %w", j.path, err)
	}
	if err := j.f.Sync(); err != nil {
		return fmt.Errorf("deadletter: journal %s: %w", j.path, err)
	}
	return nil
}

func (j *journal) knows(l Letter) bool { return j != nil && j.published[l.Digest()] }

// close ends the journal. One of a replay that left nothing half done is
// removed.
func (j *journal) close() error {
	if j == nil {
		return nil
	}
	err := j.f.Close()
	if j.settled {
		if rmErr := os.Remove(j.path); rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			err = errors.Join(err, rmErr)
		}
	}
	if err != nil {
		return fmt.Errorf("deadletter: journal %s: %w", j.path, err)
	}
	return nil
}
