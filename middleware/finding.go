package middleware

import (
	"errors"
	"fmt"
)

// Rule names a rule that keeps messages from being lost, doubled or handled for
// ever.
type Rule string

// The rules of Check.
const (
	// RuleNoPoison: nothing dead-letters a message that always fails.
	RuleNoPoison Rule = "poison-missing"
	// RulePoisonInsideRetry: the dead letter is written before the retries.
	RulePoisonInsideRetry Rule = "poison-inside-retry"
	// RuleTimeoutAroundRetry: all attempts share one deadline.
	RuleTimeoutAroundRetry Rule = "timeout-around-retry"
	// RuleTimeoutAroundPoison: the dead letter is published on an ended context.
	RuleTimeoutAroundPoison Rule = "timeout-around-poison"
	// RuleRetryInsideRetry: the attempts multiply.
	RuleRetryInsideRetry Rule = "retry-inside-retry"
	// RuleMarksBeforeWork: a message counts as handled, or is acked, before it was.
	RuleMarksBeforeWork Rule = "marks-before-work"
	// RuleDedupAroundPoison: a dead letter counts as handled.
	RuleDedupAroundPoison Rule = "dedup-around-poison"
	// RuleErrorsIgnored: failures are acked as success.
	RuleErrorsIgnored Rule = "errors-ignored"
	// RuleOrderOvertaken: a failed message is overtaken by later ones of its key.
	RuleOrderOvertaken Rule = "order-overtaken"
	// RuleTimeoutAboveLease: one attempt may outlast the lease.
	RuleTimeoutAboveLease Rule = "timeout-above-lease"
	// RuleBudgetAboveLease: all attempts together may outlast the lease.
	RuleBudgetAboveLease Rule = "retry-budget-above-lease"
	// RuleNoTimeout: nothing bounds an attempt.
	RuleNoTimeout Rule = "timeout-missing"
	// RuleDedupRetention: keys are forgotten before the last copy has come.
	RuleDedupRetention Rule = "dedup-retention"
	// RuleRedeliveries: the delivery limit ends a message before its redeliveries.
	RuleRedeliveries Rule = "redeliveries-above-limit"
)

// Finding is one fault of a set-up that must not start. It is an error.
type Finding struct {
	// Handler is the handler's name; empty when it is about all of the service.
	Handler string
	// Rule is the rule that is broken.
	Rule Rule
	// Found says what the set-up has.
	Found string
	// Danger says what would happen.
	Danger string
	// Fix says what to do.
	Fix string
}

// Error tells all of it in one line.
func (f *Finding) Error() string {
	subject := "the service"
	if f.Handler != "" {
		subject = fmt.Sprintf("handler %q", f.Handler)
	}
	return fmt.Sprintf("%s: %s: %s: %s (rule %s)", subject, f.Found, f.Danger, f.Fix, f.Rule)
}

// FindingsOf returns every Finding in err's tree, in order.
func FindingsOf(err error) []*Finding {
	var all []*Finding
	var walk func(error)
	walk = func(err error) {
		//nolint:errorlint // each node of the tree is looked at by itself
		switch e := err.(type) {
		case *Finding:
			all = append(all, e)
		case interface{ Unwrap() []error }:
			for _, inner := range e.Unwrap() {
				walk(inner)
			}
		case nil:
		default:
			walk(errors.Unwrap(err))
		}
	}
	walk(err)
	return all
}
