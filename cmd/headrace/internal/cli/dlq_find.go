package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/spf13/pflag"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
)

// findBroker is the flags that say where the dead letters are.
type findBroker struct {
	dir, state, env, service  string
	kind, url, prefix, folder string
}

func (f *findBroker) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.dir, "dir", ".", "a folder of the workspace")
	flags.StringVar(&f.state, "state", "", "the folder that `headrace dev` was given as --state (default: the workspace)")
	flags.StringVar(&f.env, "env", "", "use the broker of this profile of the services, whether `headrace dev` runs or not")
	flags.StringVar(&f.service, "service", "", "whose profile it is (default: the group's service, else the only one)")
	flags.StringVar(&f.kind, "broker", "", "use a broker of this kind, such as redisstream, at --url")
	flags.StringVar(&f.url, "url", "", "the broker's address; HEADRACE_BROKER_URL keeps its password off the command line")
	flags.StringVar(&f.prefix, "prefix", "", "what stands before each key in the broker, with --broker")
	flags.StringVar(&f.folder, "files", "", "keep archives, journals and the audit here (default: .headrace/dlq)")
}

// place is an open broker and the folder for what dlq writes.
type place struct {
	broker broker.Broker
	conns  *connect.Connections
	folder string
}

func (p *place) Close() { _ = p.conns.Close() }

// open opens the broker. Group helps to find the service; it may be empty.
func (f findBroker) open(ctx context.Context, group string) (*place, error) {
	profile, root, err := f.profile(group, environ())
	if err != nil {
		return nil, err
	}
	switch {
	case profile.Broker.Kind == "memory":
		return nil, fmt.Errorf("the broker of profile %q is memory, which other processes can't reach: name another profile with --env, or a broker with --broker and --url", profile.Env)
	case profile.Broker.Kind == "redisstream" && profile.Broker.URL == "":
		return nil, fmt.Errorf("no broker is known: %w, or set HEADRACE_BROKER_URL, or name one with --broker and --url", dev.ErrNotRunning)
	}
	conns, err := connect.OpenBroker(ctx, profile, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	folder := f.folder
	if folder == "" {
		folder = filepath.Join(root, dev.StateFolder, "dlq")
	}
	return &place{broker: conns.Broker, conns: conns, folder: folder}, nil
}

// profile finds what to open, and the folder under which state is kept.
func (f findBroker) profile(group string, environ []string) (p config.Profile, root string, err error) {
	root = f.state
	if f.kind != "" || f.url != "" {
		if root == "" {
			root = "."
		}
		p, err = f.named(environ)
		return p, root, err
	}
	env := f.env
	if env == "" {
		env = lookup(environ, config.EnvEnv, "local")
	}
	w, err := dev.Find(f.dir, env)
	if err != nil {
		return p, root, fmt.Errorf("%w; or name the broker with --broker and --url", err)
	}
	if root == "" {
		root = w.Root
	}
	if f.env == "" {
		state, err := dev.ReadState(root)
		if err == nil {
			environ = dev.Overlay(environ, map[string]string{"HEADRACE_BROKER_URL": state.BrokerURL})
			env = state.Env
		} else if !errors.Is(err, dev.ErrNotRunning) {
			return p, root, err
		}
	}
	p, err = f.ofService(w, group, env, environ)
	return p, root, err
}

// named is the broker of the flags --broker and --url.
func (f findBroker) named(environ []string) (config.Profile, error) {
	p := config.Default()
	url := f.url
	if url == "" {
		url = lookup(environ, "HEADRACE_BROKER_URL", "")
	}
	if f.kind == "" || url == "" {
		return p, usageError{fmt.Errorf("--broker is %q, --url is %q: give both, such as --broker redisstream --url redis://127.0.0.1:6379/0", f.kind, hide(url))}
	}
	p.Broker.Kind, p.Broker.URL, p.Broker.Prefix = f.kind, config.Secret(url), f.prefix
	return p, nil
}

func hide(url string) string {
	if url == "" {
		return ""
	}
	return "(given)"
}

// ofService reads the profile of the service that owns the group, of --service,
// or of all, which must agree.
func (f findBroker) ofService(w *dev.Workspace, group, env string, environ []string) (p config.Profile, err error) {
	service := f.service
	if service == "" {
		for _, s := range w.Services {
			if strings.HasPrefix(group, s.Name+".") {
				service = s.Name
			}
		}
	}
	if service != "" {
		return w.Profile(service, env, environ)
	}
	for i, s := range w.Services {
		its, err := w.Profile(s.Name, env, environ)
		if err != nil {
			return p, err
		}
		if i > 0 && !reflect.DeepEqual(its.Broker, p.Broker) {
			return p, fmt.Errorf("the services %s and %s have different brokers in profile %q: choose with --service", w.Services[0].Name, s.Name, env)
		}
		p = its
	}
	return p, nil
}

func lookup(environ []string, key, otherwise string) string {
	for i := len(environ) - 1; i >= 0; i-- {
		if k, v, _ := strings.Cut(environ[i], "="); k == key && v != "" {
			return v
		}
	}
	return otherwise
}

// openFile opens a file to read; "-" is standard input.
func openFile(name string, stdin *os.File) (*os.File, func(), error) {
	if name == "-" {
		return stdin, func() {}, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	return file, func() { file.Close() }, nil
}
