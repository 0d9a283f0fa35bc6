package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"golang.org/x/time/rate"

	"github.com/headrace-go/headrace/framework/broker"
	"github.com/headrace-go/headrace/framework/internal/failpoint"
)

// Defaults of ReplayOptions.
const (
	DefaultMaxRedrives = 3
	DefaultBatch       = 100
	DefaultOutcome     = time.Minute
)

// ReplayOptions say which letters are replayed and how. The zero value replays
// all, as fast as it goes.
type ReplayOptions struct {
	// Filter chooses the letters.
	Filter Filter
	// Limit is how many letters are replayed at most. Default 0: no limit.
	Limit int
	// Rate is how many letters are published a second at most. Default 0: no
	// limit.
	Rate float64
	// DryRun tells what would be done, and does nothing.
	DryRun bool
	// MaxRedrives is how often a message may be replayed in all; a letter that
	// was replayed as often is refused. A replay that ended parked again does not
	// count. Default 3; negative: no limit.
	MaxRedrives int
	// AnyOrder publishes the later letters of a key also when an earlier one has
	// to stay. Default false: they stay behind it. A handler with ParkKey sends
	// them back all the same.
	AnyOrder bool
	// Batch is how many letters are published before they are deleted, at most:
	// as many may be published twice after a crash. Default 100; with Rate, at
	// most a tenth of a second's worth.
	Batch int
	// Journal is a file that makes an interrupted replay go on exactly where it
	// was. Name the same file again to resume; it is removed at the end of a
	// replay that leaves nothing half done. Default: none.
	Journal string
	// Canary lists how many letters go before the replay waits for their outcome:
	// 1, 10, 100 lets one letter go, then ten, then a hundred, and so on a hundred
	// at a time. When one of them is dead-lettered again, or their outcome is not
	// known in time, the replay stops. Default: none.
	Canary []int
	// Wait makes a replay without Canary wait at its end for the outcome of all
	// that it published.
	Wait bool
	// Outcome bounds how long the outcome is waited for, each time. Default 1 min.
	Outcome time.Duration
	// Progress is called after each letter that was dealt with, and often. It
	// must return quickly.
	Progress func(Progress)
}

// WithDefaults returns o with its defaults filled in.
func (o ReplayOptions) WithDefaults() ReplayOptions {
	if o.MaxRedrives == 0 {
		o.MaxRedrives = DefaultMaxRedrives
	}
	if o.Batch == 0 {
		o.Batch = DefaultBatch
	}
	if o.Rate > 0 {
		o.Batch = max(1, min(o.Batch, int(o.Rate/10)))
	}
	if o.Outcome == 0 {
		o.Outcome = DefaultOutcome
	}
	return o
}

// Validate reports every field that can't work.
func (o ReplayOptions) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("deadletter: "+format, args...)) }
	errs = append(errs, o.Filter.Validate())
	if o.Limit < 0 {
		bad("limit is %d: it must not be negative", o.Limit)
	}
	if o.Rate < 0 {
		bad("rate is %g a second: it must not be negative", o.Rate)
	}
	if o.Batch < 0 {
		bad("batch is %d: it must be 1 or more", o.Batch)
	}
	if o.Outcome < 0 {
		bad("outcome is %s: it must not be negative", o.Outcome)
	}
	for _, n := range o.Canary {
		if n < 1 {
			bad("canary has a step of %d: each must be 1 or more", n)
		}
	}
	return errors.Join(errs...)
}

// Replay publishes the letters of the queue to the group's redrive topic and
// deletes what the broker confirmed; the package's comment says what that
// guarantees. Letters that come in while it runs are left for the next one.
//
// The end of ctx ends it after the letters in hand; then Report.Interrupted is
// set and the error is nil. An error is of the broker, the journal or the audit;
// the report says what was done until then. Letters that had to stay are in the
// report and no error.
func (q *Queue) Replay(ctx context.Context, o ReplayOptions) (report Report, err error) {
	o = o.WithDefaults()
	report.DryRun = o.DryRun
	if err := o.Validate(); err != nil {
		return report, err
	}
	r := &replay{q: q, o: o, report: &report, held: map[string]string{}, seen: map[string]bool{}, sent: map[string]int{}, lines: newLines(), steps: o.Canary}
	if err := r.plan(ctx); err != nil {
		return report, interrupted(ctx, &report, err)
	}
	if report.Matched == 0 {
		return report, nil
	}
	if o.Rate > 0 {
		r.limiter = rate.NewLimiter(rate.Limit(o.Rate), o.Batch)
	}
	if !o.DryRun {
		if o.Journal != "" {
			if r.journal, err = openJournal(o.Journal, q.topic); err != nil {
				return report, err
			}
			defer func() {
				r.journal.settled = !r.halfDone
				err = errors.Join(err, r.journal.close())
			}()
		}
		// A broker without the group's queue would drop what is published.
		if err := q.cfg.Broker.EnsureTopology(ctx, broker.Subscription{Topic: q.RedriveTopic(), Group: q.cfg.Group}); err != nil {
			return report, interrupted(ctx, &report, fmt.Errorf("deadletter: prepare the redrive topic of %q: %w", q.cfg.Group, err))
		}
	}
	return report, interrupted(ctx, &report, r.run(ctx))
}

