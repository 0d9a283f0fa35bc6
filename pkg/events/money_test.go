package events_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
)

func eur(n int64) events.Money { return events.Money{Amount: n, Currency: "EUR"} }

func TestMoneyArithmetic(t *testing.T) {
	t.Parallel()
	sum, err := eur(5).Add(eur(-7))
	require.NoError(t, err)
	require.Equal(t, eur(-2), sum)
	_, err = eur(5).Add(events.Money{Amount: 5, Currency: "USD"})
	require.ErrorIs(t, err, events.ErrCurrency)
	for _, pair := range [][2]int64{{math.MaxInt64, 1}, {math.MinInt64, -1}, {math.MinInt64, math.MinInt64}, {math.MaxInt64, math.MaxInt64}} {
		_, err := eur(pair[0]).Add(eur(pair[1]))
		require.ErrorIs(t, err, events.ErrOverflow, "%v", pair)
	}
	for _, edge := range [][2]int64{{math.MaxInt64, 0}, {math.MinInt64, 0}, {math.MaxInt64, math.MinInt64}, {math.MaxInt64 - 1, 1}, {0, 0}} {
		sum, err := eur(edge[0]).Add(eur(edge[1]))
		require.NoError(t, err)
		require.Equal(t, edge[0]+edge[1], sum.Amount)
	}

	for _, ok := range [][3]int64{{3, 4, 12}, {-3, 4, -12}, {-3, -4, 12}, {0, math.MinInt64, 0}, {math.MinInt64, 1, math.MinInt64}, {1 << 62, -2, math.MinInt64}} {
		product, err := eur(ok[0]).Mul(ok[1])
		require.NoError(t, err)
		require.Equal(t, eur(ok[2]), product)
	}
	for _, over := range [][2]int64{{math.MinInt64, -1}, {1 << 62, 2}, {math.MaxInt64, math.MaxInt64}, {math.MinInt64, math.MinInt64}, {math.MaxInt64, -2}} {
		_, err := eur(over[0]).Mul(over[1])
		require.ErrorIs(t, err, events.ErrOverflow, "%v", over)
	}
}

func TestMoneyValidate(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"EUR", "USD", "JPY", "KWD", "CLF", "XTS"} {
		require.NoError(t, events.Money{Currency: code}.Validate(), code)
	}
	for _, code := range []string{"", "eur", "EURO", "€", "ABC", "EU"} {
		require.Error(t, events.Money{Currency: code}.Validate(), code)
	}
}

func TestMoneyString(t *testing.T) {
	t.Parallel()
	for want, m := range map[string]events.Money{
		"12.34 EUR": eur(1234), "0.05 EUR": eur(5), "-0.05 EUR": eur(-5), "0.00 EUR": eur(0), "-1.00 EUR": eur(-100),
		"1234 JPY": {Amount: 1234, Currency: "JPY"}, "1.234 KWD": {Amount: 1234, Currency: "KWD"}, "0": {},
		"-92233720368547758.08 EUR": eur(math.MinInt64),
	} {
		require.Equal(t, want, m.String())
	}
}

func TestMoneyJSON(t *testing.T) {
	t.Parallel()
	for _, in := range []string{`{"amount":-5,"currency":"EUR"}`, ` { "x":[{}], "currency":"\u0045UR" , "\u0061mount" : -5 , "y":null} `} {
		var m events.Money
		require.NoError(t, json.Unmarshal([]byte(in), &m), in)
		require.Equal(t, eur(-5), m)
	}
	for in, field := range map[string]string{
		`{}`: "amount", `{"currency":"EUR"}`: "amount", `{"amount":1}`: "currency", `{"amount":null,"currency":"EUR"}`: "amount",
		`{"amount":1,"currency":null}`: "currency", `{"amount":1,"amount":2,"currency":"EUR"}`: "amount", `{"amount":1e2,"currency":"EUR"}`: "amount",
		`{"amount":1,"currency":"EUR","currency":"USD"}`: "currency", `{"amount":9223372036854775808,"currency":"EUR"}`: "amount",
		`{"Amount":1,"currency":"EUR"}`: "amount", `[]`: "money", `12.34`: "money",
	} {
		var m events.Money
		require.Equal(t, field, refused(t, json.Unmarshal([]byte(in), &m)).Field, in)
		require.Zero(t, m)
	}
	m := eur(7)
	require.NoError(t, json.Unmarshal([]byte(`null`), &m))
	require.Equal(t, eur(7), m)
	// Called directly, without encoding/json's own check before it.
	require.Error(t, m.UnmarshalJSON([]byte(`{"amount":1,`)))
	require.Error(t, m.UnmarshalJSON(nil))
	b, err := json.Marshal(eur(1))
	require.NoError(t, err)
	require.Equal(t, `{"amount":1,"currency":"EUR"}`, string(b))
}
