package cli

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/headrace-go/headrace/framework/deadletter"
)

// confirmation is the flag of commands that change something.
type confirmation struct{ yes bool }

func (c *confirmation) bind(flags *pflag.FlagSet) {
	flags.BoolVar(&c.yes, "yes", false, "do it without asking")
}

// errDeclined is the answer no.
var errDeclined = errors.New("not confirmed, nothing was done")

// ask asks on the terminal. Without one, --yes is needed.
func (c confirmation) ask(cmd *cobra.Command, question string) error {
	if c.yes {
		return nil
	}
	in, isFile := cmd.InOrStdin().(*os.File)
	if !isFile || !isTerminal(in) {
		return usageError{fmt.Errorf("%s There is no terminal to ask on: confirm with --yes", question)}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	type line struct {
		text string
		err  error
	}
	answered := make(chan line, 1)
	go func() {
		text, err := bufio.NewReader(in).ReadString('\n')
		answered <- line{text, err}
	}()
	select {
	case <-cmd.Context().Done():
		fmt.Fprintln(cmd.ErrOrStderr())
		return errDeclined
	case a := <-answered:
		switch strings.ToLower(strings.TrimSpace(a.text)) {
		case "y", "yes":
			return nil
		}
		return errDeclined
	}
}

func isTerminal(f *os.File) bool { return isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()) }

// progress shows a bar on a terminal, and nothing elsewhere.
type progress struct {
	bar   *progressbar.ProgressBar
	total int
}

func (d *dlq) bar(cmd *cobra.Command, what string) *progress {
	f, isFile := cmd.ErrOrStderr().(*os.File)
	if !isFile || !isTerminal(f) || d.json {
		return &progress{}
	}
	return &progress{bar: progressbar.NewOptions(-1,
		progressbar.OptionSetWriter(f), progressbar.OptionSetDescription(what), progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionClearOnFinish(), progressbar.OptionThrottle(65_000_000),
	)}
}

func (p *progress) step(s deadletter.Progress) {
	if p.bar == nil {
		return
	}
	if s.Total > 0 && s.Total != p.total {
		p.total = s.Total
		p.bar.ChangeMax(s.Total)
	}
	_ = p.bar.Set(s.Done)
}

func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
