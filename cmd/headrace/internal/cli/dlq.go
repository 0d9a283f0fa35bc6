package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/framework/deadletter"
)

// dlq is what all dlq commands share.
type dlq struct {
	find findBroker
	json bool
}

func newDLQ() *cobra.Command {
	d := &dlq{}
	cmd := &cobra.Command{
		Use:   "dlq",
		Short: "Look at dead letters, and bring them back",
		Long: `dlq works on the messages that a handler could not handle. Each consumer group has
dead letters of its own; a group is named <service>.<handler>.

The broker is that of the ` + "`headrace dev`" + ` of this workspace. Where none runs, or --env
is given, it is the one that the services' profile names, with HEADRACE_BROKER_URL
and the like over it; --broker and --url name it outright.

Exit codes: 0 all was done, 1 nothing was, 2 the command line makes no sense, 3 a part
was done: what stays is listed, and the same command can be run again.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	d.find.bind(f)
	f.BoolVar(&d.json, "json", false, "print JSON")
	cmd.AddCommand(d.list(), d.groups(), d.show(), d.replay(), d.discard(), d.edit(), d.export(), d.importCmd(), d.trial())
	return cmd
}

// queue opens the dead letters of a group for a command, which closes the broker
// at its end.
func (d *dlq) queue(ctx context.Context, group string) (*deadletter.Queue, *place, error) {
	p, err := d.find.open(ctx, group)
	if err != nil {
		return nil, nil, err
	}
	q, err := p.queue(group)
	if err != nil {
		p.Close()
		return nil, nil, err
	}
	return q, p, nil
}

// queue makes the Queue of a group, whose changes are written to the audit file.
func (p *place) queue(group string) (*deadletter.Queue, error) {
	return deadletter.New(deadletter.Config{Broker: p.broker, Group: group, Actor: actor(), Audit: p.audit})
}

// actor is who runs the command, as far as the system tells.
func actor() string {
	name := "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// audit appends a line to the audit file.
func (p *place) audit(_ context.Context, e deadletter.Entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := p.create("audit.jsonl", os.O_APPEND)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// create opens a file for writing in the folder of the dead letters.
func (p *place) create(name string, flags int) (*os.File, error) {
	path := p.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|flags, 0o600)
}

func (p *place) path(name string) string { return filepath.Join(p.folder, name) }

// oneGroup checks that the command line names a group, and n arguments more.
func oneGroup(more ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1+len(more) {
			return usageError{fmt.Errorf("%s wants %d arguments, got %d: see `%s --help`", cmd.CommandPath(), 1+len(more), len(args), cmd.CommandPath())}
		}
		return nil
	}
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
