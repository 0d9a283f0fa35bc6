package program

import (
	"context"
	"fmt"
	"strings"
)

type command = func(context.Context, Call) error

// command finds what the arguments ask for.
func (p Program[S]) command(args []string) (command, error) {
	if len(args) == 0 {
		return p.serve, nil
	}
	switch strings.Join(args, " ") {
	case "migrate":
		return p.migrate, nil
	case "healthcheck":
		return p.healthcheck, nil
	case "config":
		return p.explain, nil
	case "config --json":
		return p.explainJSON, nil
	case "needs":
		return p.needs, nil
	case "needs --json":
		return p.needsJSON, nil
	case "explain":
		return p.pipeline, nil
	case "explain --json":
		return p.pipelineJSON, nil
	case "trial":
		return p.trial, nil
	case "help", "--help", "-h":
		return p.help, nil
	}
	return nil, fmt.Errorf("unknown arguments %q: `%s help` tells what there is", args, p.Name)
}

func (p Program[S]) help(_ context.Context, c Call) error {
	const text = `%[1]s is a Headrace service.

Usage:
  %[1]s                 serve until SIGTERM or SIGINT, then drain
  %[1]s migrate         bring the database's tables up to date, and end
  %[1]s healthcheck     ask the service on this machine whether it is ready
  %[1]s config          show every setting: its variable, its value and where that comes from; exit
                          with 1 where serving would refuse them
  %[1]s config --json   the same for programs
  %[1]s needs           compare what the handlers need with what the profile's broker gives
  %[1]s needs --json    the same for programs
  %[1]s explain         show how each handler runs: its stack, every number and where that comes from
  %[1]s explain --json  the same for programs
  %[1]s trial           try dead letters, read from standard input, without effect (headrace dlq trial)
  %[1]s help            this text

Settings come from config/<profile>.yaml and, over it, from the environment. HEADRACE_ENV names the
profile (default: local); HEADRACE_CONFIG_DIR names a folder of profiles to use in place of the built-in.
`
	_, err := fmt.Fprintf(c.Stdout, text, p.Name)
	return err
}
