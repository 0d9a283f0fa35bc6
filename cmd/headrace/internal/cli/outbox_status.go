package cli

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/framework/outbox"
)

// boxStatus is one outbox's line of `outbox status`.
type boxStatus struct {
	Name             string  `json:"name"`
	Backlog          int64   `json:"backlog"`
	Held             int64   `json:"held"`
	OldestAgeSeconds float64 `json:"oldest_age_seconds"`
	Parked           int64   `json:"parked"`
	Outage           bool    `json:"outage"`
	ResumesInSeconds float64 `json:"resumes_in_seconds"`
	Error            string  `json:"error,omitempty"`
}

func (s boxStatus) verdict(maxAge time.Duration) string {
	switch {
	case s.Error != "":
		return s.Error
	case s.Outage:
		return fmt.Sprintf("the broker takes nothing; tried again in %s", seconds(s.ResumesInSeconds))
	case maxAge > 0 && seconds(s.OldestAgeSeconds) > maxAge:
		return "stuck: is a relay running?"
	case s.Parked > 0:
		return "`headrace outbox parked` tells why"
	default:
		return "ok"
	}
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}

func (o *outboxes) status() *cobra.Command {
	var (
		check  bool
		maxAge time.Duration
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what waits, what is parked, and whether the broker takes messages",
		Long: `status shows the outbox of --service, or those of all services of the workspace.
With --check it ends with 1 when anything is parked, when the oldest unsent row is
older than --max-age, or when the broker takes nothing.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			boxes, err := o.find.places(cmd.Context())
			if err != nil {
				return err
			}
			var all []boxStatus
			failed, bad := 0, 0
			for _, p := range boxes {
				s := boxStatus{Name: p.name}
				if st, err := p.status(cmd); err != nil {
					s.Error = err.Error()
					failed++
				} else {
					s.Backlog, s.Held, s.Parked, s.Outage = st.Backlog, st.Held, st.Parked, st.Outage
					s.OldestAgeSeconds, s.ResumesInSeconds = st.OldestAge.Seconds(), st.ResumesIn.Seconds()
				}
				if s.verdict(maxAge) != "ok" {
					bad++
				}
				all = append(all, s)
			}
			out := cmd.OutOrStdout()
			if o.json {
				if err := printJSON(out, all); err != nil {
					return err
				}
			} else {
				t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
				fmt.Fprintln(t, "OUTBOX\tBACKLOG\tHELD\tOLDEST\tPARKED\t")
				for _, s := range all {
					if s.Error != "" {
						fmt.Fprintf(t, "%s\t-\t-\t-\t-\t%s\n", s.Name, cell(s.Error, 1000))
						continue
					}
					fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%d\t%s\n", s.Name, s.Backlog, s.Held, seconds(s.OldestAgeSeconds), s.Parked, cell(s.verdict(maxAge), 160))
				}
				if err := t.Flush(); err != nil {
					return err
				}
			}
			switch {
			case failed == len(all):
				return errors.New("no outbox could be read")
			case failed > 0:
				return partialError{fmt.Errorf("%d of %d outboxes could not be read", failed, len(all))}
			case check && bad > 0:
				return fmt.Errorf("%d of %d outboxes need attention", bad, len(all))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "end with 1 when an outbox needs attention")
	cmd.Flags().DurationVar(&maxAge, "max-age", 5*time.Minute, "the age from which an unsent row counts as stuck")
	return cmd
}

func (p boxPlace) status(cmd *cobra.Command) (outbox.Status, error) {
	box, err := p.open(cmd.Context())
	if err != nil {
		return outbox.Status{}, err
	}
	defer box.Close()
	return box.admin.Status(cmd.Context())
}
