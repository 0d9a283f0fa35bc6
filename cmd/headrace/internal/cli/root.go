// Package cli is the headrace command line.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
)

// Exit codes.
const (
	exitOK      = 0
	exitError   = 1
	exitUsage   = 2
	exitPartial = 3
)

// usageError is a mistake in the command line itself.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// partialError is the end of a command that did a part of what was asked.
type partialError struct{ err error }

func (e partialError) Error() string { return e.err.Error() }
func (e partialError) Unwrap() error { return e.err }

// Main runs the command line and returns the process's exit code: 0 when all
// went well, 1 when it did not, 2 for a command line that makes no sense, 3 when
// only a part was done.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if errors.Is(err, dev.ErrStopped) && ctx.Err() != nil {
		fmt.Fprintln(stdout, "stopped")
		return exitOK
	}
	fmt.Fprintln(stderr, "headrace:", err)
	var (
		usage   usageError
		partial partialError
	)
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &partial):
		return exitPartial
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "headrace",
		Short:         "Run and look after event-driven services",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q: `headrace --help` lists them", args[0])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newDev(), newDemo(), newDLQ(), newEnv(), newExplain(), newOutbox(), newRelay())
	return root
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no arguments, got %q", cmd.CommandPath(), args[0])}
	}
	return nil
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func environ() []string { return os.Environ() }
