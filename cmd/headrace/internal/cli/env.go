package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/program"
)

func newEnv() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Look at the environments that the services can run in",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEnvCheck())
	return cmd
}

// envCheck is the flags of `headrace env check`.
type envCheck struct {
	dir, env, service string
	json              bool
}

func newEnvCheck() *cobra.Command {
	var c envCheck
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare what each service needs with what a profile's broker gives",
		Long: `check builds every service of the workspace and has it compare what its handlers need
(order per key, delays, large events, replay for a new group, a delivery count) with
what the profile's broker gives. Nothing is started, and neither broker nor database is
reached, so that it also tells of production on a laptop; settings that this machine
does not have are listed.

MET is yes (the broker does it), emulated (Headrace does it), partly (under the
condition that stands beside it) or no.

Exit codes: 0 each service would start on that broker, 1 one would be refused, or could
not be asked, 2 the command line makes no sense.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&c.dir, "dir", ".", "a folder of the workspace")
	f.StringVar(&c.env, "env", "", "the profile (default: HEADRACE_ENV, else local)")
	f.StringVar(&c.service, "service", "", "only this service (default: all)")
	f.BoolVar(&c.json, "json", false, "print JSON")
	return cmd
}

func (c envCheck) run(cmd *cobra.Command) error {
	environ := environ()
	if c.env == "" {
		c.env = lookup(environ, config.EnvEnv, "local")
	}
	w, err := dev.Find(c.dir, c.env)
	if err != nil {
		return err
	}
	reports := []program.NeedsReport{}
	for _, s := range w.Services {
		if c.service != "" && s.Name != c.service {
			continue
		}
		r, err := askNeeds(cmd.Context(), w, s.Name, c.env, environ)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	if len(reports) == 0 {
		return usageError{fmt.Errorf("--service is %q: there is no such service in %s", c.service, w.Root)}
	}
	if c.json {
		err = printJSON(cmd.OutOrStdout(), reports)
	} else {
		err = printNeeds(cmd.OutOrStdout(), c.env, reports)
	}
	if err != nil {
		return err
	}
	refused := []string{}
	for _, r := range reports {
		if len(r.Refused) > 0 {
			refused = append(refused, r.Service)
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("in profile %q these would not start: %s", c.env, strings.Join(refused, ", "))
	}
	return nil
}

// askNeeds builds a service and runs its command needs, in a folder of its own.
func askNeeds(ctx context.Context, w *dev.Workspace, name, env string, environ []string) (r program.NeedsReport, err error) {
	binary, err := w.Compile(ctx, name, w.Root, environ)
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp("", "headrace-env-")
	if err != nil {
		return r, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var out, errOut bytes.Buffer
	service := exec.CommandContext(ctx, binary, "needs", "--json")
	service.Dir, service.Env = dir, w.Environ(name, env, environ)
	service.Stdout, service.Stderr = &out, &errOut
	if err := service.Run(); err != nil {
		return r, fmt.Errorf("%s needs: %w: %s", name, err, strings.TrimSpace(errOut.String()))
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("%s needs: its answer can't be read: %w", name, err)
	}
	return r, nil
}

// printNeeds writes one table of all services, and below it what is missing and
// what would be refused.
func printNeeds(out io.Writer, env string, reports []program.NeedsReport) error {
	fmt.Fprintf(out, "profile %s\n\n", env)
	t := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tBROKER\tHANDLER\tNEED\tMET\tHOW")
	for _, r := range reports {
		for _, n := range r.Needs {
			handler := n.Handler
			if handler == "" {
				handler = "(all)"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.Service, r.Broker, handler, n.Need, n.Met, n.How)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range reports {
		names := make([]string, len(r.Missing))
		for i, m := range r.Missing {
			names[i] = m.Env
		}
		if len(names) > 0 {
			fmt.Fprintf(out, "\nnot set here, and %s does not start without: %s", r.Service, strings.Join(names, ", "))
		}
		for _, why := range r.Refused {
			fmt.Fprintf(out, "\n%s would not start: %s", r.Service, why)
		}
	}
	fmt.Fprintln(out)
	return nil
}
