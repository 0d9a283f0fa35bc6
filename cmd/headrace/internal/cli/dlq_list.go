package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/framework/deadletter"
)

func (d *dlq) list() *cobra.Command {
	var filter filterFlags
	cmd := &cobra.Command{
		Use:   "list [GROUP...]",
		Short: "Tell how many dead letters each group has",
		Long: `list prints each group that has dead letters: how many, for how many causes, when the
oldest and the newest failed, and why. Named groups are printed also when they have
none.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := filter.filter(time.Now())
			if err != nil {
				return err
			}
			all := []deadletter.Summary{}
			err = d.each(cmd.Context(), args, func(ctx context.Context, q *deadletter.Queue) error {
				s, err := q.Summarize(ctx, f)
				if err == nil && (s.Depth > 0 || len(args) > 0) {
					all = append(all, s)
				}
				return err
			})
			if err != nil {
				return err
			}
			if d.json {
				return printJSON(cmd.OutOrStdout(), all)
			}
			if len(all) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no dead letters")
				return nil
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 3, ' ', 0)
			fmt.Fprintln(t, "GROUP\tDEPTH\tCAUSES\tOLDEST\tNEWEST\tREASONS")
			for _, s := range all {
				fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\n", s.Group, s.Depth, s.Causes, at(s.Oldest), at(s.Newest), counts(s.Reasons))
			}
			return t.Flush()
		},
	}
	filter.bind(cmd.Flags())
	return cmd
}

func (d *dlq) groups() *cobra.Command {
	var filter filterFlags
	cmd := &cobra.Command{
		Use:   "groups [GROUP...]",
		Short: "Group dead letters by what failed",
		Long: `groups prints one line for each fingerprint: failures of one handler with the same
reason and the same error, ids and numbers in it left out. The fingerprint chooses
them in the other commands.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := filter.filter(time.Now())
			if err != nil {
				return err
			}
			all := []deadletter.CauseGroup{}
			err = d.each(cmd.Context(), args, func(ctx context.Context, q *deadletter.Queue) error {
				causes, err := q.Causes(ctx, f)
				all = append(all, causes...)
				return err
			})
			if err != nil {
				return err
			}
			if d.json {
				return printJSON(cmd.OutOrStdout(), all)
			}
			if len(all) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no dead letters")
				return nil
			}
			t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 3, ' ', 0)
			fmt.Fprintln(t, "FINGERPRINT\tGROUP\tCOUNT\tREASON\tTYPES\tNEWEST\tSAMPLE\tERROR")
			for _, c := range all {
				fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", c.Fingerprint, c.Group, c.Count, word(c.Reason), counts(c.Types), at(c.Newest), c.Sample, oneLine(c.Error, 100))
			}
			return t.Flush()
		},
	}
	filter.bind(cmd.Flags())
	return cmd
}

// each calls fn with the queue of each named group, of all groups that have dead
// letters when none is named.
func (d *dlq) each(ctx context.Context, groups []string, fn func(context.Context, *deadletter.Queue) error) error {
	first := ""
	if len(groups) > 0 {
		first = groups[0]
	}
	p, err := d.find.open(ctx, first)
	if err != nil {
		return err
	}
	defer p.Close()
	if len(groups) == 0 {
		groups, err = deadletter.FindGroups(ctx, p.broker)
		if errors.Is(err, deadletter.ErrCannotList) {
			groups, err = p.askServices(ctx, err)
		}
		if err != nil {
			return err
		}
	}
	for _, g := range groups {
		q, err := p.queue(g)
		if err != nil {
			return err
		}
		if err := fn(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}

func word(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// counts is "a 2, b 1", the largest first.
func counts(by map[string]int) string {
	keys := slices.Sorted(maps.Keys(by))
	slices.SortStableFunc(keys, func(a, b string) int { return by[b] - by[a] })
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = fmt.Sprintf("%s %d", word(k), by[k])
	}
	return word(strings.Join(parts, ", "))
}

// oneLine is s on one line of at most limit runes, with nothing that could steer
// a terminal.
func oneLine(s string, limit int) string {
	r := []rune(strings.Join(strings.Fields(printable(s)), " "))
	if len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return string(r)
}
