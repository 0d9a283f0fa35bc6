package dev

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
)

// answerWithin bounds how long a server of a profile may take to answer.
const answerWithin = 5 * time.Second

// OpenBroker opens the broker that the services of a workspace share by p, one of
// their profiles, for a command that looks at the running system. Folder is the
// one in which the services run: paths are relative to it. A broker that other
// processes can't reach, and one whose address nobody knows, are errors.
func OpenBroker(ctx context.Context, p config.Profile, folder string) (*connect.Connections, error) {
	switch {
	case p.Broker.Kind == "memory":
		return nil, fmt.Errorf("the broker of profile %q is memory, which other processes can't reach: name another profile with --env, or a broker with --broker and --url", p.Env)
	case p.Broker.Kind == "redisstream" && p.Broker.URL == "":
		return nil, fmt.Errorf("no broker is known: %w, or set HEADRACE_BROKER_URL, or name one with --broker and --url", ErrNotRunning)
	}
	return connect.OpenBroker(ctx, InFolder(p, folder), slog.New(slog.DiscardHandler))
}

// Environ is environ with the settings of the broker that the running services
// have.
func (s State) Environ(environ []string) []string {
	set := map[string]string{}
	for k, v := range s.Broker {
		set[k] = v
	}
	if s.BrokerURL != "" {
		set[config.EnvName("broker.url")] = s.BrokerURL
	}
	return overlay(environ, set)
}

// Open opens the broker of the services that run. Folder is the one that holds
// StateFolder.
func (s State) Open(ctx context.Context, w *Workspace, folder string, environ []string) (*connect.Connections, error) {
	if len(w.Services) == 0 {
		return nil, ErrNoWorkspace
	}
	p, err := w.Profile(w.Services[0].Name, s.Env, s.Environ(environ))
	if err != nil {
		return nil, err
	}
	return OpenBroker(ctx, p, folder)
}

// brokerSettings are the variables of environ that say where the broker is.
func brokerSettings(environ []string) map[string]string {
	set := map[string]string{}
	for _, kv := range environ {
		if k, v, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "HEADRACE_BROKER_") {
			set[k] = v
		}
	}
	return set
}

// InFolder makes paths of the profile that are relative to the services' folder
// ones that work from here.
func InFolder(p config.Profile, folder string) config.Profile {
	at := func(path string) string {
		if path == "" || path == ":memory:" || strings.HasPrefix(path, "file:") || strings.Contains(path, "://") || filepath.IsAbs(path) {
			return path
		}
		return filepath.Join(folder, path)
	}
	if p.Database.Driver == "sqlite" {
		p.Database.DSN = config.Secret(at(p.Database.DSN.Reveal()))
	}
	if path, ok := strings.CutPrefix(p.Broker.URL.Reveal(), "sqlite:"); ok && p.Broker.Kind == "sql" {
		p.Broker.URL = config.Secret("sqlite:" + at(path))
	}
	if p.Broker.IsAWS() {
		p.Broker.AWS.ClaimCheckURL = config.Secret(at(p.Broker.AWS.ClaimCheckURL.Reveal()))
	}
	return p
}

// profiles reads what the services would run with, and says of all of them what
// is missing.
func (w *Workspace) profiles(o Options) (map[string]config.Profile, error) {
	all := map[string]config.Profile{}
	var faults []string // each once, however many services have it
	whose := map[string][]string{}
	for _, s := range w.Services {
		p, err := w.Profile(s.Name, o.Env, o.Environ)
		if err == nil && p.Broker.Kind == "memory" {
			err = errors.New("its broker is memory, which reaches one process only: choose another profile")
		}
		if err != nil {
			why := strings.TrimPrefix(err.Error(), fmt.Sprintf("service %s: profile %q: ", s.Name, o.Env))
			if whose[why] == nil {
				faults = append(faults, why)
			}
			whose[why] = append(whose[why], s.Name)
		}
		all[s.Name] = p
	}
	var errs []error
	for _, why := range faults {
		errs = append(errs, fmt.Errorf("profile %q of %s: %s", o.Env, strings.Join(whose[why], ", "), why))
	}
	err := errors.Join(errs...)
	if err != nil && strings.Contains(err.Error(), config.EnvName("database.dsn")) {
		err = fmt.Errorf("%w\nin %s the word {service} stands for the service's name, such as postgres://host/{service}", err, config.EnvName("database.dsn"))
	}
	return all, err
}

// reach asks the servers of the profiles whether they are there, before anything
// is built: a service that waits for its database tells it only in its log.
func reach(ctx context.Context, all map[string]config.Profile) error {
	var (
		asked []config.Broker
		errs  []error
	)
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := all[name]
		p.Database.ConnectTimeout = answerWithin
		quiet := slog.New(slog.DiscardHandler)
		if server := p.Database.Driver; server == "postgres" || server == "mysql" {
			c, err := connect.OpenDatabase(ctx, p, quiet)
			if err != nil {
				errs = append(errs, fmt.Errorf("profile %q of %s needs a database: %w", p.Env, name, err))
			} else {
				_ = c.Close()
			}
		}
		local := p.Broker.Kind == "redisstream" && p.Broker.URL == "" || strings.HasPrefix(p.Broker.URL.Reveal(), "sqlite:")
		if local || slices.ContainsFunc(asked, func(b config.Broker) bool { return same(b, p.Broker) }) {
			continue
		}
		asked = append(asked, p.Broker)
		p.Broker.AWS.ClaimCheckURL = "" // opening a folder makes it
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		c, err := connect.OpenBroker(ctx, p, quiet)
		cancel()
		if err != nil {
			errs = append(errs, fmt.Errorf("profile %q of %s needs a broker: %w", p.Env, name, err))
			continue
		}
		_ = c.Close()
	}
	return errors.Join(errs...)
}

func same(a, b config.Broker) bool {
	return a.Kind == b.Kind && a.URL == b.URL && a.AWS.Endpoint == b.AWS.Endpoint && a.AWS.Region == b.AWS.Region
}
