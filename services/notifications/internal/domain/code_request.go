package domain

import (
	"slices"
	"strings"
	"time"
)

// CodePolicy is what a service allows of one-time codes.
type CodePolicy struct {
	// Channels are those that codes can go out on.
	Channels []Channel
	// TTL is how long a code is valid.
	TTL time.Duration
	// MaxAttempts is how often a code may be tried, right or wrong.
	MaxAttempts int
	// Limit is how many codes one recipient gets within Window.
	Limit  int
	Window time.Duration
}

// CodeRequest asks for a code.
type CodeRequest struct {
	Channel   Channel
	Recipient string
	Language  string
	Purpose   string
}

// NewCode checks req and returns the code to issue, without digits. A request
// that breaks the rules is a *ValidationError.
func NewCode(id string, req CodeRequest, p CodePolicy, now time.Time) (Code, error) {
	var vs violations
	if !slices.Contains(p.Channels, req.Channel) {
		vs.add("channel", "unavailable", "codes are sent by %s", listed(p.Channels))
	} else {
		switch CheckAddress(req.Channel, req.Recipient) {
		case ReasonNoAddress:
			vs.add("recipient", "required", "give the address to send the code to")
		case ReasonBadAddress:
			if req.Channel == Email {
				vs.add("recipient", "invalid", "give one bare e-mail address")
			} else {
				vs.add("recipient", "invalid", "give a phone number in E.164 form")
			}
		}
	}
	if !validPurpose(req.Purpose) {
		vs.add("purpose", "invalid", "give 1 to 64 lower-case letters, digits, dots, dashes or underscores")
	}
	if len(req.Language) > 35 {
		vs.add("language", "too_long", "give a language tag of at most 35 characters")
	}
	if err := vs.err(); err != nil {
		return Code{}, err
	}
	return Code{
		ID: id, Channel: req.Channel, Recipient: req.Recipient, Language: NormalizeLanguage(req.Language), Purpose: req.Purpose,
		CreatedAt: now, ExpiresAt: now.Add(p.TTL),
	}, nil
}

func validPurpose(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
	})
}

func listed(channels []Channel) string {
	if len(channels) == 0 {
		return "no channel"
	}
	names := make([]string, len(channels))
	for i, c := range channels {
		names[i] = string(c)
	}
	return strings.Join(names, ", ")
}