// interrupted turns an error that only says that ctx has ended into the flag.
func interrupted(ctx context.Context, report *Report, err error) error {
	if ctx.Err() == nil {
		return err
	}
	report.Interrupted = true
	if err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

type replay struct {
	q       *Queue
	o       ReplayOptions
	report  *Report
	journal *journal
	limiter *rate.Limiter
	// superseded are digests of letters that an edited one replaces.
	superseded map[string]bool
	// held are the keys of which a letter stays, and that letter's id.
	held map[string]string
	// seen are the positions that were dealt with, sent the ids that were
	// published, with the redrive count that they got.
	seen map[string]bool
	sent map[string]int
	// lines are the letters that hold up their keys.
	lines lines
	// halfDone: letters were published and not deleted.
	halfDone bool

	batch    []Letter
	keys     map[string]bool
	accepted int

	steps    []int
	step     int // letters that were published in the present step
	watching []Letter
}

// plan counts what there is to do, and finds edited letters.
func (r *replay) plan(ctx context.Context) error {
	r.superseded = map[string]bool{}
	for l, err := range r.q.Browse(ctx, Filter{}) {
		if err != nil {
			return err
		}
		if old := l.Message.Metadata[replacesKey]; old != "" {
			r.superseded[old] = true
		}
		matches := r.o.Filter.Match(l)
		if matches {
			r.report.Matched++
		}
		if !r.o.AnyOrder {
			r.lines.plan(l, matches)
		}
	}
	r.lines.sort()
	return nil
}

// run goes through the queue until it has dealt with as many letters as there
// were. Once is enough where Browse shows all; SQS may show a part at a time.
func (r *replay) run(ctx context.Context) error {
	for {
		before := r.report.done()
		limited, err := r.pass(ctx)
		if err != nil || r.report.Stopped != "" {
			return err
		}
		r.report.Unseen = max(r.report.Matched-r.report.done(), 0)
		if limited {
			r.report.Unseen = 0
		}
		if r.report.Unseen == 0 || r.report.done() == before {
			break
		}
	}
	if len(r.watching) > 0 {
		if err := r.await(ctx); err != nil {
			return err
		}
	}
	r.report.Settled = (len(r.o.Canary) > 0 || r.o.Wait) && r.report.Replayed > 0 && r.report.Stopped == ""
	return nil
}

// pass goes through the queue once. Limited: it ended at the limit.
func (r *replay) pass(ctx context.Context) (limited bool, err error) {
	defer r.lines.forget()
	for l, err := range r.q.Browse(ctx, r.o.Filter) {
		if err != nil {
			return false, errors.Join(err, r.flush(ctx))
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		if redrives, sent := r.sent[l.ID]; r.seen[l.Position] || sent && l.Redrives >= redrives {
			continue // dealt with in an earlier pass, or come back since
		}
		if r.held[l.Key] == "" && r.lines.early(l) {
			r.lines.keep(l) // or another pass meets it
			continue
		}
		for next := &l; next != nil; next = r.lines.next(l.Key) {
			if limited = r.o.Limit > 0 && r.accepted >= r.o.Limit; limited {
				return true, r.flush(ctx)
			}
			if next != &l && r.seen[next.Position] {
				continue // a broker may show a letter twice
			}
			r.seen[next.Position] = true
			if err := r.take(ctx, *next); err != nil {
				return false, err
			}
			r.lines.done(*next)
			if r.report.Stopped != "" {
				return false, nil
			}
		}
	}
	return false, r.flush(ctx)
}

// take decides about one letter.
func (r *replay) take(ctx context.Context, l Letter) error {
	switch {
	case r.journal.knows(l):
		return r.drop(ctx, l, &r.report.Resumed)
	case r.superseded[l.Digest()]:
		return r.drop(ctx, l, &r.report.Superseded)
	case r.o.MaxRedrives > 0 && l.Redrives-l.RedrivesParked >= r.o.MaxRedrives:
		r.report.Refused++
		r.stay(l, fmt.Sprintf("it was replayed %d times already, at most %d: mend what it fails on, then raise the limit", l.Redrives-l.RedrivesParked, r.o.MaxRedrives))
		return nil
	case r.held[l.Key] == "" && r.lines.behindAnother(l):
		r.report.Held++
		r.stay(l, "an earlier letter of its key was not chosen, and holds up the key: replay or discard that one")
		return nil
	}
	if first, held := r.held[l.Key]; held && l.Key != "" && !r.o.AnyOrder {
		r.report.Held++
		r.stay(l, fmt.Sprintf("an earlier letter of its key stays: %s", first))
		return nil
	}
	r.accepted++
	if r.o.DryRun {
		r.report.Replayed++
		r.progress(l)
		return nil
	}
	// A key is in a batch once: should its publish fail, no later one overtakes.
	if l.Key != "" && r.keys[l.Key] {
		if err := r.flush(ctx); err != nil {
			return err
		}
		if r.held[l.Key] != "" {
			r.accepted--
			return r.take(ctx, l)
		}
	}
	if r.keys == nil {
		r.keys = map[string]bool{}
	}
	r.batch, r.keys[l.Key] = append(r.batch, l), true
	r.step++
	stepEnds := len(r.steps) > 0 && r.step >= r.steps[0]
	if len(r.batch) < r.o.Batch && !stepEnds {
		return nil
	}
	if err := r.flush(ctx); err != nil || !stepEnds {
		return err
	}
	r.step = 0
	if len(r.steps) > 1 {
		r.steps = r.steps[1:]
	}
	return r.await(ctx)
}

// stay notes that l stays where it is.
func (r *replay) stay(l Letter, why string) {
	if l.Key != "" && r.held[l.Key] == "" {
		r.held[l.Key] = l.ID
	}
	r.report.note(l, why)
	r.progress(l)
}

// drop deletes a letter that needs no publish.
func (r *replay) drop(ctx context.Context, l Letter, count *int) error {
	if !r.o.DryRun {
		if err := r.q.remove(ctx, []Letter{l}); err != nil {
			r.halfDone = true
			return err
		}
	}
	*count++
	r.progress(l)
	return nil
}

// flush publishes the batch and deletes what was confirmed. It goes on when ctx
// ends meanwhile.
func (r *replay) flush(ctx context.Context) error {
	letters := r.batch
	r.batch, r.keys = nil, nil
	if len(letters) == 0 {
		return nil
	}
	if r.limiter != nil {
		// WaitN would give up at once when ctx ends too soon.
		wait := time.NewTimer(r.limiter.ReserveN(time.Now(), len(letters)).Delay())
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	published, publishErr := r.publish(ctx, letters)
	failpoint.Hit("redrive.published")
	if len(published) == 0 {
		return publishErr
	}
	r.halfDone = true
	if err := r.journal.add(published); err != nil {
		return errors.Join(publishErr, err)
	}
	failpoint.Hit("redrive.journaled")
	if err := r.q.remove(ctx, published); err != nil {
		r.report.Undeleted += len(published)
		return errors.Join(publishErr, fmt.Errorf("%d letters were published and not deleted; a replay with the same journal deletes them: %w", len(published), err))
	}
	r.halfDone = false
	failpoint.Hit("redrive.deleted")
	errs := []error{publishErr}
	for _, l := range published {
		r.report.Replayed++
		r.sent[l.ID] = l.Redrives + 1
		r.progress(l)
		errs = append(errs, r.q.audit(ctx, ActionReplay, l, ""))
	}
	if len(r.o.Canary) > 0 || r.o.Wait {
		for _, l := range published {
			l.Message = nil // only ids are needed to tell the outcome
			r.watching = append(r.watching, l)
		}
	}
	return errors.Join(errs...)
}

// publish returns the letters that the broker confirmed. Those that it refused
// for good are reported; any other failure is the error.
func (r *replay) publish(ctx context.Context, letters []Letter) ([]Letter, error) {
	msgs := make([]*message.Message, len(letters))
	for i, l := range letters {
		msgs[i] = l.redriven()
	}
	pctx, cancel := r.q.detached(ctx)
	defer cancel()
	for _, m := range msgs {
		m.SetContext(pctx)
	}
	err := r.q.cfg.Broker.Publisher().PublishBatch(pctx, r.q.RedriveTopic(), msgs)
	if err == nil {
		return letters, nil
	}
	failed := func(err error) error {
		return fmt.Errorf("deadletter: publish to the redrive topic of %q: %w", r.q.cfg.Group, err)
	}
	var partial *broker.PublishError
	if !errors.As(err, &partial) {
		for _, l := range letters {
			r.report.Failed++
			r.stay(l, err.Error())
		}
		return nil, failed(err)
	}
	var published []Letter
	var fault error
	for i, l := range letters {
		reason, bad := partial.Failed[i]
		if !bad {
			published = append(published, l)
			continue
		}
		r.report.Failed++
		r.stay(l, reason.Error())
		if fault == nil && !errors.Is(reason, broker.ErrRejected) {
			fault = failed(reason)
		}
	}
	return published, fault
}

func (r *replay) progress(l Letter) {
	if r.o.Progress == nil {
		return
	}
	total := r.report.Matched
	if r.o.Limit > 0 {
		total = min(total, r.o.Limit+r.report.Resumed+r.report.Superseded+r.report.Refused+r.report.Held)
	}
	r.o.Progress(Progress{Done: r.report.done(), Total: total, ID: l.ID})
}
