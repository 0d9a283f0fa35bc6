package dev

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/headrace-go/headrace/framework/config"
)

// Profile returns what all services share of the service's profile for env, as
// the service itself would read it: from its file and, over that, from environ.
// The service's own section is left out.
func (w *Workspace) Profile(service, env string, environ []string) (config.Profile, error) {
	var p config.Profile
	i := slices.IndexFunc(w.Services, func(s Service) bool { return s.Name == service })
	if i < 0 {
		return p, fmt.Errorf("no service %q in %s", service, w.Root)
	}
	path := filepath.Join(w.Services[i].Dir, "config", env+".yaml")
	b, err := os.ReadFile(path)
	if err != nil {
		return p, fmt.Errorf("service %s: read its profile: %w", service, err)
	}
	var sections map[string]any
	if err := yaml.Unmarshal(b, &sections); err != nil {
		return p, fmt.Errorf("service %s: %s: %w", service, path, err)
	}
	for _, s := range w.Services {
		delete(sections, strings.ReplaceAll(s.Name, "-", "_"))
	}
	if b, err = yaml.Marshal(sections); err != nil {
		return p, fmt.Errorf("service %s: %s: %w", service, path, err)
	}
	settings := struct {
		config.Profile `koanf:",squash"`
	}{}
	err = config.Load(&settings, config.Options{
		FS: oneFile{name: env + ".yaml", data: b}, Env: env,
		Environ: without(w.shared(service, environ), config.EnvEnv, config.EnvConfigDir),
	})
	if err != nil {
		return p, fmt.Errorf("service %s: profile %q: %w", service, env, err)
	}
	return settings.Profile, nil
}

// shared is the service's environment without its own section's variables.
func (w *Workspace) shared(service string, environ []string) []string {
	return slices.DeleteFunc(w.environFor(service, environ), func(kv string) bool {
		return strings.HasPrefix(kv, sectionPrefix(service))
	})
}

// without returns environ without the keys.
func without(environ []string, keys ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return slices.Contains(keys, k)
	})
}

// oneFile is a file system that holds one file.
type oneFile struct {
	name string
	data []byte
}

// Open opens the file, and nothing else.
func (f oneFile) Open(name string) (fs.File, error) {
	if name != f.name {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &opened{Reader: bytes.NewReader(f.data), oneFile: f}, nil
}

// ReadDir lists the root: the file.
func (f oneFile) ReadDir(name string) ([]fs.DirEntry, error) {
	if name != "." {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	return []fs.DirEntry{fs.FileInfoToDirEntry(fileInfo{f})}, nil
}

type opened struct {
	*bytes.Reader
	oneFile
}

func (o *opened) Stat() (fs.FileInfo, error) { return fileInfo{o.oneFile}, nil }
func (o *opened) Close() error               { return nil }

type fileInfo struct{ f oneFile }

func (i fileInfo) Name() string       { return i.f.name }
func (i fileInfo) Size() int64        { return int64(len(i.f.data)) }
func (i fileInfo) Mode() fs.FileMode  { return 0o400 }
func (i fileInfo) ModTime() time.Time { return time.Time{} }
func (i fileInfo) IsDir() bool        { return false }
func (i fileInfo) Sys() any           { return nil }

// Command is how a service of the workspace is run beside a `headrace dev`.
type Command struct {
	// Binary is the built program, Dir where it runs.
	Binary, Dir string
	// Environ is its environment.
	Environ []string
}

// Compile builds the service as its source stands now, apart from what dev runs,
// into base, the folder that holds StateFolder, and returns the program's path.
func (w *Workspace) Compile(ctx context.Context, service, base string, environ []string) (string, error) {
	i := slices.IndexFunc(w.Services, func(s Service) bool { return s.Name == service })
	if i < 0 {
		return "", fmt.Errorf("no service %q in %s", service, w.Root)
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return "", fmt.Errorf("state folder %q: %w", base, err)
	}
	binary := filepath.Join(base, StateFolder, "bin", service+".trial")
	if err := os.MkdirAll(filepath.Dir(binary), 0o700); err != nil {
		return "", fmt.Errorf("make the state folder: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/"+service)
	cmd.Dir, cmd.Env = w.Services[i].Dir, environ
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", service, err, strings.TrimSpace(string(out)))
	}
	return binary, nil
}

// Environ is what the service gets of environ when it runs with the profile env.
func (w *Workspace) Environ(service, env string, environ []string) []string {
	return overlay(w.environFor(service, environ), map[string]string{config.EnvEnv: env})
}

// Build compiles the service as its source stands now, apart from what dev runs,
// and says how to run it with the settings of p in base, the folder that holds
// StateFolder. Binary, when not empty, is used instead of what would be built.
func (w *Workspace) Build(ctx context.Context, service, binary, base string, p config.Profile, environ []string) (Command, error) {
	base, err := filepath.Abs(base)
	if err != nil {
		return Command{}, fmt.Errorf("state folder %q: %w", base, err)
	}
	if binary == "" {
		if binary, err = w.Compile(ctx, service, base, environ); err != nil {
			return Command{}, err
		}
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return Command{}, err
	}
	set := map[string]string{config.EnvEnv: p.Env, config.EnvName("broker.kind"): p.Broker.Kind}
	if url := p.Broker.URL.Reveal(); url != "" {
		set[config.EnvName("broker.url")] = url
	}
	return Command{Binary: binary, Dir: base, Environ: overlay(w.environFor(service, environ), set)}, nil
}
