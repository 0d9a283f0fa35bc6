package redisinbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headrace-go/headrace/framework/internal/combine"
)

const (
	// maxBatch is the most keys that one round trip claims or commits: a script
	// holds the server while it runs, a microsecond or two for a key.
	maxBatch = 128
	// claimed begins the value of a key that is claimed.
	claimed = "c:"
	// tripTimeout bounds a round trip, whose callers may have gone.
	tripTimeout = 5 * time.Second
)

// step is what one key asks of a script.
type step struct {
	key, token string
	millis     int64
}

// found is what a script says of one key: a state, and a number or a result.
type found struct {
	state, millis int64
	result        string
}

// trips run a script on the keys of all who call at the same time.
type trips struct {
	client redis.UniversalClient
	// script takes any number of keys, each with a token and a time, and answers
	// each with a pair.
	script *redis.Script
	// apart: the keys may lie on several servers, so each goes in a command of its
	// own. A server that is part of a cluster says so.
	apart atomic.Bool
	// fresh: most keys are new, so a plain SET NX tries first, which costs the server
	// a fraction of the script.
	fresh bool
	group combine.Group[step, found]
}

// newTrips makes trips. Left hears of answers that nobody waited for; it may be
// nil.
func newTrips(client redis.UniversalClient, script *redis.Script, left func(step, combine.Answer[found])) *trips {
	t := &trips{client: client, script: script}
	_, one := client.(*redis.Client)
	t.apart.Store(!one)
	t.group = combine.Group[step, found]{Ask: t.ask, Max: maxBatch, Timeout: tripTimeout, Left: left}
	return t
}

func (t *trips) ask(ctx context.Context, steps []step) []combine.Answer[found] {
	if t.fresh {
		return t.takeFresh(ctx, steps)
	}
	return t.runScript(ctx, steps)
}

// takeFresh claims keys that nobody has, and asks the script about the others.
func (t *trips) takeFresh(ctx context.Context, steps []step) []combine.Answer[found] {
	pipe := t.client.Pipeline()
	cmds := make([]*redis.Cmd, len(steps))
	for i, s := range steps {
		cmds[i] = pipe.Do(ctx, "set", s.key, claimed+s.token, "nx", "px", s.millis)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	answers := make([]combine.Answer[found], len(steps))
	var taken []step
	var at []int
	for i, cmd := range cmds {
		switch err := cmd.Err(); {
		case errors.Is(err, redis.Nil):
			taken, at = append(taken, steps[i]), append(at, i)
		case err != nil:
			answers[i].Err = err
		}
	}
	if len(taken) > 0 {
		for n, a := range t.runScript(ctx, taken) {
			answers[at[n]] = a
		}
	}
	return answers
}

func (t *trips) runScript(ctx context.Context, steps []step) []combine.Answer[found] {
	answers := make([]combine.Answer[found], len(steps))
	if !t.apart.Load() {
		keys, args := arguments(steps)
		cmd := t.script.Run(ctx, t.client, keys, args...)
		if !redis.HasErrorPrefix(cmd.Err(), "CROSSSLOT") {
			read(cmd, answers)
			return answers
		}
		t.apart.Store(true)
	}
	pipe := t.client.Pipeline()
	cmds := make([]*redis.Cmd, len(steps))
	for i := range steps {
		keys, args := arguments(steps[i : i+1])
		cmds[i] = t.script.EvalSha(ctx, pipe, keys, args...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			keys, args := arguments(steps[i : i+1])
			cmd = t.script.Run(ctx, t.client, keys, args...)
		}
		read(cmd, answers[i:i+1])
	}
	return answers
}

func arguments(steps []step) (keys []string, args []any) {
	keys, args = make([]string, len(steps)), make([]any, 0, 2*len(steps))
	for i, s := range steps {
		keys[i] = s.key
		args = append(args, s.token, s.millis)
	}
	return keys, args
}

// read takes the answers of one command: for each key a state and a number or a
// result, or the text of the error that it met.
func read(cmd *redis.Cmd, answers []combine.Answer[found]) {
	pairs, err := cmd.Slice()
	if err == nil && len(pairs) != 2*len(answers) {
		err = fmt.Errorf("the script gave %d answers for %d keys", len(pairs)/2, len(answers))
	}
	for i := range answers {
		a := &answers[i]
		if a.Err = err; err != nil {
			continue
		}
		if text, failed := pairs[2*i].(string); failed {
			a.Err = errors.New(text)
			continue
		}
		a.Value.state, _ = pairs[2*i].(int64)
		a.Value.millis, _ = pairs[2*i+1].(int64)
		a.Value.result, _ = pairs[2*i+1].(string)
	}
}
