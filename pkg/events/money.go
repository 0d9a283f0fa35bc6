package events

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
)

// Money is an amount in the currency's minor units: 1234 EUR is 12.34 euros,
// 1234 JPY is 1234 yen. The zero Money is not valid, since it has no currency.
type Money struct {
	// Amount is in minor units; it may be negative.
	Amount int64 `json:"amount"`
	// Currency is an ISO 4217 code in upper case.
	Currency string `json:"currency"`
}

// Errors of Money's arithmetic.
var (
	// ErrCurrency: the currencies differ, or one is no ISO 4217 code.
	ErrCurrency = errors.New("currency mismatch")
	// ErrOverflow: the result does not fit into 64 bits.
	ErrOverflow = errors.New("amount overflows")
)

// Validate refuses a currency that is not in ISO 4217.
func (m Money) Validate() error {
	if _, ok := minorDigits(m.Currency); !ok {
		if m.Currency == "" {
			return errors.New("currency is missing or empty")
		}
		return fmt.Errorf("currency %q is no ISO 4217 code in upper case, such as EUR", clip(m.Currency))
	}
	return nil
}

// Add returns m + o. It fails with ErrCurrency or ErrOverflow.
func (m Money) Add(o Money) (Money, error) {
	if m.Currency != o.Currency {
		return Money{}, fmt.Errorf("add %s to %s: %w", o.Currency, m.Currency, ErrCurrency)
	}
	sum := m.Amount + o.Amount
	if (sum > m.Amount) != (o.Amount > 0) {
		return Money{}, fmt.Errorf("add %d to %d: %w", o.Amount, m.Amount, ErrOverflow)
	}
	return Money{Amount: sum, Currency: m.Currency}, nil
}

// Mul returns m × n, say for a quantity. It fails with ErrOverflow.
func (m Money) Mul(n int64) (Money, error) {
	negative := (m.Amount < 0) != (n < 0)
	high, low := bits.Mul64(magnitude(m.Amount), magnitude(n))
	limit := uint64(1)<<63 - 1
	if negative {
		limit++
	}
	if high != 0 || low > limit {
		return Money{}, fmt.Errorf("multiply %d by %d: %w", m.Amount, n, ErrOverflow)
	}
	if negative {
		low = -low
	}
	return Money{Amount: int64(low), Currency: m.Currency}, nil //nolint:gosec // checked above
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n) //nolint:gosec // two's complement, right for the least int64 too
	}
	return uint64(n)
}

// String formats the amount with the currency's number of decimals and its
// code: "12.34 EUR", "1234 JPY". It is for people; it doesn't group digits.
func (m Money) String() string {
	digits, _ := minorDigits(m.Currency)
	s := strconv.FormatUint(magnitude(m.Amount), 10)
	for len(s) <= digits {
		s = "0" + s
	}
	if digits > 0 {
		s = s[:len(s)-digits] + "." + s[len(s)-digits:]
	}
	if m.Amount < 0 {
		s = "-" + s
	}
	if m.Currency == "" {
		return s
	}
	return s + " " + m.Currency
}

// UnmarshalJSON refuses an amount or a currency that is absent: a missing amount
// must not become 0. Other fields are ignored.
func (m *Money) UnmarshalJSON(b []byte) error {
	s := scanner{b: b}
	switch c := s.peek(); c {
	case 'n':
		return nil // by the convention of encoding/json
	case '{':
	default:
		return &DecodeError{Code: CodeWrongType, Field: "money", Value: kind(c)}
	}
	if err := s.open(); err != nil {
		return err
	}
	var out Money
	var hasAmount, hasCurrency bool
	for first := true; ; first = false {
		name, more, err := s.member(first)
		if err != nil {
			return err
		}
		if !more {
			break
		}
		c, from := s.peek(), s.i
		switch {
		case s.is(name, "amount"):
			if hasAmount {
				return &DecodeError{Code: CodeDuplicate, Field: "amount"}
			}
			hasAmount = true
			if err := s.value(); err != nil {
				return err
			}
			n, parseErr := strconv.ParseInt(string(b[from:s.i]), 10, 64)
			if parseErr != nil {
				return &DecodeError{Code: CodeInvalid, Field: "amount", Value: kind(c), Err: errors.New("want a whole number of minor units within 64 bits")}
			}
			out.Amount = n
		case s.is(name, "currency"):
			if hasCurrency {
				return &DecodeError{Code: CodeDuplicate, Field: "currency"}
			}
			hasCurrency = true
			if c != '"' {
				return &DecodeError{Code: CodeWrongType, Field: "currency", Value: kind(c)}
			}
			t, err := s.str()
			if err != nil {
				return err
			}
			out.Currency = currencyName(b[t.start:t.end])
			if t.escaped {
				out.Currency = s.unquote(t)
			}
		default:
			if err := s.value(); err != nil {
				return err
			}
		}
	}
	switch {
	case !hasAmount:
		return &DecodeError{Code: CodeMissing, Field: "amount"}
	case !hasCurrency:
		return &DecodeError{Code: CodeMissing, Field: "currency"}
	}
	*m = out
	return nil
}
