package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

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
	admin                     []string
}

func (f *findBroker) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.dir, "dir", ".", "a folder of the workspace")
	flags.StringVar(&f.state, "state", "", "the folder that headrace dev was given as --state (default: the workspace)")
	flags.StringVar(&f.env, "env", "", "use the broker of this profile of the services, whether headrace dev runs or not")
	flags.StringVar(&f.service, "service", "", "whose profile it is (default: the group's service, else the only one)")
	flags.StringVar(&f.kind, "broker", "", "use a broker of this kind, such as redisstream, at --url")
	flags.StringVar(&f.url, "url", "", "the broker's address; HEADRACE_BROKER_URL keeps its password off the command line")
	flags.StringVar(&f.prefix, "prefix", "", "what stands before each key in the broker, with --broker")
	flags.StringSliceVar(&f.admin, "admin", nil, "admin addresses of the services, such as http://127.0.0.1:9082: they tell the groups where the broker can't")
	flags.StringVar(&f.folder, "files", "", "keep archives, journals and the audit here (default: .headrace/dlq)")
}

// place is an open broker and the folder for what dlq writes.
type place struct {
	broker broker.Broker
	conns  *connect.Connections
	folder string
	// admin are the services' admin addresses, as far as they are known.
	admin []string
}

func (p *place) Close() { _ = p.conns.Close() }

// open opens the broker. Group helps to find the service; it may be empty.
func (f findBroker) open(ctx context.Context, group string) (*place, error) {
	profile, root, err := f.profile(group, environ())
	if err != nil {
		return nil, err
	}
	conns, err := dev.OpenBroker(ctx, profile, root)
	if err != nil {
		return nil, err
	}
	folder := f.folder
	if folder == "" {
		folder = filepath.Join(root, dev.StateFolder, "dlq")
	}
	return &place{broker: conns.Broker, conns: conns, folder: folder, admin: f.admins(root)}, nil
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
			environ = state.Environ(environ)
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

// admins are the addresses of the flags, else of the running dev.
func (f findBroker) admins(root string) []string {
	if len(f.admin) > 0 {
		return f.admin
	}
	state, err := dev.ReadState(root)
	if err != nil {
		return nil // no dev runs
	}
	var all []string
	for _, s := range state.Services {
		all = append(all, s.Admin)
	}
	return all
}

// dlqGroup finds the groups in a service's metrics.
var dlqGroup = regexp.MustCompile(`(?m)^headrace_dlq_depth\{[^}]*\bgroup="([^"]+)"`)

// askServices returns the groups that the services' metrics name. Cause is why
// the broker could not tell.
func (p *place) askServices(ctx context.Context, cause error) ([]string, error) {
	if len(p.admin) == 0 {
		return nil, fmt.Errorf("%w, or give the services' admin addresses with --admin", cause)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var groups []string
	for _, addr := range p.admin {
		body, err := getMetrics(ctx, strings.TrimRight(addr, "/")+"/metrics")
		if err != nil {
			return nil, fmt.Errorf("ask the service for its groups: %w", err)
		}
		for _, m := range dlqGroup.FindAllSubmatch(body, -1) {
			groups = append(groups, string(m[1]))
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups), nil
}

func getMetrics(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return io.ReadAll(io.LimitReader(resp.Body, 16<<20))
}
