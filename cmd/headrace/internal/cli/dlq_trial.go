package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/program"
)

func (d *dlq) trial() *cobra.Command {
	var (
		filter filterFlags
		limit  int
		binary string
	)
	cmd := &cobra.Command{
		Use:   "trial GROUP",
		Short: "Tell what a replay would do, by trying it without effect",
		Long: `trial builds the group's service as its source stands now and runs the chosen dead
letters through its handler, each once, in a transaction that is rolled back: nothing
is written, emitted or published, and the letters stay where they are. So a fix can be
tried on what failed before it is deployed.

It reports would_pass, would_fail with the error, would_skip, already_done where the
group has handled the message before, and cant_tell: of a handler that calls the
outside only the preparation is tried, and one without a transaction is not run.

The service gets the settings that it has here: HEADRACE_ENV, HEADRACE_DATABASE_DSN
and the like.`,
		Args: oneGroup(),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			f, err := filter.filter(time.Now())
			if err != nil {
				return err
			}
			q, p, err := d.queue(ctx, args[0])
			if err != nil {
				return err
			}
			defer p.Close()
			var letters bytes.Buffer
			n, err := q.Export(ctx, &letters, f, limit, nil)
			if err != nil {
				return err
			}
			if n == 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "no dead letters of %s match\n", q.Group())
				return nil
			}
			run, err := d.find.program(ctx, args[0], binary)
			if err != nil {
				return err
			}
			verdicts, err := try(ctx, run, &letters)
			if printErr := d.tellTrial(cmd, verdicts); err == nil {
				err = printErr
			}
			return trialOutcome(verdicts, err)
		},
	}
	filter.bind(cmd.Flags())
	cmd.Flags().IntVar(&limit, "limit", 100, "try at most so many, the oldest first (0: all)")
	cmd.Flags().StringVar(&binary, "binary", "", "the service's program (default: it is built)")
	return cmd
}

// program says how to run the service that owns the group, on the broker that
// the flags name.
func (f findBroker) program(ctx context.Context, group, binary string) (dev.Command, error) {
	var none dev.Command
	environ := environ()
	p, root, err := f.profile(group, environ)
	if err != nil {
		return none, err
	}
	if f.kind != "" {
		if p.Env = f.env; p.Env == "" {
			p.Env = lookup(environ, config.EnvEnv, "local")
		}
	}
	w, err := dev.Find(f.dir, p.Env)
	if err != nil {
		return none, err
	}
	service := f.service
	if service == "" {
		for _, s := range w.Services {
			if strings.HasPrefix(group, s.Name+".") {
				service = s.Name
			}
		}
	}
	if service == "" {
		return none, fmt.Errorf("no service of %s owns the group %q: name it with --service", w.Root, group)
	}
	return w.Build(ctx, service, binary, root, p, environ)
}

// try runs the service's trial over the letters.
func try(ctx context.Context, run dev.Command, letters *bytes.Buffer) ([]program.Trial, error) {
	var out, log bytes.Buffer
	cmd := exec.CommandContext(ctx, run.Binary, "trial")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir, cmd.Env = run.Dir, run.Environ
	cmd.Stdin, cmd.Stdout, cmd.Stderr = letters, &out, &log
	err := cmd.Run()
	var verdicts []program.Trial
	for line := range strings.Lines(out.String()) {
		var v program.Trial
		if jsonErr := json.Unmarshal([]byte(line), &v); jsonErr != nil {
			return verdicts, errors.Join(err, fmt.Errorf("the service printed %q: %w", oneLine(line, 200), jsonErr))
		}
		verdicts = append(verdicts, v)
	}
	if err != nil {
		return verdicts, fmt.Errorf("%s trial: %w\n%s", run.Binary, err, strings.TrimSpace(log.String()))
	}
	return verdicts, nil
}

func (d *dlq) tellTrial(cmd *cobra.Command, verdicts []program.Trial) error {
	out := cmd.OutOrStdout()
	if d.json {
		return printJSON(out, verdicts)
	}
	t := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(t, "ID\tTYPE\tVERDICT\tDETAIL")
	by := map[string]int{}
	for _, v := range verdicts {
		by[v.Verdict]++
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", oneLine(v.ID, 100), word(oneLine(v.EventType, 100)), v.Verdict, oneLine(v.Detail, 200))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out, counts(by))
	return nil
}

// trialOutcome is the command's error: none where a replay would leave no letter.
func trialOutcome(verdicts []program.Trial, err error) error {
	good, bad := 0, 0
	for _, v := range verdicts {
		switch framework.Verdict(v.Verdict) {
		case framework.VerdictPass, framework.VerdictSkip, framework.VerdictDone:
			good++
		default:
			bad++
		}
	}
	if err == nil && bad > 0 {
		err = fmt.Errorf("%d of %d would fail, or can't be told", bad, len(verdicts))
	}
	if err != nil && good > 0 {
		return partialError{err}
	}
	return err
}
