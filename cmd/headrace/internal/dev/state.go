package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// StateFolder is where a workspace keeps what dev makes: binaries, databases,
// mails, logs and the file that says what runs.
const StateFolder = ".headrace"

const stateFile = "dev.json"

// State says what a running dev has started, for other commands to find.
type State struct {
	PID int `json:"pid"`
	// Started tells the process from a later one with the same id; empty where
	// the system does not say.
	Started string `json:"started,omitempty"`
	Env     string `json:"env"`
	// BrokerURL is where the Redis is that was started or given here; empty where
	// the profile and Broker say all.
	BrokerURL string `json:"broker_url,omitempty"`
	// Broker are the variables HEADRACE_BROKER_* that the services were given.
	Broker   map[string]string  `json:"broker,omitempty"`
	Services map[string]Address `json:"services"`
}

// Address is where a service listens.
type Address struct {
	HTTP  string `json:"http"`
	Admin string `json:"admin"`
}

// ErrNotRunning is returned by ReadState when no dev has left its state.
var ErrNotRunning = errors.New("nothing runs here: start it with `headrace dev`")

func (s State) write(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	path := filepath.Join(dir, stateFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write the state: %w", err)
	}
	return nil
}

// ReadState reads what the dev of the workspace at root has started. A state
// whose process is gone counts as ErrNotRunning.
func ReadState(root string) (State, error) {
	var s State
	path := filepath.Join(root, StateFolder, stateFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, ErrNotRunning
	}
	if err != nil {
		return s, fmt.Errorf("read %s: %w", path, err)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("read %s: %w: remove it and start `headrace dev` again", path, err)
	}
	if !s.runs() {
		return s, ErrNotRunning
	}
	return s, nil
}

// runs tells whether the process that wrote the state is still there: another one
// may have got its id.
func (s State) runs() bool {
	if !alive(s.PID) {
		return false
	}
	if started := processStart(s.PID); s.Started != "" && started != "" {
		return s.Started == started
	}
	for _, a := range s.Services {
		if addr, ok := strings.CutPrefix(a.Admin, "http://"); ok && accepts(addr) {
			return true
		}
	}
	return len(s.Services) == 0
}

func accepts(addr string) bool {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
