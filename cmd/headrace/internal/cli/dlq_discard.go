package cli

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/framework/deadletter"
)

func (d *dlq) discard() *cobra.Command {
	var (
		filter  filterFlags
		confirm confirmation
		o       deadletter.DiscardOptions
		file    string
		dryRun  bool
	)
	cmd := &cobra.Command{
		Use:   "discard GROUP",
		Short: "Delete dead letters, once they are in a file",
		Long: `discard writes the chosen dead letters to a file, in the format of export, and then
deletes them. ` + "`headrace dlq import`" + ` brings them back.

Where the handler parks keys, the group is told over its redrive topic, so that those
which wait behind a discarded message can be replayed; the message is not sent.`,
		Args: oneGroup(),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Filter, err = filter.filter(time.Now()); err != nil {
				return err
			}
			if o.Limit < 0 {
				return usageError{fmt.Errorf("--limit is %d: it must not be negative", o.Limit)}
			}
			q, p, err := d.queue(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.Close()
			n, err := q.Count(cmd.Context(), o.Filter)
			if err != nil {
				return err
			}
			if o.Limit > 0 {
				n = min(n, o.Limit)
			}
			out := cmd.OutOrStdout()
			if n == 0 || dryRun {
				if d.json {
					return printJSON(out, map[string]any{"matched": n, "discarded": 0, "dry_run": dryRun})
				}
				fmt.Fprintf(out, "would discard %s of %s\n", letters(n), q.Group())
				return nil
			}
			if err := confirm.ask(cmd, fmt.Sprintf("Discard %s of %s?", letters(n), q.Group())); err != nil {
				return err
			}
			archive, path, err := p.archive(file, "discarded-"+fileName(args[0]))
			if err != nil {
				return err
			}
			bar := d.bar(cmd, "discard")
			o.Archive, o.Progress = archive, bar.step
			report, err := q.Discard(cmd.Context(), o)
			bar.end()
			err = errors.Join(err, archive.Close())
			if d.json {
				err = errors.Join(err, printJSON(out, map[string]any{"matched": n, "discarded": report.Discarded, "released": report.Released, "interrupted": report.Interrupted, "archive": path}))
			} else {
				fmt.Fprintf(out, "discarded %d of %s; they are in %s\n", report.Discarded, letters(n), path)
				if report.Released > 0 {
					fmt.Fprintf(out, "  %d of them held up their keys: the group was told\n", report.Released)
				}
			}
			switch {
			case err != nil:
			case report.Interrupted:
				err = errors.New("interrupted: the same command goes on where this one ended")
			case report.Discarded < report.Matched:
				err = fmt.Errorf("%d of %s were not met again: the same command goes on", report.Matched-report.Discarded, letters(report.Matched))
			}
			if err != nil && (report.Discarded > 0 || report.Interrupted) {
				return partialError{err}
			}
			return err
		},
	}
	f := cmd.Flags()
	filter.bind(f)
	confirm.bind(f)
	f.IntVar(&o.Limit, "limit", 0, "discard at most so many, the oldest first (0: all)")
	f.BoolVar(&dryRun, "dry-run", false, "tell how many would be discarded, and discard none")
	f.StringVar(&file, "archive", "", "the new file that they are written to (default: in .headrace/dlq)")
	return cmd
}

// archive makes a new file; it never overwrites one.
func (p *place) archive(path, prefix string) (*os.File, string, error) {
	if path != "" {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		return f, path, err
	}
	name := fmt.Sprintf("%s-%s.jsonl", prefix, time.Now().UTC().Format("20060102T150405.000000Z"))
	f, err := p.create(name, os.O_EXCL)
	return f, p.path(name), err
}
