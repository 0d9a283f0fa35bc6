package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"
)

const (
	// maxBatch bounds one pull.
	maxBatch = 500
	// pullSlack is what the answer to a pull may take beyond its waiting time.
	pullSlack = 2 * time.Second
	// emptyPause is how long a pull waits that the server ends at once and empty.
	emptyPause = 50 * time.Millisecond
)

var (
	// errConsumerGone says that the consumer is no more.
	errConsumerGone = errors.New("the consumer or its stream is gone")
	// errNoAnswer says that it may be: the server does not answer pulls from a
	// consumer that does not exist.
	errNoAnswer = errors.New("no answer to a pull")
)

// puller asks for messages one request at a time. The request is of the kind that
// waits for a first message and ends with the last that is there, so that nothing
// is under way between two of them.
type puller struct {
	b       *Broker
	subject string
	inbox   string
	sub     *natsgo.Subscription
	n       uint64
}

type pullRequest struct {
	Expires time.Duration `json:"expires"`
	Batch   int           `json:"batch"`
	NoWait  bool          `json:"no_wait"`
}

func newPuller(b *Broker, stream, consumer string) (*puller, error) {
	p := &puller{b: b, subject: b.api + "CONSUMER.MSG.NEXT." + stream + "." + consumer, inbox: b.conn.NewInbox()}
	var err error
	if p.sub, err = b.conn.SubscribeSync(p.inbox + ".*"); err != nil {
		return nil, err
	}
	return p, p.sub.SetPendingLimits(-1, -1)
}

// next runs one pull. It ends with the pull, whatever ctx does: a message that
// the server has handed to it would be out of everybody's reach for a lease.
func (p *puller) next(ctx context.Context, limit int) ([]*natsgo.Msg, error) {
	if err := p.b.connected(); err != nil {
		return nil, err
	}
	limit = min(limit, maxBatch)
	body, err := json.Marshal(pullRequest{Expires: p.b.cfg.FetchWait, Batch: limit, NoWait: true})
	if err != nil {
		return nil, err
	}
	p.n++
	reply := p.inbox + "." + strconv.FormatUint(p.n, 10)
	start := time.Now()
	if err := p.b.conn.PublishRequest(p.subject, reply, body); err != nil {
		return nil, err
	}
	end := start.Add(p.b.cfg.FetchWait + pullSlack)
	msgs := make([]*natsgo.Msg, 0, limit)
	for len(msgs) < limit {
		m, err := p.sub.NextMsg(time.Until(end))
		if err != nil {
			return msgs, fmt.Errorf("%w within %s: %w", errNoAnswer, p.b.cfg.FetchWait+pullSlack, err)
		}
		if m.Reply != "" {
			msgs = append(msgs, m)
			continue
		}
		if m.Subject != reply {
			continue // the end of an earlier pull
		}
		if done, err := ended(m); err != nil {
			return msgs, err
		} else if !done {
			continue
		}
		if len(msgs) == 0 && time.Since(start) < emptyPause {
			p.pause(ctx)
		}
		return msgs, nil
	}
	return msgs, nil
}

// pause keeps a server that does not wait from being asked all the time.
func (p *puller) pause(ctx context.Context) {
	t := time.NewTimer(emptyPause)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// ended reads a status message.
func ended(m *natsgo.Msg) (bool, error) {
	status, text := m.Header.Get("Status"), m.Header.Get("Description")
	switch status {
	case "404", "408":
		return true, nil
	case "100":
		return false, nil
	case "503":
		return true, errConsumerGone
	case "409":
		low := strings.ToLower(text)
		if strings.Contains(low, "consumer deleted") {
			return true, errConsumerGone
		}
		if strings.Contains(low, "batch completed") || strings.Contains(low, "leadership change") {
			return true, nil
		}
	}
	return true, fmt.Errorf("the server ends a pull with %s %s", status, text)
}

func (p *puller) close() error {
	err := p.sub.Unsubscribe()
	if errors.Is(err, natsgo.ErrConnectionClosed) || errors.Is(err, natsgo.ErrBadSubscription) {
		return nil
	}
	return err
}
