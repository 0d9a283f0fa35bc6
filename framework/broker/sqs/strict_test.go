package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/google/uuid"
)

// strictSQS is an SQS that enforces the documented limits, which emulators don't:
// ten attributes, none empty, legal names and characters, sizes that count
// attributes, batch sums, and how long a message may be hidden. Hooks make it
// misbehave as the real one sometimes does.
type strictSQS struct {
	limit int           // bytes of a message and of a batch
	hide  time.Duration // the longest that a message may be hidden, 12 hours on AWS

	// Each may change the answer to a request that was carried out, or return an
	// error, which then is the answer to a request that was not.
	onSend   func(n int, in *awssqs.SendMessageBatchInput) (skip map[string]bool, change func(*awssqs.SendMessageBatchOutput), err error)
	onDelete func(n int, in *awssqs.DeleteMessageBatchInput) (skip map[string]bool, change func(*awssqs.DeleteMessageBatchOutput), err error)
	onExtend func(n int, in *awssqs.ChangeMessageVisibilityBatchInput) error

	mu      sync.Mutex
	changed chan struct{}
	queues  map[string]*strictQueue
	sends   []*awssqs.SendMessageBatchInput
	deletes []*awssqs.DeleteMessageBatchInput
	extends []*awssqs.ChangeMessageVisibilityBatchInput
	violent []string // what would have been refused
	active  map[string]int
	overlap []string // receipts that were extended while or after they were deleted
	gone    map[string]bool
}

type strictQueue struct {
	attrs map[string]string
	msgs  []*strictMessage
}

type strictMessage struct {
	id       string
	body     string
	attrs    map[string]types.MessageAttributeValue
	sent     time.Time
	count    int
	receipt  string
	received time.Time
	visible  time.Time
}

func newStrict() *strictSQS {
	return &strictSQS{
		limit: 1 << 20, hide: 12 * time.Hour, changed: make(chan struct{}), queues: map[string]*strictQueue{},
		active: map[string]int{}, gone: map[string]bool{},
	}
}

func apiError(code, msg string) error {
	return &smithy.OperationError{ServiceID: "SQS", OperationName: "strict", Err: &smithyhttp.ResponseError{
		Response: &smithyhttp.Response{Response: &http.Response{StatusCode: http.StatusBadRequest}},
		Err:      &smithy.GenericAPIError{Code: code, Message: msg},
	}}
}

func (s *strictSQS) queue(url *string) (*strictQueue, error) {
	q := s.queues[aws.ToString(url)]
	if q == nil {
		return nil, &types.QueueDoesNotExist{}
	}
	return q, nil
}

// wake tells receivers to look again. The lock is held.
func (s *strictSQS) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

var (
	attrName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)
	batchID  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)
)

func legal(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r < 0x20 && r != '\t' && r != '\n' && r != '\r' || r == 0xFFFE || r == 0xFFFF
	})
}

// refuse says what is wrong with a message, and returns its size.
func refuse(body *string, attrs map[string]types.MessageAttributeValue) (size int, reason string) {
	size = len(aws.ToString(body))
	switch {
	case size == 0:
		return size, "empty body"
	case !legal(*body):
		return size, "illegal characters in the body"
	case len(attrs) > 10:
		return size, fmt.Sprintf("%d attributes", len(attrs))
	}
	for name, a := range attrs {
		low := strings.ToLower(name)
		value := aws.ToString(a.StringValue)
		size += len(name) + len(aws.ToString(a.DataType)) + len(value) + len(a.BinaryValue)
		switch {
		case !attrName.MatchString(name) || len(name) > 256 || strings.HasPrefix(low, "aws.") || strings.HasPrefix(low, "amazon."):
			return size, fmt.Sprintf("attribute name %q", name)
		case value == "" && len(a.BinaryValue) == 0:
			return size, fmt.Sprintf("attribute %s is empty", name)
		case !legal(value):
			return size, fmt.Sprintf("illegal characters in attribute %s", name)
		}
	}
	return size, ""
}

