package cli

import (
	"fmt"
	"os/exec"
	"slices"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
	"github.com/headrace-go/headrace/framework/config"
)

func newExplain() *cobra.Command {
	var (
		dir, env string
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "explain [SERVICE...]",
		Short: "Show how each handler runs: its stack, every number and where that comes from",
		Long: `explain builds the services of the workspace, all of them or those that are named, and
has each tell the effective pipeline of its handlers: the layers of the stack from the
outermost, and every number with its source, which is the default, the profile's file,
the environment, the code, or a computation. A service that would refuse to start says
so, with the reasons.

Neither a broker nor a database is reached.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if env == "" {
				env = lookup(environ(), config.EnvEnv, "local")
			}
			w, err := dev.Find(dir, env)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				for _, s := range w.Services {
					args = append(args, s.Name)
				}
			}
			for _, name := range args {
				if !slices.ContainsFunc(w.Services, func(s dev.Service) bool { return s.Name == name }) {
					return usageError{fmt.Errorf("no service %q in %s", name, w.Root)}
				}
			}
			failed := 0
			for i, name := range args {
				if i > 0 && !asJSON {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				if err := explainOne(cmd, w, name, env, asJSON); err != nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "headrace: %s: %v\n", name, err)
					failed++
				}
			}
			if failed > 0 {
				return fmt.Errorf("%d of %d services could not be explained or would not start", failed, len(args))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "a folder of the workspace")
	cmd.Flags().StringVar(&env, "env", "", "the profile (default: HEADRACE_ENV, else local)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, a document for each service")
	return cmd
}

// explainOne builds a service and runs its command explain.
func explainOne(cmd *cobra.Command, w *dev.Workspace, name, env string, asJSON bool) error {
	p, err := w.Profile(name, env, environ())
	if err != nil {
		return err
	}
	run, err := w.Build(cmd.Context(), name, "", w.Root, p, environ())
	if err != nil {
		return err
	}
	args := []string{"explain"}
	if asJSON {
		args = append(args, "--json")
	}
	service := exec.CommandContext(cmd.Context(), run.Binary, args...)
	service.Dir, service.Env = run.Dir, run.Environ
	service.Stdout, service.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	return service.Run()
}
