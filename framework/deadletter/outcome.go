package deadletter

import (
	"context"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/framework/broker"
)

const (
	// outcomePoll is how often the broker is asked; it can't signal.
	outcomePoll = 100 * time.Millisecond
	// outcomeQuiet is how long the redrive topic must have been empty: a message
	// that is given back may be out of sight for a moment.
	outcomeQuiet = 300 * time.Millisecond
)

// await waits until the group has settled what was published since the last
// await, and looks whether any of it was dead-lettered again. It stops the
// replay when one was, or when that is not known in time.
func (r *replay) await(ctx context.Context) error {
	watched := make(map[string]int, len(r.watching))
	for _, l := range r.watching {
		watched[l.ID] = l.Redrives + 1
	}
	r.watching = nil
	if len(watched) == 0 {
		return nil
	}
	settled, err := r.q.settled(ctx, r.o.Outcome)
	if err != nil {
		return err
	}
	for l, err := range r.q.Browse(ctx, Filter{}) {
		if err != nil {
			return err
		}
		if redrives, ok := watched[l.ID]; ok && l.Redrives >= redrives {
			delete(watched, l.ID)
			r.report.Returned++
			r.report.note(l, "it was dead-lettered again: "+l.Reason+": "+l.Error)
		}
	}
	switch {
	case r.report.Returned > 0:
		r.report.Stopped = fmt.Sprintf("%d replayed messages were dead-lettered again", r.report.Returned)
	case !settled:
		r.report.Stopped = fmt.Sprintf("the group %q has not settled the replayed messages within %s: does the service run?", r.q.cfg.Group, r.o.Outcome)
	}
	return nil
}

// settled waits until the redrive topic has nothing left for the group. False:
// not within the time.
func (q *Queue) settled(ctx context.Context, within time.Duration) (bool, error) {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(outcomePoll)
	defer tick.Stop()
	sub := broker.Subscription{Topic: q.RedriveTopic(), Group: q.cfg.Group}
	var quiet time.Time
	for {
		s, err := q.cfg.Broker.Admin().Stats(ctx, sub)
		if err != nil {
			return false, fmt.Errorf("deadletter: wait for the outcome: %w", err)
		}
		switch {
		case s.Lag+s.Pending > 0:
			quiet = time.Time{}
		case quiet.IsZero():
			quiet = time.Now()
		case time.Since(quiet) >= outcomeQuiet:
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-deadline.C:
			return false, nil
		case <-tick.C:
		}
	}
}
