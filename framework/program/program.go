// Package program is the program of a service: it reads the settings, opens the
// log, the traces, the database and the broker, brings the tables up to date,
// has the service wire its App, and runs that until SIGTERM or SIGINT. A
// service's main is one line:
//
//	func main() { service.Program().Main() }
//
// The program's commands are the same in every service: none to serve, migrate,
// healthcheck, config, needs, trial and help.
//
// It imports package connect and with it every driver and adapter; package
// framework never imports it.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"syscall"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/logging"
)

// Settings are a service's settings: a struct that embeds config.Profile.
type Settings interface {
	Common() config.Profile
}

// Program is the program of one service.
type Program[S Settings] struct {
	// Name is the service's name, such as "orders": the App's, the program's, and
	// the prefix of the table that records its migrations. Required.
	Name string
	// Files holds config/<env>.yaml and, where the service has tables of its own,
	// migrations/<dialect>/*.sql: what the service embeds. Required.
	Files fs.FS
	// Defaults are the settings where neither file nor environment sets them.
	Defaults S
	// Brokers are the adapters that broker.kind may name besides Headrace's own
	// kinds, such as nats.Adapter() of the module brokers/nats. May be empty.
	Brokers []broker.Adapter
	// Build wires the service. Base has the service's name, profile, connections,
	// logger and tracer: New adds what is its own. The connections stay the
	// program's. Required.
	Build func(ctx context.Context, settings S, base framework.Config) (*framework.App, error)
	// Migrate brings what else the service keeps in its database up to date, after
	// the migrations: the tables of a part that has its own. May be nil. Any
	// number of replicas may run it at once.
	Migrate func(ctx context.Context, settings S, base framework.Config) error
}

// Call is one start of a program.
type Call struct {
	// Args are the arguments without the program's name.
	Args []string
	// Environ is the environment as os.Environ gives it. Nil: an empty one.
	Environ []string
	// Stdin gives trial its dead letters. Default: os.Stdin.
	Stdin io.Reader
	// Stdout receives the log, and what config, needs, trial and help print. Default:
	// os.Stdout.
	Stdout io.Writer
	// Stderr receives the log of trial. Default: os.Stderr.
	Stderr io.Writer
	// Started, when set, is called once the service is ready.
	Started func(*framework.App)
}

// Main runs the program with the process's arguments, environment and streams
// until SIGTERM, SIGINT or SIGHUP, and exits: with 0 after a clean drain or a command
// that succeeded, else with 1. A second signal ends the process at once.
func (p Program[S]) Main() {
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, stop)
	if err := p.Run(ctx, Call{Args: os.Args[1:], Environ: os.Environ()}); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		os.Exit(1)
	}
}

// Run runs the program, to serve until ctx ends and the service has drained. An
// argument that it does not know, a setting that can't work, a database that
// does not answer and a schema that is not current are errors before anything is
// served.
func (p Program[S]) Run(ctx context.Context, c Call) error {
	if err := p.validate(); err != nil {
		return err
	}
	c = c.withDefaults()
	command, err := p.command(c.Args)
	if err != nil {
		return err
	}
	return command(ctx, c)
}

func (c Call) withDefaults() Call {
	if c.Environ == nil {
		c.Environ = []string{}
	}
	if c.Stdin == nil {
		c.Stdin = os.Stdin
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Stderr == nil {
		c.Stderr = os.Stderr
	}
	return c
}

func (p Program[S]) validate() error {
	var errs []error
	if p.Name == "" {
		errs = append(errs, errors.New("program: Program.Name is empty: name the service, such as \"orders\""))
	}
	if p.Files == nil {
		errs = append(errs, errors.New("program: Program.Files is nil: pass the file system with config/<env>.yaml"))
	}
	if p.Build == nil {
		errs = append(errs, errors.New("program: Program.Build is nil: pass the function that wires the service"))
	}
	return errors.Join(errs...)
}

// load reads the settings and opens the log.
func (p Program[S]) load(c Call) (S, *environment, error) {
	settings := p.Defaults
	if err := config.Load(&settings, p.source(c)); err != nil {
		return settings, nil, err
	}
	plain, err := logging.New(c.Stdout, settings.Common().Log)
	if err != nil {
		return settings, nil, err
	}
	return settings, &environment{profile: settings.Common(), plain: plain, logger: plain.With("service", p.Name)}, nil
}

func (p Program[S]) source(c Call) config.Options {
	opts := config.Options{FS: p.Files, Environ: c.Environ}
	for _, b := range p.Brokers {
		opts.Brokers = append(opts.Brokers, b.Kind)
	}
	return opts
}
