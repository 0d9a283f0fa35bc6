package domain

import (
	"fmt"
	"math"
)

// Money is an amount in the currency's minor units: 1999 EUR is €19.99.
type Money struct {
	Amount   int64
	Currency string
}

// String prints the amount in minor units with its currency.
func (m Money) String() string { return fmt.Sprintf("%d %s", m.Amount, m.Currency) }

// Add returns m + n. It fails with ErrOverflow when the sum does not fit and
// with ErrCurrencyMismatch when the currencies differ.
func (m Money) Add(n Money) (Money, error) {
	if m.Currency != n.Currency {
		return Money{}, fmt.Errorf("add %s to %s: %w", n, m, ErrCurrencyMismatch)
	}
	if (n.Amount > 0 && m.Amount > math.MaxInt64-n.Amount) || (n.Amount < 0 && m.Amount < math.MinInt64-n.Amount) {
		return Money{}, fmt.Errorf("add %s to %s: %w", n, m, ErrOverflow)
	}
	return Money{Amount: m.Amount + n.Amount, Currency: m.Currency}, nil
}

// Times returns m multiplied by a quantity that is not negative. It fails with
// ErrOverflow when the product does not fit.
func (m Money) Times(quantity int64) (Money, error) {
	if quantity < 0 || m.Amount < 0 {
		return Money{}, fmt.Errorf("multiply %s by %d: %w", m, quantity, ErrNegative)
	}
	if quantity != 0 && m.Amount > math.MaxInt64/quantity {
		return Money{}, fmt.Errorf("multiply %s by %d: %w", m, quantity, ErrOverflow)
	}
	return Money{Amount: m.Amount * quantity, Currency: m.Currency}, nil
}

// wellFormedCurrency tells whether code has the shape of an ISO 4217 code.
func wellFormedCurrency(code string) bool {
	if len(code) != 3 {
		return false
	}
	for i := range len(code) {
		if code[i] < 'A' || code[i] > 'Z' {
			return false
		}
	}
	return true
}
