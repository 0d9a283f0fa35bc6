package program

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/deadletter"
)

// Trial is what the command trial prints for each dead letter, a line of JSON
// each.
type Trial struct {
	ID        string `json:"id"`
	EventType string `json:"event_type,omitempty"`
	// Verdict is one of framework's; Detail says why.
	Verdict string `json:"verdict"`
	Detail  string `json:"detail,omitempty"`
}

// trial runs dead letters, in the format of an export, through the service's
// handlers as App.Trial does. It serves nothing and consumes nothing.
func (p Program[S]) trial(ctx context.Context, c Call) (err error) {
	quiet := c
	quiet.Stdout = c.Stderr // the log; Stdout is for the verdicts
	settings, env, err := p.load(quiet)
	if err != nil {
		return err
	}
	if env.conns, err = connect.Open(ctx, env.profile, env.logger, p.Brokers...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, env.conns.Close()) }()
	if err := p.schema(ctx, settings, env, false); err != nil {
		return err
	}
	app, err := p.Build(ctx, settings, env.base(p.Name, nil))
	if err != nil {
		return err
	}
	in := bufio.NewReader(c.Stdin)
	out := json.NewEncoder(c.Stdout)
	for n := 1; ; n++ {
		line, readErr := in.ReadBytes('\n')
		if readErr != nil && !errors.Is(readErr, io.EOF) {
			return fmt.Errorf("trial: line %d: %w", n, readErr)
		}
		if len(line) > 1 {
			l, err := deadletter.ParseRecord(line)
			if err != nil {
				return fmt.Errorf("trial: line %d: %w", n, err)
			}
			r, err := app.Trial(ctx, l.Group, l.Original())
			if err != nil {
				return fmt.Errorf("trial: line %d: %w", n, err)
			}
			if err := out.Encode(Trial{ID: l.ID, EventType: l.EventType, Verdict: string(r.Verdict), Detail: r.Detail}); err != nil {
				return fmt.Errorf("trial: %w", err)
			}
		}
		if readErr != nil {
			return nil
		}
	}
}
