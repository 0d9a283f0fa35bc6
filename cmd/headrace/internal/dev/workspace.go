// Package dev builds the services of a workspace and runs them as processes on
// this machine: an embedded Redis where no address is given, restarts after a
// crash, and a clean drain at the end.
package dev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"gopkg.in/yaml.v3"
)

// Service is one service of a workspace.
type Service struct {
	// Name is the folder's name below services/ and the command's below cmd/.
	Name string
	// Dir is the service's module folder, absolute.
	Dir string
	// HTTPAddr and AdminAddr are where the profile lets it listen.
	HTTPAddr, AdminAddr string
}

// Workspace is a checkout that holds services.
type Workspace struct {
	// Root is the folder that holds services/, absolute.
	Root string
	// Services are in the order of their names.
	Services []Service
}

// ErrNoWorkspace is returned when neither the folder nor any above it holds
// services/<name>/cmd/<name>/main.go.
var ErrNoWorkspace = errors.New("no services here: run this in a checkout that holds services/<name>/cmd/<name>/main.go, or name one with --dir")

// Find looks for a workspace in dir and the folders above it, and reads each
// service's profile for the environment env.
func Find(dir, env string) (*Workspace, error) {
	at, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("folder %q: %w", dir, err)
	}
	for start := at; ; {
		mains, err := filepath.Glob(filepath.Join(at, "services", "*", "cmd", "*", "main.go"))
		if err != nil {
			return nil, fmt.Errorf("look for services in %q: %w", at, err)
		}
		if len(mains) > 0 {
			return read(at, env, mains)
		}
		parent := filepath.Dir(at)
		if parent == at {
			return nil, fmt.Errorf("%s: %w", start, ErrNoWorkspace)
		}
		at = parent
	}
}

func read(root, env string, mains []string) (*Workspace, error) {
	w := &Workspace{Root: root}
	for _, m := range mains {
		name := filepath.Base(filepath.Dir(m))
		dir := filepath.Dir(filepath.Dir(filepath.Dir(m)))
		if filepath.Base(dir) != name {
			continue // a second command of the service, not the service
		}
		s := Service{Name: name, Dir: dir}
		if err := s.readProfile(env); err != nil {
			return nil, err
		}
		w.Services = append(w.Services, s)
	}
	if len(w.Services) == 0 {
		return nil, fmt.Errorf("%s: %w", root, ErrNoWorkspace)
	}
	sort.Slice(w.Services, func(i, j int) bool { return w.Services[i].Name < w.Services[j].Name })
	return w, nil
}

// readProfile takes from the profile what a supervisor must know; the service
// itself checks the whole of it.
func (s *Service) readProfile(env string) error {
	path := filepath.Join(s.Dir, "config", env+".yaml")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("service %s has no profile %q: %s is missing", s.Name, env, path)
	}
	if err != nil {
		return fmt.Errorf("service %s: read its profile: %w", s.Name, err)
	}
	var p struct {
		HTTP  struct{ Addr string }
		Admin struct{ Addr string }
	}
	if err := yaml.Unmarshal(b, &p); err != nil {
		return fmt.Errorf("service %s: %s: %w", s.Name, path, err)
	}
	s.HTTPAddr, s.AdminAddr = p.HTTP.Addr, p.Admin.Addr
	if s.HTTPAddr == "" || s.AdminAddr == "" {
		return fmt.Errorf("service %s: %s must set http.addr and admin.addr, so that services on one machine don't meet", s.Name, path)
	}
	return nil
}

// environFor leaves out of environ the variables of other services' sections
// (HEADRACE_<SERVICE>_...), so that one shell can hold settings of several: a
// service refuses to start with a key that it does not know. In the values of the
// others the word {service} becomes the service's name, so that one variable names
// a database for each.
func (w *Workspace) environFor(name string, environ []string) []string {
	its := slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		return slices.ContainsFunc(w.Services, func(other Service) bool {
			return other.Name != name && strings.HasPrefix(kv, sectionPrefix(other.Name))
		})
	})
	for i, kv := range its {
		if key, value, _ := strings.Cut(kv, "="); strings.HasPrefix(key, "HEADRACE_") && name != "" {
			its[i] = key + "=" + strings.ReplaceAll(value, "{service}", name)
		}
	}
	return its
}

func sectionPrefix(service string) string {
	return "HEADRACE_" + strings.ToUpper(strings.ReplaceAll(service, "-", "_")) + "_"
}
