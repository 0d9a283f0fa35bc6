package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/cmd/headrace/internal/dev"
	"github.com/headrace-go/headrace/cmd/headrace/internal/journey"
)

func newDemo() *cobra.Command {
	var (
		o      dev.Options
		exit   bool
		within time.Duration
	)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Place three orders and print each one's journey",
		Long: `demo places an order that is paid, one whose payment is declined and one that is
cancelled after it was paid, and prints what happened to each: every event below the
one that caused it, with its time, followed by its correlation id through all
services.

It uses the services that a ` + "`headrace dev`" + ` of this workspace runs. Where none does, it
starts them itself and leaves them running until Ctrl-C.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			o.Out, o.Environ, o.Quiet = out, environ(), true
			if o.Env == "" {
				o.Env = dev.DefaultEnv(o.Environ)
			}
			w, root, err := find(o)
			if err != nil {
				return err
			}
			state, started, err := findOrStart(ctx, root, o)
			if err != nil {
				return err
			}
			err = runDemo(ctx, cmd, w, root, state, within)
			if started == nil {
				return err
			}
			if err == nil && !exit {
				fmt.Fprintln(out)
				started.Say("mails are in %s, logs in %s", filepath.Join(started.Folder, "mail"), filepath.Join(started.Folder, "logs"))
				started.Say("the services still run: place orders of your own at %s/v1/orders, Ctrl-C stops", state.Services["orders"].HTTP)
				select {
				case <-ctx.Done():
				case <-started.Done():
				}
			}
			return errors.Join(err, started.Stop())
		},
	}
	bindDev(cmd, &o)
	cmd.Flags().BoolVar(&exit, "exit", false, "stop the services that the demo started once it is over")
	cmd.Flags().DurationVar(&within, "within", 30*time.Second, "how long each order's journey may take")
	return cmd
}

// find returns the workspace and the folder under which its state is kept.
func find(o dev.Options) (w *dev.Workspace, root string, err error) {
	if w, err = dev.Find(o.Dir, o.Env); err != nil {
		return nil, "", err
	}
	if root = o.State; root == "" {
		root = w.Root
	}
	return w, root, nil
}

// findOrStart returns the state of the services that run, and the services
// themselves where they had to be started.
func findOrStart(ctx context.Context, root string, o dev.Options) (dev.State, *dev.Running, error) {
	state, err := dev.ReadState(root)
	if err == nil {
		return state, nil, nil
	}
	if !errors.Is(err, dev.ErrNotRunning) {
		return state, nil, err
	}
	r, err := dev.Start(ctx, o)
	if err != nil {
		return state, nil, err
	}
	return r.State, r, nil
}

func runDemo(ctx context.Context, cmd *cobra.Command, w *dev.Workspace, root string, state dev.State, within time.Duration) error {
	orders, ok := state.Services["orders"]
	if !ok {
		return errors.New("the demo places orders, and no orders service runs here")
	}
	conns, err := state.Open(ctx, w, root, environ())
	if err != nil {
		return fmt.Errorf("read the journeys from the broker: %w", err)
	}
	defer func() { _ = conns.Close() }()
	log, err := journey.Read(ctx, conns.Broker, journey.Topics())
	if err != nil {
		return fmt.Errorf("read the journeys from the broker: %w", err)
	}
	defer log.Close()
	d := journey.Demo{Shop: journey.Shop{URL: orders.HTTP}, Log: log, Out: cmd.OutOrStdout(), Within: within}
	return d.Run(ctx)
}
