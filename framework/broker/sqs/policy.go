package sqs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
)

// allowTopic returns a queue's policy with the statement that lets an SNS topic
// send to it, and whether that changed anything. Every other statement stays as
// it is; a policy that can't be read is an error, never overwritten.
func allowTopic(policy, queueARN, topicARN string) (merged string, changed bool, err error) {
	doc := map[string]any{"Version": "2012-10-17"}
	if policy != "" {
		doc = nil
		if err := json.Unmarshal([]byte(policy), &doc); err != nil {
			return "", false, fmt.Errorf("the queue's policy is no JSON object, so nothing can be added to it: correct it by hand: %w", err)
		}
	}
	var statements []any
	switch have := doc["Statement"].(type) {
	case nil:
	case []any:
		statements = have
	case map[string]any: // IAM takes a single one without a list
		statements = []any{have}
	default:
		return "", false, fmt.Errorf("the queue's policy has a Statement of type %T, so nothing can be added to it: correct it by hand", have)
	}
	sum := sha256.Sum256([]byte(topicARN))
	ours := map[string]any{
		"Sid":       "headrace" + hex.EncodeToString(sum[:8]),
		"Effect":    "Allow",
		"Principal": map[string]any{"Service": "sns.amazonaws.com"},
		"Action":    "sqs:SendMessage",
		"Resource":  queueARN,
		"Condition": map[string]any{"ArnEquals": map[string]any{"aws:SourceArn": topicARN}},
	}
	at := -1
	for i, s := range statements {
		if m, ok := s.(map[string]any); ok && m["Sid"] == ours["Sid"] {
			at = i
		}
	}
	switch {
	case at < 0:
		statements = append(statements, ours)
	case reflect.DeepEqual(statements[at], any(ours)):
		return policy, false, nil
	default:
		statements[at] = ours
	}
	doc["Statement"] = statements
	out, err := json.Marshal(doc)
	if err != nil {
		return "", false, fmt.Errorf("write the queue's policy: %w", err)
	}
	return string(out), true, nil
}
