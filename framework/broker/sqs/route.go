package sqs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/headrace-go/headrace/framework/broker"
)

// route is where a topic's messages go: to one SNS topic or to queues.
type route struct {
	topicARN string
	queues   []string // URLs
	until    time.Time
}

func (r route) fresh(now time.Time) bool { return r.until.IsZero() || now.Before(r.until) }

// routes remembers where topics lead. Finding out is left to one caller at a
// time for each topic.
type routes struct {
	mu    sync.Mutex
	known map[string]*known
	urls  map[string]string // of queues, by name
}

type known struct {
	finding sync.Mutex

	route  *route              // guarded by routes.mu
	groups map[string]struct{} // queue URLs of groups that this process made or joined
}

func (r *routes) init() {
	r.known = make(map[string]*known)
	r.urls = make(map[string]string)
}

func (r *routes) of(topic string) *known {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.known[topic]
	if k == nil {
		k = &known{groups: make(map[string]struct{})}
		r.known[topic] = k
	}
	return k
}

func (r *routes) get(k *known) (route, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k.route == nil || !k.route.fresh(time.Now()) {
		return route{}, false
	}
	return *k.route, true
}

// joined notes a group's queue, so that this process's publisher need not wait
// until ListQueues shows it.
func (r *routes) joined(topic, url string) {
	k := r.of(topic)
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := k.groups[url]; !known {
		k.groups[url] = struct{}{}
		k.route = nil
	}
}

// forget has a topic's route found anew, after a queue turned out to be gone.
func (r *routes) forget(topic string) {
	k := r.of(topic)
	r.mu.Lock()
	defer r.mu.Unlock()
	k.route = nil
	clear(k.groups)
	clear(r.urls)
}

func (r *routes) url(name string) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	url, ok := r.urls[name]
	return url, ok
}

func (r *routes) setURL(name, url string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.urls[name] = url
}

// route finds where topic leads.
func (b *Broker) route(ctx context.Context, topic string) (route, error) {
	k := b.routes.of(topic)
	if r, ok := b.routes.get(k); ok {
		return r, nil
	}
	k.finding.Lock()
	defer k.finding.Unlock()
	if r, ok := b.routes.get(k); ok {
		return r, nil
	}
	r, err := b.find(ctx, topic, k)
	if err != nil {
		return route{}, err
	}
	b.routes.mu.Lock()
	k.route = &r
	b.routes.mu.Unlock()
	return r, nil
}

func (b *Broker) find(ctx context.Context, topic string, k *known) (route, error) {
	switch {
	case deadLetters(topic):
		url, err := b.ownQueue(ctx, topic)
		return route{queues: []string{url}}, err
	case b.cfg.Mode == ModeSNS:
		arn, err := b.topic(ctx, topic)
		return route{topicARN: arn}, err
	}
	var r route
	if groups, listed := b.cfg.Groups[topic]; listed {
		for _, group := range groups {
			url, err := b.groupQueue(ctx, broker.Subscription{Topic: topic, Group: group})
			if err != nil {
				return route{}, err
			}
			r.queues = append(r.queues, url)
		}
	} else {
		found, err := b.discover(ctx, topic)
		if err != nil {
			return route{}, err
		}
		r.queues, r.until = found, time.Now().Add(b.cfg.DiscoverEvery)
	}
	b.routes.mu.Lock()
	for url := range k.groups {
		if !slices.Contains(r.queues, url) {
			r.queues = append(r.queues, url)
		}
	}
	b.routes.mu.Unlock()
	if len(r.queues) == 0 {
		url, err := b.ownQueue(ctx, topic)
		if err != nil {
			return route{}, err
		}
		r.queues = []string{url}
	}
	return r, nil
}

// discover lists the queues of a topic's groups by their names.
func (b *Broker) discover(ctx context.Context, topic string) ([]string, error) {
	var urls []string
	pages := &sqs.ListQueuesInput{QueueNamePrefix: aws.String(b.names.groups(topic)), MaxResults: aws.Int32(1000)}
	for {
		out, err := b.sqs.ListQueues(ctx, pages)
		if err != nil {
			return nil, fmt.Errorf("sqs: list the queues of topic %q: allow sqs:ListQueues, or list its groups in Groups: %w", topic, err)
		}
		for _, url := range out.QueueUrls {
			if strings.HasSuffix(url, fifoSuffix) == b.cfg.FIFO {
				urls = append(urls, url)
			}
		}
		if out.NextToken == nil {
			return urls, nil
		}
		pages.NextToken = out.NextToken
	}
}

// groupQueue returns the URL of a group's queue and creates it under ensure.
// Dead letters have no queue for each group: whoever reads them reads the one.
func (b *Broker) groupQueue(ctx context.Context, sub broker.Subscription) (string, error) {
	if deadLetters(sub.Topic) {
		return b.ownQueue(ctx, sub.Topic)
	}
	if b.cfg.Topology == TopologyEnsure {
		return b.ensureGroup(ctx, sub)
	}
	return b.queueURL(ctx, b.names.queue(sub.Topic, sub.Group),
		fmt.Sprintf("it is the queue of group %q on topic %q", sub.Group, sub.Topic))
}

// ownQueue returns the URL of the topic's own queue and creates it under ensure.
func (b *Broker) ownQueue(ctx context.Context, topic string) (string, error) {
	name := b.names.own(topic)
	if b.cfg.Topology == TopologyEnsure {
		if url, ok := b.routes.url(name); ok {
			return url, nil
		}
		q, err := b.ensureQueue(ctx, queueSpec{name: name, topic: topic})
		return q.url, err
	}
	what := "it is where messages of topic %q wait that no group reads yet"
	if deadLetters(topic) {
		what = "it is where the dead letters of topic %q are kept"
	}
	return b.queueURL(ctx, name, fmt.Sprintf(what, topic))
}

// queueURL looks a queue up.
func (b *Broker) queueURL(ctx context.Context, name, what string) (string, error) {
	if url, ok := b.routes.url(name); ok {
		return url, nil
	}
	out, err := b.sqs.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	switch {
	case noQueue(err):
		return "", &missingQueueError{name: name, what: what, err: err}
	case err != nil:
		return "", fmt.Errorf("sqs: look up queue %q: %w", name, err)
	}
	url := aws.ToString(out.QueueUrl)
	b.routes.setURL(name, url)
	return url, nil
}

// missingQueueError says which queue is not there and what to do.
type missingQueueError struct {
	name, what string
	err        error
}

func (e *missingQueueError) Error() string {
	return fmt.Sprintf("sqs: queue %q does not exist: %s: create it, or set Topology to %q where the program may", e.name, e.what, TopologyEnsure)
}

func (e *missingQueueError) Unwrap() error { return e.err }
