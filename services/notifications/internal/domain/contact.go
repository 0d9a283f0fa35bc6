package domain

import (
	"net/mail"
	"strings"
	"time"
	"unicode/utf8"
)

// Contact is how the customer of an order is reached.
type Contact struct {
	OrderID  string
	Email    string
	Phone    string // E.164; empty when not given
	Language string // BCP 47, lower case
	// KnownAt is when the order was placed.
	KnownAt time.Time
}

// Address returns where channel reaches the contact. A webhook has no address
// of the customer's.
func (c Contact) Address(channel Channel) string {
	switch channel {
	case Email:
		return c.Email
	case SMS, WhatsApp:
		return c.Phone
	default:
		return ""
	}
}

// CheckAddress returns why address can't be used on channel: ReasonNoAddress,
// ReasonBadAddress, or "" when it can. A webhook needs no address.
func CheckAddress(channel Channel, address string) string {
	if channel == Webhook {
		return ""
	}
	if address == "" {
		return ReasonNoAddress
	}
	ok := false
	switch channel {
	case Email:
		ok = validEmail(address)
	case SMS, WhatsApp:
		ok = validPhone(address)
	}
	if !ok {
		return ReasonBadAddress
	}
	return ""
}

// validEmail accepts a bare address, without a name or a comment, that holds no
// control character.
func validEmail(s string) bool {
	if len(s) > 254 || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return false
	}
	a, err := mail.ParseAddress(s)
	return err == nil && a.Address == s && a.Name == ""
}

// validPhone accepts E.164: "+", then 7 to 15 digits of which the first is not 0.
func validPhone(s string) bool {
	if len(s) < 8 || len(s) > 16 || s[0] != '+' || s[1] == '0' {
		return false
	}
	for _, c := range s[1:] {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// NormalizeAddress makes addresses that reach the same recipient equal, for
// counting: the host of a mail address in lower case, no space around.
func NormalizeAddress(channel Channel, address string) string {
	address = strings.TrimSpace(address)
	if channel == Email {
		// The local part may be case-sensitive by the RFC and is not anywhere
		// that matters: folding it stops a limit from being dodged by case.
		return strings.ToLower(address)
	}
	return address
}

// MaskAddress shows enough of an address for a person who knows it, and too
// little for one who does not: "j***@example.com", "+49******67".
func MaskAddress(address string) string {
	if address == "" {
		return ""
	}
	if local, host, ok := strings.Cut(address, "@"); ok {
		first, _ := utf8.DecodeRuneInString(local)
		return string(first) + "***@" + host
	}
	if len(address) < 8 {
		return "***"
	}
	return address[:3] + strings.Repeat("*", len(address)-5) + address[len(address)-2:]
}
