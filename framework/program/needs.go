package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"text/tabwriter"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/framework/connect"
	"github.com/headrace-go/headrace/framework/logging"
)

// NeedsReport is what the command needs tells: what the service needs of the
// broker that its profile names, and whether that gives it.
type NeedsReport struct {
	Service string `json:"service"`
	Env     string `json:"env"`
	// Broker is the kind of the profile's broker.
	Broker string `json:"broker"`
	// Missing are settings that this environment does not have and the service
	// does not start without: addresses and secrets, mostly.
	Missing []MissingSetting `json:"missing"`
	Needs   []framework.Need `json:"needs"`
	// Refused are the reasons, if any, why the service would not start on that
	// broker.
	Refused []string `json:"refused"`
}

// MissingSetting is a setting without a value.
type MissingSetting struct {
	Key string `json:"key"`
	Env string `json:"env"`
}

// ErrNeedsUnmet is in the chain of the error of the command needs when the
// service would not start on the profile's broker.
var ErrNeedsUnmet = errors.New("the service would not start on this broker")

// needs prints the table of needs.
func (p Program[S]) needs(ctx context.Context, c Call) error {
	r, err := p.report(ctx, c)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "profile %s, broker %s\n\n", r.Env, r.Broker)
	table := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "HANDLER\tNEED\tMET\tHOW")
	for _, n := range r.Needs {
		handler := n.Handler
		if handler == "" {
			handler = "(all)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", handler, n.Need, n.Met, n.How)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, m := range r.Missing {
		fmt.Fprintf(&out, "not set here: %s (%s)\n", m.Env, m.Key)
	}
	for _, why := range r.Refused {
		fmt.Fprintf(&out, "refused: %s\n", why)
	}
	if _, err := c.Stdout.Write(out.Bytes()); err != nil {
		return err
	}
	if len(r.Refused) > 0 {
		return fmt.Errorf("broker %s of profile %s: %w", r.Broker, r.Env, ErrNeedsUnmet)
	}
	return nil
}

// needsJSON is needs for programs. A need that is not met is no error of it.
func (p Program[S]) needsJSON(ctx context.Context, c Call) error {
	r, err := p.report(ctx, c)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(c.Stdout)
	enc.SetIndent("", "  ")
	if err := enc.Encode(r); err != nil {
		return fmt.Errorf("write the needs: %w", err)
	}
	return nil
}

// report wires the service on a stand-in for its broker and a scratch database,
// and asks it. Nothing that the profile names is reached.
func (p Program[S]) report(ctx context.Context, c Call) (r NeedsReport, err error) {
	settings, missing, err := p.standIns(c)
	if err != nil {
		return r, err
	}
	profile := settings.Common()
	b, err := connect.Describe(profile, p.Brokers...)
	if err != nil {
		return r, err
	}
	quiet := slog.New(slog.DiscardHandler)
	if profile.Database.Driver != "" {
		profile.Database.Driver, profile.Database.DSN = "sqlite", ":memory:"
	}
	scratch := profile
	scratch.Broker, scratch.Env = config.Broker{Kind: "memory"}, "test"
	conns, err := connect.Open(ctx, scratch, quiet)
	if err != nil {
		return r, fmt.Errorf("open a scratch database: %w", err)
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	plain, err := logging.New(io.Discard, profile.Log)
	if err != nil {
		return r, err
	}
	env := &environment{profile: profile, plain: plain, logger: quiet, conns: conns}
	base := env.base(p.Name, nil)
	base.Broker = b
	app, err := p.Build(ctx, settings, base)
	if app == nil {
		return r, err
	}
	r = NeedsReport{
		Service: p.Name, Env: profile.Env, Broker: profile.Broker.Kind, Missing: missing, Needs: app.Needs(), Refused: []string{},
	}
	for _, f := range framework.FindingsOf(errors.Join(err, app.Validate())) {
		if why := f.Error(); !slices.Contains(r.Refused, why) {
			r.Refused = append(r.Refused, why)
		}
	}
	if err != nil && len(r.Refused) == 0 {
		return r, err
	}
	return r, nil
}

// candidates stand in for a setting that is missing: an address that is nobody's
// and long enough for a secret, and what a broker's address may look like.
var candidates = []string{
	"https://stand-in.for-a-missing-setting.invalid", "postgres://stand-in.invalid/stand_in", "redis://stand-in.invalid:6379/0", "sqlite",
}

var variable = regexp.MustCompile(`\bHEADRACE_[A-Z0-9_]+\b`)

// standIns loads the settings. What is empty and may not be gets a stand-in and is
// told: a laptop has not the secrets of production, and can tell its needs all the
// same.
func (p Program[S]) standIns(c Call) (settings S, missing []MissingSetting, err error) {
	tried := map[string]int{}
	environ := c.Environ
	missing = []MissingSetting{}
	for {
		settings = p.Defaults
		x, err := config.Explain(&settings, p.source(Call{Environ: environ}))
		if err != nil {
			return settings, nil, err
		}
		if x.Faults == nil {
			return settings, missing, nil
		}
		progress := false
		for _, name := range variable.FindAllString(x.Faults.Error(), -1) {
			i := slices.IndexFunc(x.Settings, func(s config.Setting) bool { return s.Env == name })
			n, again := tried[name]
			if i < 0 || n >= len(candidates) || !again && x.Settings[i].Value != "" {
				continue
			}
			if !again {
				missing = append(missing, MissingSetting{Key: x.Settings[i].Key, Env: name})
			}
			environ = append(slices.Clone(environ), name+"="+candidates[n])
			tried[name], progress = n+1, true
		}
		if !progress {
			return settings, nil, x.Faults
		}
	}
}
