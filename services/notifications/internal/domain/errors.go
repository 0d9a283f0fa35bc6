package domain

import (
	"fmt"
	"strings"
)

// Violation is one rule that a value breaks.
type Violation struct {
	// Field is the path of the value as the API writes it.
	Field string
	// Code is stable and meant for programs: "required", "invalid".
	Code string
	// Message is meant for people. It never repeats the value.
	Message string
}

// ValidationError lists every violation of one input.
type ValidationError struct {
	Violations []Violation
}

// Error names the fields and what is wrong with each.
func (e *ValidationError) Error() string {
	parts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		parts[i] = v.Field + ": " + v.Message
	}
	return "invalid request: " + strings.Join(parts, "; ")
}

// violations collects what is wrong, so that a caller learns all of it at once.
type violations []Violation

func (vs *violations) add(field, code, format string, args ...any) {
	*vs = append(*vs, Violation{Field: field, Code: code, Message: fmt.Sprintf(format, args...)})
}

func (vs violations) err() error {
	if len(vs) == 0 {
		return nil
	}
	return &ValidationError{Violations: vs}
}
