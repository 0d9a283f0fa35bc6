package framework

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/pkg/events"
)

// Verdict is what a trial found.
type Verdict string

// The verdicts.
const (
	// VerdictPass: the handler would handle it.
	VerdictPass Verdict = "would_pass"
	// VerdictFail: the handler would fail, as TrialResult.Detail says.
	VerdictFail Verdict = "would_fail"
	// VerdictSkip: the handler would leave it alone, which counts as handled.
	VerdictSkip Verdict = "would_skip"
	// VerdictDone: the group has handled it before; a replay has no effect.
	VerdictDone Verdict = "already_done"
	// VerdictUnknown: a trial can't tell, for the reason in TrialResult.Detail.
	VerdictUnknown Verdict = "cant_tell"
)

// TrialResult is the outcome of one trial.
type TrialResult struct {
	Verdict Verdict
	// Detail is the error's text, or why a trial can't tell; "" otherwise.
	Detail string
}

// ErrNoHandler is returned by Trial for a group that the service does not have.
var ErrNoHandler = errors.New("no handler has this group")

// Trial runs a message through the handler of the group once, as it stands now,
// in a transaction that is rolled back: what the handler writes and emits is
// gone, and no idempotency key is taken. Of a CallHandler only Prepare runs: the
// call to the outside is not made, so unless Prepare ends the handling the
// verdict is VerdictUnknown. A handler of Handle has no transaction that could
// be rolled back, and does not run.
//
// What a HandleTx handler does outside of its transaction, against HandleTx's
// rule, is done. The App need not run. An error is ErrNoHandler, or the end of
// ctx; whatever else goes wrong is a verdict.
func (a *App) Trial(ctx context.Context, group string, msg *message.Message) (TrialResult, error) {
	i := slices.IndexFunc(a.handlers, func(h *handler) bool { return h.group == group })
	if i < 0 {
		return TrialResult{}, fmt.Errorf("framework: group %q of service %q: %w", group, a.cfg.Service, ErrNoHandler)
	}
	h := a.handlers[i]
	var o opened
	o.env, o.err = events.Decode(msg.Payload)
	if err := a.admit(h, &o); err != nil {
		return verdictOf(err), nil
	}
	if h.kind == kindPlain {
		return TrialResult{VerdictUnknown, "its handler runs outside of a transaction, so nothing could undo what it does"}, nil
	}
	t := &trial{}
	tctx := a.Context(context.WithValue(ctx, trialKey{}, t))
	if h.policy.timeout > 0 {
		var cancel context.CancelFunc
		tctx, cancel = context.WithTimeout(tctx, h.policy.timeout)
		defer cancel()
	}
	err := attempt(tctx, h, o.env)
	if ctx.Err() != nil {
		return TrialResult{}, context.Cause(ctx)
	}
	return t.result(h, err), nil
}

// attempt runs the handler, whose panic is an error.
func attempt(ctx context.Context, h *handler, env events.Envelope) error {
	guarded := middleware.Recover(middleware.RecoverConfig{})(func(m *message.Message) ([]*message.Message, error) {
		return nil, h.invoke(m.Context(), env)
	})
	m := message.NewMessage(env.ID, nil)
	m.SetContext(ctx)
	_, err := guarded(m)
	return err
}

// trial is what a trial learns on the way.
type trial struct {
	duplicate bool // the inbox has the event
	taken     bool // the inbox row was written, so the handling came to its end
}

type trialKey struct{}

// errTrial rolls a trial's transaction back that would have committed.
var errTrial = errors.New("framework: rolled back at the end of a trial")

func trialFrom(ctx context.Context) *trial {
	t, _ := ctx.Value(trialKey{}).(*trial)
	return t
}

// trialEnd returns errTrial where ctx is a trial's.
func trialEnd(ctx context.Context) error {
	if trialFrom(ctx) != nil {
		return errTrial
	}
	return nil
}

// inbox notes what a look into the inbox found.
func (t *trial) inbox(fresh, took bool) {
	if t == nil {
		return
	}
	t.duplicate = t.duplicate || !fresh
	t.taken = t.taken || took && fresh
}

func (t *trial) result(h *handler, err error) TrialResult {
	switch {
	case t.duplicate:
		return TrialResult{Verdict: VerdictDone}
	case !errors.Is(err, errTrial) && err != nil:
		return verdictOf(err)
	case h.kind == kindCall && !t.taken:
		return TrialResult{VerdictUnknown, "it prepares, and would then call the outside, which a trial does not"}
	default:
		return TrialResult{Verdict: VerdictPass}
	}
}

func verdictOf(err error) TrialResult {
	if d, _ := middleware.DispositionOf(err); d == middleware.DispositionSkip {
		return TrialResult{VerdictSkip, err.Error()}
	}
	return TrialResult{VerdictFail, err.Error()}
}
