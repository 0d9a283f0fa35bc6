package domain

import (
	"errors"
	"fmt"
	"net/mail"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of an order's texts, in bytes unless named otherwise.
const (
	MaxIDBytes       = 64
	MaxEmailBytes    = 254
	MaxSKUBytes      = 64
	MaxTokenBytes    = 128
	MaxReasonRunes   = 200
	MaxQuantity      = 1_000_000
	DefaultLanguage  = "en"
	maxLanguageBytes = 35
)

// Rules are the limits that a shop sets for its orders.
type Rules struct {
	// Currencies are the ISO 4217 codes that are accepted.
	Currencies []string
	// MaxLines is the most lines on one order; at least 1.
	MaxLines int
}

// Request is what a customer asks to place.
type Request struct {
	Customer Customer
	Lines    []Line
	// Total is the total that the customer was shown. Nil: not stated. When
	// stated it must equal the computed one.
	Total *Money
	// PaymentToken is the gateway's reference for the means of payment. It is
	// passed on to payments and not kept.
	PaymentToken string
}

// Place checks the request, computes its total and returns the placed order.
// Every violation is reported at once, in a *ValidationError.
func Place(id string, req Request, rules Rules, at time.Time) (Order, error) {
	var vs violations
	if req.Customer.Language == "" {
		req.Customer.Language = DefaultLanguage
	}
	checkCustomer(&vs, req.Customer)
	checkToken(&vs, req.PaymentToken)
	total, summed := checkLines(&vs, req.Lines, rules)
	if req.Total != nil && summed && *req.Total != total {
		vs.add("total", "mismatch", "the lines add up to %s: correct the total or leave it out", total)
	}
	if err := vs.err(); err != nil {
		return Order{}, err
	}
	return Order{
		ID: id, State: Placed, Customer: req.Customer, Lines: slices.Clone(req.Lines), Total: total,
		PlacedAt: at, UpdatedAt: at, Version: 1,
	}, nil
}

// CancelReason checks a customer's reason to cancel and trims it; none is fine.
// Its error is a *ValidationError.
func CancelReason(reason string) (string, error) {
	reason = strings.TrimSpace(reason)
	var vs violations
	switch {
	case utf8.RuneCountInString(reason) > MaxReasonRunes:
		vs.add("reason", "too_long", "must have at most %d characters", MaxReasonRunes)
	case !printable(reason):
		vs.add("reason", "invalid", "must be text on one line")
	}
	return reason, vs.err()
}

var (
	languageShape = regexp.MustCompile(`^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$`)
	phoneShape    = regexp.MustCompile(`^\+[1-9][0-9]{6,14}$`)
)

func checkCustomer(vs *violations, c Customer) {
	checkWord(vs, "customer.id", c.ID, MaxIDBytes)
	switch addr, err := mail.ParseAddress(c.Email); {
	case c.Email == "":
		vs.add("customer.email", "required", "is required")
	case len(c.Email) > MaxEmailBytes:
		vs.add("customer.email", "too_long", "must have at most %d bytes", MaxEmailBytes)
	case err != nil || addr.Address != c.Email:
		vs.add("customer.email", "invalid", "must be a bare e-mail address, such as ada@example.com")
	}
	if c.Phone != "" && !phoneShape.MatchString(c.Phone) {
		vs.add("customer.phone", "invalid", "must be an E.164 number, such as +441632960961")
	}
	if len(c.Language) > maxLanguageBytes || !languageShape.MatchString(c.Language) {
		vs.add("customer.language", "invalid", "must be a language tag, such as en or pt-BR")
	}
}

func checkToken(vs *violations, token string) {
	before := len(*vs)
	checkWord(vs, "payment_token", token, MaxTokenBytes)
	if len(*vs) == before && looksLikeCard(token) {
		vs.add("payment_token", "card_number", "must be the gateway's token, never a card number")
	}
}

// checkLines returns the total, and whether it could be computed.
func checkLines(vs *violations, lines []Line, rules Rules) (Money, bool) {
	before := len(*vs)
	switch {
	case len(lines) == 0:
		vs.add("lines", "required", "must have at least one line")
		return Money{}, false
	case len(lines) > max(rules.MaxLines, 1):
		vs.add("lines", "too_many", "must have at most %d lines", max(rules.MaxLines, 1))
		return Money{}, false
	}
	currency := lines[0].UnitPrice.Currency
	for i, l := range lines {
		at := fmt.Sprintf("lines[%d]", i)
		checkWord(vs, at+".sku", l.SKU, MaxSKUBytes)
		if l.Quantity < 1 || l.Quantity > MaxQuantity {
			vs.add(at+".quantity", "out_of_range", "must be from 1 to %d", MaxQuantity)
		}
		if l.UnitPrice.Amount < 0 {
			vs.add(at+".unit_price.amount", "out_of_range", "must not be negative")
		}
		switch code := l.UnitPrice.Currency; {
		case code == "":
			vs.add(at+".unit_price.currency", "required", "is required")
		case !wellFormedCurrency(code):
			vs.add(at+".unit_price.currency", "invalid", "must be an ISO 4217 code, such as EUR")
		case !slices.Contains(rules.Currencies, code):
			vs.add(at+".unit_price.currency", "unsupported", "must be one of %s", strings.Join(rules.Currencies, ", "))
		case code != currency && wellFormedCurrency(currency):
			vs.add(at+".unit_price.currency", "mismatch", "must be %s as on the first line", currency)
		}
	}
	if len(*vs) > before {
		return Money{}, false
	}
	total := Money{Currency: currency}
	for i, l := range lines {
		sum, err := l.UnitPrice.Times(l.Quantity)
		if err == nil {
			total, err = total.Add(sum)
		}
		if errors.Is(err, ErrOverflow) {
			vs.add(fmt.Sprintf("lines[%d]", i), "out_of_range", "the total up to this line is too large")
			return Money{}, false
		}
	}
	if total.Amount == 0 {
		vs.add("lines", "out_of_range", "the total must be above zero")
		return Money{}, false
	}
	return total, true
}

// checkWord checks a required text of printable ASCII without blanks.
func checkWord(vs *violations, field, s string, maxBytes int) {
	switch {
	case s == "":
		vs.add(field, "required", "is required")
	case len(s) > maxBytes:
		vs.add(field, "too_long", "must have at most %d bytes", maxBytes)
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
		vs.add(field, "invalid", "must be printable ASCII without blanks")
	}
}

func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// looksLikeCard tells whether s is 13 to 19 digits that pass the Luhn check.
func looksLikeCard(s string) bool {
	digits := strings.Map(func(r rune) rune {
		if r == '-' {
			return -1
		}
		return r
	}, s)
	if len(digits) < 13 || len(digits) > 19 {
		return false
	}
	sum := 0
	for i := range len(digits) {
		d := int(digits[len(digits)-1-i] - '0')
		if d < 0 || d > 9 {
			return false
		}
		if i%2 == 1 {
			if d *= 2; d > 9 {
				d -= 9
			}
		}
		sum += d
	}
	return sum%10 == 0
}
