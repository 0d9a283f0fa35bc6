package domain

import (
	"strconv"
	"strings"
)

// exponents lists the ISO 4217 currencies whose minor unit is not a hundredth.
var exponents = map[string]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0,
	"UGX": 0, "UYI": 0, "VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
	"CLF": 4, "UYW": 4,
}

// CurrencyExponent is how many decimal digits a currency's minor unit stands
// for: 2 for EUR, 0 for JPY, 3 for KWD.
func CurrencyExponent(currency string) int {
	if e, ok := exponents[currency]; ok {
		return e
	}
	return 2
}

// FormatMoney writes an amount in minor units as a reader of the language
// expects it, with the currency's code: "EUR 1,234.50", "1.234,50 EUR",
// "1 234,50 EUR". Spaces are no-break spaces.
func FormatMoney(amount int64, currency, language string) string {
	const nbsp = "\u00a0"
	group, point, codeFirst := ",", ".", true
	switch base, _, _ := strings.Cut(NormalizeLanguage(language), "-"); base {
	case "de":
		group, point, codeFirst = ".", ",", false
	case "fr":
		group, point, codeFirst = "\u202f", ",", false
	}
	sign := ""
	// uint64 holds the magnitude of every int64, the smallest included.
	magnitude := uint64(amount)
	if amount < 0 {
		sign, magnitude = "-", -magnitude
	}
	digits := strconv.FormatUint(magnitude, 10)
	exp := CurrencyExponent(currency)
	if len(digits) <= exp {
		digits = strings.Repeat("0", exp+1-len(digits)) + digits
	}
	whole, fraction := digits[:len(digits)-exp], digits[len(digits)-exp:]
	number := sign + grouped(whole, group)
	if exp > 0 {
		number += point + fraction
	}
	if codeFirst {
		return currency + nbsp + number
	}
	return number + nbsp + currency
}

func grouped(digits, separator string) string {
	var b strings.Builder
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteString(separator)
		}
		b.WriteRune(c)
	}
	return b.String()
}
