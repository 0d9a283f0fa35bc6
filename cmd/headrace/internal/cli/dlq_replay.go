package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/framework/deadletter"
)

func (d *dlq) replay() *cobra.Command {
	var (
		filter  filterFlags
		o       deadletter.ReplayOptions
		confirm confirmation
		force   bool
		canary  []int
		journal string
	)
	cmd := &cobra.Command{
		Use:   "replay GROUP",
		Short: "Give dead letters back to the group that failed on them",
		Long: `replay publishes the chosen dead letters to the group's redrive topic, which no other
group reads, with their bytes, ids and metadata, and deletes each once the broker has
confirmed it. Attempts begin anew; how often a message was replayed is counted, and
one that was replayed --max-redrives times stays unless --force. Messages of one key
keep their order: when one stays, the later ones of its key stay too. Where the
handler parks keys, their order is that in which they were parked, wherever they lie;
what came meanwhile was parked behind them, so replay again until nothing is left.

Ctrl-C ends it after the messages in hand. After that, or after a crash, the same
command goes on: a journal in .headrace/dlq knows what was published and not yet
deleted. A message that is published twice all the same has the same id, so the
group's inbox takes the second as a duplicate.`,
		Example: `  headrace dlq replay payments.charge-order --dry-run
  headrace dlq replay payments.charge-order --fingerprint 1f3a9c40 --canary
  headrace dlq replay payments.charge-order --since 2h --rate 20 --yes`,
		Args: oneGroup(),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Filter, err = filter.filter(time.Now()); err != nil {
				return err
			}
			o.Canary = canary
			if force {
				o.MaxRedrives = -1
			}
			if err := o.WithDefaults().Validate(); err != nil {
				return usageError{err}
			}
			q, p, err := d.queue(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.Close()
			if o.Journal = journal; journal == "" {
				o.Journal = p.path("replay-" + fileName(args[0]) + ".jsonl")
			}
			return d.runReplay(cmd, q, o, confirm)
		},
	}
	f := cmd.Flags()
	filter.bind(f)
	confirm.bind(f)
	f.BoolVar(&o.DryRun, "dry-run", false, "tell what would be replayed, and replay nothing")
	f.IntVar(&o.Limit, "limit", 0, "replay at most so many, the oldest first (0: all)")
	f.Float64Var(&o.Rate, "rate", 0, "replay at most so many a second (0: as fast as it goes)")
	f.IntVar(&o.MaxRedrives, "max-redrives", deadletter.DefaultMaxRedrives, "refuse what was replayed so often")
	f.BoolVar(&force, "force", false, "replay whatever was replayed before, however often")
	f.BoolVar(&o.AnyOrder, "any-order", false, "replay later messages of a key also when an earlier one stays (a handler that parks keys sends them back)")
	f.IntSliceVar(&canary, "canary", nil, "replay so many, wait for their outcome, go on with the next step; stop when one comes back (without a value: 1,10,100)")
	f.Lookup("canary").NoOptDefVal = "1,10,100"
	f.BoolVar(&o.Wait, "wait", false, "wait at the end until the group has settled what was replayed, and tell what came back")
	f.DurationVar(&o.Outcome, "outcome", deadletter.DefaultOutcome, "how long --wait and each step of --canary wait")
	f.StringVar(&journal, "journal", "", "the file that lets an interrupted replay go on (default: in .headrace/dlq)")
	return cmd
}

func (d *dlq) runReplay(cmd *cobra.Command, q *deadletter.Queue, o deadletter.ReplayOptions, confirm confirmation) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	if !o.DryRun {
		n, err := q.Count(ctx, o.Filter)
		if err != nil {
			return err
		}
		if o.Limit > 0 {
			n = min(n, o.Limit)
		}
		if n > 0 {
			if err := confirm.ask(cmd, fmt.Sprintf("Replay %s of %s?", letters(n), q.Group())); err != nil {
				return err
			}
		}
	}
	bar := d.bar(cmd, "replay")
	o.Progress = bar.step
	report, err := q.Replay(ctx, o)
	bar.end()
	if printErr := d.tellReplay(out, q, report); err == nil {
		err = printErr
	}
	return replayOutcome(report, err)
}

func (d *dlq) tellReplay(out io.Writer, q *deadletter.Queue, r deadletter.Report) error {
	if d.json {
		return printJSON(out, r)
	}
	if r.Matched == 0 && !r.Interrupted {
		fmt.Fprintf(out, "no dead letters of %s match\n", q.Group())
		return nil
	}
	verb := "replayed"
	if r.DryRun {
		verb = "would replay"
	}
	fmt.Fprintf(out, "%s %d of %s to %s\n", verb, r.Replayed, letters(r.Matched), q.RedriveTopic())
	line := func(n int, text string) {
		if n > 0 {
			fmt.Fprintf(out, "  %d %s\n", n, text)
		}
	}
	line(r.Resumed, "deleted, which an earlier replay had published")
	line(r.Superseded, "deleted, since an edited one takes its place")
	line(r.Refused, "refused: replayed too often")
	line(r.Held, "held back behind an earlier one of the same key")
	line(r.Failed, "not taken by the broker")
	line(r.Undeleted, "published and not deleted: run the same command again")
	line(r.Unseen, "not met again: the same command goes on")
	line(r.Returned, "dead-lettered again")
	if r.Settled {
		fmt.Fprintln(out, "  all of them are handled, none came back")
	}
	for _, n := range r.Notes {
		fmt.Fprintf(out, "  %s %s: %s\n", n.ID, word(n.EventType), oneLine(n.Why, 200))
	}
	return nil
}

// replayOutcome is the command's error, which is its exit code.
func replayOutcome(r deadletter.Report, err error) error {
	switch {
	case err != nil:
	case r.Interrupted:
		err = errors.New("interrupted: the same command goes on where this one ended")
	case r.Stopped != "":
		err = errors.New("stopped: " + r.Stopped)
	case !r.Complete():
		err = errors.New("some dead letters stay")
	default:
		return nil
	}
	if r.Interrupted || r.Replayed+r.Resumed+r.Superseded > 0 {
		return partialError{err}
	}
	return err
}

func letters(n int) string {
	if n == 1 {
		return "1 dead letter"
	}
	return fmt.Sprintf("%d dead letters", n)
}

// fileName makes a group's name safe in a file's.
func fileName(group string) string {
	b := []byte(group)
	for i, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			b[i] = '_'
		}
	}
	return string(b)
}
