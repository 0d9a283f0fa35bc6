package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/headrace-go/headrace/framework/outbox"
)

// outboxes is what all outbox commands share.
type outboxes struct {
	find findDatabase
	json bool
}

func newOutbox() *cobra.Command {
	o := &outboxes{}
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "Look at outboxes, and bring parked rows back",
		Long: `outbox works on the events that a service has written and not published yet. A row
that the broker refuses for good, or that keeps failing while others go through, is
parked: it stays in the table with its reason until it is retried or discarded.

The database is the one that the service's profile names, with HEADRACE_DATABASE_DSN
over it; --driver and --dsn name it outright. The commands work beside a running
service and change nothing but what they say.

Exit codes: 0 all was done, 1 nothing was, 2 the command line makes no sense, 3 a part
was done: the same command can be run again.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	o.find.bind(f)
	f.BoolVar(&o.json, "json", false, "print JSON")
	cmd.AddCommand(o.status(), o.parked(), o.change(retryParked), o.change(discardParked))
	return cmd
}

// parkedFlags choose parked rows.
type parkedFlags struct {
	f            outbox.Filter
	since, until string
	all          bool
}

func (p *parkedFlags) bind(flags *pflag.FlagSet) {
	flags.Int64SliceVar(&p.f.Offsets, "offset", nil, "only the rows of these numbers")
	flags.StringSliceVar(&p.f.IDs, "id", nil, "only these message or event ids")
	flags.StringSliceVar(&p.f.Topics, "topic", nil, "only what goes to these topics")
	flags.StringSliceVar(&p.f.Keys, "key", nil, "only these ordering keys")
	flags.StringVar(&p.f.Reason, "reason", "", "only what was parked for a reason with this text in it")
	flags.StringVar(&p.since, "since", "", "only what was parked at or after this time: RFC 3339, or an age such as 2h")
	flags.StringVar(&p.until, "until", "", "only what was parked before this time: RFC 3339, or an age")
	flags.IntVar(&p.f.Limit, "limit", 0, "so many rows at most, the oldest ones (0: all)")
}

func (p *parkedFlags) filter(now time.Time) (_ outbox.Filter, err error) {
	if p.f.ParkedSince, err = when("since", p.since, now); err != nil {
		return p.f, err
	}
	if p.f.ParkedBefore, err = when("until", p.until, now); err != nil {
		return p.f, err
	}
	if p.f.Limit < 0 {
		return p.f, usageError{fmt.Errorf("--limit is %d: it must not be negative", p.f.Limit)}
	}
	return p.f, nil
}

// chosen tells whether any flag narrows the choice.
func (p *parkedFlags) chosen() bool {
	f := p.f
	return len(f.Offsets)+len(f.IDs)+len(f.Topics)+len(f.Keys) > 0 || f.Reason != "" || p.since != "" || p.until != "" || f.Limit > 0
}

func (o *outboxes) parked() *cobra.Command {
	var flags parkedFlags
	cmd := &cobra.Command{
		Use:   "parked",
		Short: "List parked rows, the oldest first",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			box, err := o.find.one(cmd.Context())
			if err != nil {
				return err
			}
			defer box.Close()
			return o.list(cmd.Context(), cmd.OutOrStdout(), box.admin, f)
		},
	}
	flags.bind(cmd.Flags())
	return cmd
}

func (o *outboxes) list(ctx context.Context, out io.Writer, a *outbox.Admin, f outbox.Filter) error {
	if o.json {
		rows := []outbox.ParkedRow{}
		for p, err := range a.Parked(ctx, f) {
			if err != nil {
				return err
			}
			rows = append(rows, p)
		}
		return printJSON(out, rows)
	}
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	n := 0
	for p, err := range a.Parked(ctx, f) {
		if err != nil {
			return errors.Join(err, t.Flush())
		}
		if n++; n == 1 {
			fmt.Fprintln(t, "OFFSET\tPARKED\tTOPIC\tKEY\tID\tATTEMPTS\tREASON")
		}
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%d\t%s\n", p.Offset, p.ParkedAt.Format(time.RFC3339), cell(dash(p.Topic), 80), cell(dash(p.Key), 80), cell(p.ID, 80), p.Attempts, cell(p.Reason, 120))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if n == 0 {
		fmt.Fprintln(out, "nothing is parked")
	}
	return nil
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// parkedChange is retry or discard.
type parkedChange struct {
	use, short, long string
	verb, done       string
	asks             bool
	do               func(*outbox.Admin, context.Context, outbox.Filter) (int, error)
}

var retryParked = parkedChange{
	use: "retry", short: "Publish parked rows again",
	long: `retry gives parked rows a new life: they count as never failed, and the relay publishes
them about a second later, each before the later rows of its ordering key. Where order
is strict, what is parked only behind them goes on too. Mend first what the reason
says, or they are parked again.`,
	verb: "retry", done: "retried", do: (*outbox.Admin).Retry,
}

var discardParked = parkedChange{
	use: "discard", short: "Delete parked rows for good",
	long: `discard deletes parked rows: their events are never published. Where order is strict,
what is parked only behind them goes on.`,
	verb: "discard", done: "discarded", asks: true, do: (*outbox.Admin).Discard,
}

func (o *outboxes) change(c parkedChange) *cobra.Command {
	var (
		flags   parkedFlags
		confirm confirmation
		dryRun  bool
	)
	cmd := &cobra.Command{
		Use: c.use, Short: c.short, Long: c.long, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := flags.filter(time.Now())
			if err != nil {
				return err
			}
			if flags.chosen() == flags.all {
				return usageError{fmt.Errorf("choose rows with --offset, --id, --topic, --key, --reason, --since, --until or --limit, or take --all")}
			}
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			box, err := o.find.one(ctx)
			if err != nil {
				return err
			}
			defer box.Close()
			n := 0
			for _, err := range box.admin.Parked(ctx, f) {
				if err != nil {
					return err
				}
				n++
			}
			if n == 0 || dryRun {
				return o.report(out, c, n, 0, dryRun)
			}
			if c.asks {
				if err := confirm.ask(cmd, fmt.Sprintf("Discard %s of %s for good?", rowCount(n), box.name)); err != nil {
					return err
				}
			}
			changed, err := c.do(box.admin, ctx, f)
			if err != nil && changed > 0 {
				err = partialError{err}
			}
			if err != nil && changed == 0 {
				return err
			}
			return errors.Join(err, o.report(out, c, n, changed, false))
		},
	}
	flags.bind(cmd.Flags())
	cmd.Flags().BoolVar(&flags.all, "all", false, "all parked rows")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say how many rows it would be, and change nothing")
	if c.asks {
		confirm.bind(cmd.Flags())
	}
	return cmd
}

func (o *outboxes) report(out io.Writer, c parkedChange, matched, changed int, dryRun bool) error {
	if o.json {
		return printJSON(out, map[string]any{"matched": matched, c.done: changed, "dry_run": dryRun})
	}
	if dryRun || matched == 0 {
		fmt.Fprintf(out, "would %s %s\n", c.verb, rowCount(matched))
		return nil
	}
	fmt.Fprintf(out, "%s %s\n", c.done, rowCount(changed))
	return nil
}

func rowCount(n int) string {
	if n == 1 {
		return "1 parked row"
	}
	return fmt.Sprintf("%d parked rows", n)
}

// cell makes a text fit into a table: one line of at most limit runes, with
// nothing that could steer a terminal.
func cell(s string, limit int) string {
	r := []rune(strings.Join(strings.Fields(s), " "))
	for i := range r {
		if !unicode.IsPrint(r[i]) {
			r[i] = '·'
		}
	}
	if len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return string(r)
}
