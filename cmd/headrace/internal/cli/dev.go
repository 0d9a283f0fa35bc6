package cli

import (
	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
)

// bindDev adds the flags that say how to run a workspace.
func bindDev(cmd *cobra.Command, o *dev.Options) {
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", ".", "a folder of the workspace")
	f.StringVar(&o.State, "state", "", "keep databases, mails and logs under this folder (default: the workspace)")
	f.StringVar(&o.Env, "env", "", "the profile that the services run with (default: HEADRACE_ENV, else local)")
	f.StringVar(&o.BrokerURL, "redis", "", "use the Redis at this URL (default: the profile's, else one is started)")
	f.BoolVar(&o.AnyPort, "any-port", false, "let the services listen on free ports, not the profile's")
}

func newDev() *cobra.Command {
	var o dev.Options
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Build the services and run them all on this machine",
		Long: `dev builds every service of the workspace and runs them as processes: on Redis
Streams, with a Redis of its own where no address is given, and on SQLite files in
the state folder. A service that ends is started again. Ctrl-C drains them all: they
take no more work, finish what they have begun, and stop; a second Ctrl-C does not
wait.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out, o.Environ = cmd.OutOrStdout(), environ()
			r, err := dev.Start(cmd.Context(), o)
			if err != nil {
				return err
			}
			r.Say("all services run; `headrace demo` places orders, Ctrl-C stops")
			select {
			case <-cmd.Context().Done():
				r.Say("stopping: running handlers finish first")
			case <-r.Done():
			}
			if err := r.Stop(); err != nil {
				return err
			}
			r.Say("stopped")
			return nil
		},
	}
	bindDev(cmd, &o)
	return cmd
}