func (s *strictSQS) SendMessageBatch(ctx context.Context, in *awssqs.SendMessageBatchInput, _ ...func(*awssqs.Options)) (*awssqs.SendMessageBatchOutput, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.queue(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	s.sends = append(s.sends, in)
	sum, ids := 0, map[string]bool{}
	for _, e := range in.Entries {
		size, reason := refuse(e.MessageBody, e.MessageAttributes)
		if size > s.limit {
			reason = fmt.Sprintf("%d bytes", size)
		}
		if reason != "" {
			s.violent = append(s.violent, reason)
		}
		sum += size
		ids[aws.ToString(e.Id)] = batchID.MatchString(aws.ToString(e.Id))
	}
	switch {
	case len(in.Entries) == 0 || len(in.Entries) > 10:
		s.violent = append(s.violent, fmt.Sprintf("%d entries", len(in.Entries)))
	case sum > s.limit:
		s.violent = append(s.violent, fmt.Sprintf("a batch of %d bytes", sum))
	case len(ids) != len(in.Entries):
		s.violent = append(s.violent, "ids repeated")
	}
	if len(s.violent) > 0 {
		return nil, apiError("InvalidParameterValue", s.violent[0])
	}
	var skip map[string]bool
	var change func(*awssqs.SendMessageBatchOutput)
	if s.onSend != nil {
		if skip, change, err = s.onSend(len(s.sends), in); err != nil {
			return nil, err
		}
	}
	out := &awssqs.SendMessageBatchOutput{}
	for _, e := range in.Entries {
		if skip[*e.Id] {
			continue
		}
		m := &strictMessage{id: uuid.NewString(), body: *e.MessageBody, attrs: maps.Clone(e.MessageAttributes), sent: time.Now()}
		q.msgs = append(q.msgs, m)
		out.Successful = append(out.Successful, types.SendMessageBatchResultEntry{Id: e.Id, MessageId: &m.id})
	}
	if change != nil {
		change(out)
	}
	s.wake()
	return out, nil
}

func (s *strictSQS) ReceiveMessage(ctx context.Context, in *awssqs.ReceiveMessageInput, _ ...func(*awssqs.Options)) (*awssqs.ReceiveMessageOutput, error) {
	if in.MaxNumberOfMessages < 1 || in.MaxNumberOfMessages > 10 || in.WaitTimeSeconds > 20 || in.VisibilityTimeout > 43200 {
		return nil, apiError("InvalidParameterValue", "receive")
	}
	until := time.Now().Add(time.Duration(in.WaitTimeSeconds) * time.Second)
	for {
		s.mu.Lock()
		q, err := s.queue(in.QueueUrl)
		if err != nil {
			s.mu.Unlock()
			return nil, err
		}
		out := &awssqs.ReceiveMessageOutput{}
		now := time.Now()
		next := until
		for _, m := range q.msgs {
			if m.visible.After(now) {
				if m.visible.Before(next) {
					next = m.visible
				}
				continue
			}
			if len(out.Messages) == int(in.MaxNumberOfMessages) {
				break
			}
			m.count++
			m.receipt, m.received = uuid.NewString(), now
			m.visible = now.Add(time.Duration(in.VisibilityTimeout) * time.Second)
			body, id, receipt := m.body, m.id, m.receipt
			out.Messages = append(out.Messages, types.Message{
				MessageId: &id, ReceiptHandle: &receipt, Body: &body, MessageAttributes: maps.Clone(m.attrs),
				Attributes: map[string]string{
					"ApproximateReceiveCount": strconv.Itoa(m.count), "SentTimestamp": strconv.FormatInt(m.sent.UnixMilli(), 10),
				},
			})
		}
		changed := s.changed
		s.mu.Unlock()
		if len(out.Messages) > 0 || !now.Before(until) {
			return out, nil
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// find returns the message that a receipt belongs to, while it is in flight.
func (q *strictQueue) find(receipt *string) (int, *strictMessage) {
	for i, m := range q.msgs {
		if m.receipt == aws.ToString(receipt) && m.visible.After(time.Now()) {
			return i, m
		}
	}
	return -1, nil
}

func failure(id *string, code string) types.BatchResultErrorEntry {
	return types.BatchResultErrorEntry{Id: id, Code: &code, SenderFault: true}
}

func (s *strictSQS) DeleteMessageBatch(ctx context.Context, in *awssqs.DeleteMessageBatchInput, _ ...func(*awssqs.Options)) (*awssqs.DeleteMessageBatchOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deletes = append(s.deletes, in)
	q, err := s.queue(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	for _, e := range in.Entries {
		if s.active[*e.ReceiptHandle] > 0 {
			s.overlap = append(s.overlap, *e.ReceiptHandle)
		}
	}
	var skip map[string]bool
	var change func(*awssqs.DeleteMessageBatchOutput)
	if s.onDelete != nil {
		if skip, change, err = s.onDelete(len(s.deletes), in); err != nil {
			return nil, err
		}
	}
	out := &awssqs.DeleteMessageBatchOutput{}
	for _, e := range in.Entries {
		if skip[*e.Id] {
			continue
		}
		i, m := q.find(e.ReceiptHandle)
		if m == nil {
			out.Failed = append(out.Failed, failure(e.Id, "ReceiptHandleIsInvalid"))
			continue
		}
		q.msgs = append(q.msgs[:i], q.msgs[i+1:]...)
		s.gone[*e.ReceiptHandle] = true
		out.Successful = append(out.Successful, types.DeleteMessageBatchResultEntry{Id: e.Id})
	}
	if change != nil {
		change(out)
	}
	return out, nil
}

func (s *strictSQS) ChangeMessageVisibilityBatch(ctx context.Context, in *awssqs.ChangeMessageVisibilityBatchInput, _ ...func(*awssqs.Options)) (*awssqs.ChangeMessageVisibilityBatchOutput, error) {
	s.mu.Lock()
	s.extends = append(s.extends, in)
	n := len(s.extends)
	for _, e := range in.Entries {
		s.active[*e.ReceiptHandle]++
		if s.gone[*e.ReceiptHandle] {
			s.overlap = append(s.overlap, *e.ReceiptHandle)
		}
	}
	hook := s.onExtend
	s.mu.Unlock()
	var err error
	if hook != nil {
		err = hook(n, in)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range in.Entries {
		s.active[*e.ReceiptHandle]--
	}
	if err != nil {
		return nil, err
	}
	q, err := s.queue(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	out := &awssqs.ChangeMessageVisibilityBatchOutput{}
	for _, e := range in.Entries {
		_, m := q.find(e.ReceiptHandle)
		until := time.Now().Add(time.Duration(e.VisibilityTimeout) * time.Second)
		switch {
		case m == nil:
			out.Failed = append(out.Failed, failure(e.Id, "ReceiptHandleIsInvalid"))
		case e.VisibilityTimeout < 0 || e.VisibilityTimeout > 43200 || until.Sub(m.received) > s.hide:
			out.Failed = append(out.Failed, failure(e.Id, "InvalidParameterValue"))
		default:
			m.visible = until
			out.Successful = append(out.Successful, types.ChangeMessageVisibilityBatchResultEntry{Id: e.Id})
		}
	}
	s.wake()
	return out, nil
}

func (s *strictSQS) GetQueueUrl(_ context.Context, in *awssqs.GetQueueUrlInput, _ ...func(*awssqs.Options)) (*awssqs.GetQueueUrlOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	url := "http://strict/" + aws.ToString(in.QueueName)
	if s.queues[url] == nil {
		return nil, &types.QueueDoesNotExist{}
	}
	return &awssqs.GetQueueUrlOutput{QueueUrl: &url}, nil
}

func (s *strictSQS) ListQueues(_ context.Context, in *awssqs.ListQueuesInput, _ ...func(*awssqs.Options)) (*awssqs.ListQueuesOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &awssqs.ListQueuesOutput{}
	for url := range s.queues {
		if strings.HasPrefix(url, "http://strict/"+aws.ToString(in.QueueNamePrefix)) {
			out.QueueUrls = append(out.QueueUrls, url)
		}
	}
	return out, nil
}

var queueName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,75}(\.fifo)?$`)

func (s *strictSQS) CreateQueue(_ context.Context, in *awssqs.CreateQueueInput, _ ...func(*awssqs.Options)) (*awssqs.CreateQueueOutput, error) {
	if !queueName.MatchString(aws.ToString(in.QueueName)) {
		return nil, apiError("InvalidParameterValue", "queue name")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	url := "http://strict/" + aws.ToString(in.QueueName)
	if s.queues[url] == nil {
		attrs := map[string]string{"QueueArn": "arn:aws:sqs:strict:1:" + *in.QueueName}
		maps.Copy(attrs, in.Attributes)
		s.queues[url] = &strictQueue{attrs: attrs}
	}
	return &awssqs.CreateQueueOutput{QueueUrl: &url}, nil
}

func (s *strictSQS) GetQueueAttributes(_ context.Context, in *awssqs.GetQueueAttributesInput, _ ...func(*awssqs.Options)) (*awssqs.GetQueueAttributesOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.queue(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	attrs := maps.Clone(q.attrs)
	visible, hidden := 0, 0
	for _, m := range q.msgs {
		if m.visible.After(time.Now()) {
			hidden++
		} else {
			visible++
		}
	}
	attrs["ApproximateNumberOfMessages"] = strconv.Itoa(visible)
	attrs["ApproximateNumberOfMessagesNotVisible"] = strconv.Itoa(hidden)
	return &awssqs.GetQueueAttributesOutput{Attributes: attrs}, nil
}

func (s *strictSQS) SetQueueAttributes(_ context.Context, in *awssqs.SetQueueAttributesInput, _ ...func(*awssqs.Options)) (*awssqs.SetQueueAttributesOutput, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q, err := s.queue(in.QueueUrl)
	if err != nil {
		return nil, err
	}
	maps.Copy(q.attrs, in.Attributes)
	return &awssqs.SetQueueAttributesOutput{}, nil
}

var errThrottled = errors.Join(apiError("RequestThrottled", "slow down"))
