package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/framework/deadletter"
)

func (d *dlq) export() *cobra.Command {
	var (
		filter filterFlags
		file   string
		limit  int
	)
	cmd := &cobra.Command{
		Use:   "export GROUP",
		Short: "Write dead letters to a file, whole",
		Long: `export writes the chosen dead letters as JSON Lines: bytes, id, metadata and story, one
letter a line, in a format that stays. It holds the payloads. The letters stay where
they are.`,
		Args: oneGroup(),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			f, err := filter.filter(time.Now())
			if err != nil {
				return err
			}
			q, p, err := d.queue(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.Close()
			// Standard output may be a pipe, which can't be synced.
			w := struct{ io.Writer }{cmd.OutOrStdout()}
			var target io.Writer = w
			if file != "" {
				out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, out.Close()) }()
				target = out
			}
			bar := d.bar(cmd, "export")
			n, err := q.Export(cmd.Context(), target, f, limit, bar.step)
			bar.end()
			if err != nil {
				if n > 0 {
					return partialError{fmt.Errorf("after %s: %w", letters(n), err)}
				}
				return err
			}
			if file != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "exported %s of %s to %s\n", letters(n), q.Group(), file)
			}
			return nil
		},
	}
	filter.bind(cmd.Flags())
	cmd.Flags().StringVar(&file, "out", "", "the new file (default: standard output)")
	cmd.Flags().IntVar(&limit, "limit", 0, "export at most so many, the oldest first (0: all)")
	return cmd
}

func (d *dlq) importCmd() *cobra.Command {
	var (
		filter  filterFlags
		o       deadletter.ImportOptions
		confirm confirmation
	)
	cmd := &cobra.Command{
		Use:   "import GROUP FILE",
		Short: "Put exported dead letters back",
		Long: `import adds the letters of a file that export or discard wrote to the group's dead
letters. Those that stand there already, byte for byte, are left out, so an import
can be repeated. FILE may be - for standard input.`,
		Args: oneGroup("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Filter, err = filter.filter(time.Now()); err != nil {
				return err
			}
			in, done, err := openFile(args[1], os.Stdin)
			if err != nil {
				return err
			}
			defer done()
			q, p, err := d.queue(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.Close()
			if !o.DryRun {
				if err := confirm.ask(cmd, fmt.Sprintf("Import %s into the dead letters of %s?", args[1], q.Group())); err != nil {
					return err
				}
			}
			bar := d.bar(cmd, "import")
			o.Progress = bar.step
			r, err := q.Import(cmd.Context(), in, o)
			bar.end()
			return d.tellImport(cmd, q, o, r, err)
		},
	}
	f := cmd.Flags()
	filter.bind(f)
	confirm.bind(f)
	f.BoolVar(&o.DryRun, "dry-run", false, "read and check the file, and import nothing")
	f.BoolVar(&o.AnyGroup, "any-group", false, "take letters of other groups too")
	return cmd
}

func (d *dlq) tellImport(cmd *cobra.Command, q *deadletter.Queue, o deadletter.ImportOptions, r deadletter.ImportReport, err error) error {
	verb := "imported"
	if o.DryRun {
		verb = "would import"
	}
	if d.json {
		err = errors.Join(err, printJSON(cmd.OutOrStdout(), r))
	} else {
		fmt.Fprintf(cmd.OutOrStdout(), "%s %d of %s into %s; %d stand there already\n", verb, r.Imported, letters(r.Matched), q.Topic(), r.Present)
	}
	if err == nil && r.Interrupted {
		err = errors.New("interrupted: the same command goes on where this one ended")
	}
	if err != nil && !errors.Is(err, context.Canceled) && r.Imported == 0 && !r.Interrupted {
		return err
	}
	if err != nil {
		return partialError{err}
	}
	return nil
}
