package domain

import "fmt"

// Money is an amount in the currency's minor units: 1999 EUR is €19.99.
type Money struct {
	Amount   int64
	Currency string
}

// String prints the amount in minor units with its currency.
func (m Money) String() string { return fmt.Sprintf("%d %s", m.Amount, m.Currency) }

// Chargeable tells whether m can be charged: more than nothing, in a currency
// that has the shape of an ISO 4217 code.
func (m Money) Chargeable() bool { return m.Amount > 0 && wellFormedCurrency(m.Currency) }

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
