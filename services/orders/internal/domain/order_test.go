package domain

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func validRequest() Request {
	return Request{
		Customer:     Customer{ID: "cus_1", Email: "ada@example.com", Phone: "+441632960961", Language: "en"},
		Lines:        []Line{{SKU: "BOOK", Quantity: 2, UnitPrice: Money{1250, "EUR"}}, {SKU: "PEN", Quantity: 3, UnitPrice: Money{99, "EUR"}}},
		PaymentToken: "tok_ok",
	}
}

var rules = Rules{Currencies: []string{"EUR", "USD"}, MaxLines: 3}

func placedOrder(t *testing.T) Order {
	t.Helper()
	o, err := Place("o1", validRequest(), rules, t0)
	require.NoError(t, err)
	return o
}

func TestPlaceComputesTheTotal(t *testing.T) {
	t.Parallel()
	o := placedOrder(t)
	require.Equal(t, Money{2797, "EUR"}, o.Total)
	require.Equal(t, Placed, o.State)
	require.EqualValues(t, 1, o.Version)
	require.Equal(t, t0, o.PlacedAt)
	require.Equal(t, o, o.AsPlaced())
}

func TestPlaceDefaultsTheLanguage(t *testing.T) {
	t.Parallel()
	req := validRequest()
	req.Customer.Language = ""
	o, err := Place("o1", req, rules, t0)
	require.NoError(t, err)
	require.Equal(t, DefaultLanguage, o.Customer.Language)
}

func TestPlaceNamesEachFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	line := func(r *Request) *Line { return &r.Lines[1] }
	cases := map[string]struct {
		change      func(*Request)
		field, code string
	}{
		"no customer id":        {func(r *Request) { r.Customer.ID = "" }, "customer.id", "required"},
		"blank in customer id":  {func(r *Request) { r.Customer.ID = "a b" }, "customer.id", "invalid"},
		"no email":              {func(r *Request) { r.Customer.Email = "" }, "customer.email", "required"},
		"email with a name":     {func(r *Request) { r.Customer.Email = "Ada <ada@example.com>" }, "customer.email", "invalid"},
		"email header break":    {func(r *Request) { r.Customer.Email = "ada@example.com\r\nBcc: x@y.z" }, "customer.email", "invalid"},
		"national phone":        {func(r *Request) { r.Customer.Phone = "01632960961" }, "customer.phone", "invalid"},
		"language":              {func(r *Request) { r.Customer.Language = "../en" }, "customer.language", "invalid"},
		"no token":              {func(r *Request) { r.PaymentToken = "" }, "payment_token", "required"},
		"card number":           {func(r *Request) { r.PaymentToken = "4242424242424242" }, "payment_token", "card_number"},
		"grouped card number":   {func(r *Request) { r.PaymentToken = "4242-4242-4242-4242" }, "payment_token", "card_number"},
		"no lines":              {func(r *Request) { r.Lines = nil }, "lines", "required"},
		"too many lines":        {func(r *Request) { r.Lines = append(r.Lines, r.Lines...) }, "lines", "too_many"},
		"no sku":                {func(r *Request) { line(r).SKU = "" }, "lines[1].sku", "required"},
		"zero quantity":         {func(r *Request) { line(r).Quantity = 0 }, "lines[1].quantity", "out_of_range"},
		"negative quantity":     {func(r *Request) { line(r).Quantity = -1 }, "lines[1].quantity", "out_of_range"},
		"negative price":        {func(r *Request) { line(r).UnitPrice.Amount = -1 }, "lines[1].unit_price.amount", "out_of_range"},
		"lower-case currency":   {func(r *Request) { line(r).UnitPrice.Currency = "eur" }, "lines[1].unit_price.currency", "invalid"},
		"unsupported currency":  {func(r *Request) { line(r).UnitPrice.Currency = "JPY" }, "lines[1].unit_price.currency", "unsupported"},
		"mixed currencies":      {func(r *Request) { line(r).UnitPrice.Currency = "USD" }, "lines[1].unit_price.currency", "mismatch"},
		"product overflows":     {func(r *Request) { line(r).UnitPrice.Amount = math.MaxInt64 / 2 }, "lines[1]", "out_of_range"},
		"sum overflows":         {func(r *Request) { line(r).UnitPrice.Amount, line(r).Quantity = math.MaxInt64, 1 }, "lines[1]", "out_of_range"},
		"all free":              {func(r *Request) { r.Lines = []Line{{"GIFT", 1, Money{0, "EUR"}}} }, "lines", "out_of_range"},
		"stated total is wrong": {func(r *Request) { r.Total = &Money{2796, "EUR"} }, "total", "mismatch"},
		"stated total currency": {func(r *Request) { r.Total = &Money{2797, "USD"} }, "total", "mismatch"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := validRequest()
			c.change(&req)
			_, err := Place("o1", req, rules, t0)
			var ve *ValidationError
			require.ErrorAs(t, err, &ve)
			require.Len(t, ve.Violations, 1, "%v", ve)
			require.Equal(t, c.field, ve.Violations[0].Field)
			require.Equal(t, c.code, ve.Violations[0].Code)
		})
	}
}

func TestPlaceReportsEveryViolationAtOnceAndRepeatsNoValue(t *testing.T) {
	t.Parallel()
	_, err := Place("o1", Request{Customer: Customer{Email: "s3cret"}, PaymentToken: "4242424242424242"}, rules, t0)
	var ve *ValidationError
	require.ErrorAs(t, err, &ve)
	var fields []string
	for _, v := range ve.Violations {
		fields = append(fields, v.Field)
	}
	require.Equal(t, []string{"customer.id", "customer.email", "payment_token", "lines"}, fields)
	require.NotContains(t, err.Error(), "s3cret")
	require.NotContains(t, err.Error(), "4242")
}

func TestCancelReason(t *testing.T) {
	t.Parallel()
	got, err := CancelReason("  too late ")
	require.NoError(t, err)
	require.Equal(t, "too late", got)
	got, err = CancelReason("")
	require.NoError(t, err)
	require.Empty(t, got)
	for _, bad := range []string{string(make([]byte, MaxReasonRunes+1)), "a\nb", "a\x00b", "\xff"} {
		_, err = CancelReason(bad)
		require.Error(t, err)
	}
}

func TestMoneyArithmeticRefusesToWrap(t *testing.T) {
	t.Parallel()
	_, err := Money{math.MaxInt64, "EUR"}.Add(Money{1, "EUR"})
	require.ErrorIs(t, err, ErrOverflow)
	_, err = Money{math.MinInt64, "EUR"}.Add(Money{-1, "EUR"})
	require.ErrorIs(t, err, ErrOverflow)
	_, err = Money{1, "EUR"}.Add(Money{1, "USD"})
	require.ErrorIs(t, err, ErrCurrencyMismatch)
	_, err = Money{math.MaxInt64/2 + 1, "EUR"}.Times(2)
	require.ErrorIs(t, err, ErrOverflow)
	_, err = Money{1, "EUR"}.Times(-1)
	require.ErrorIs(t, err, ErrNegative)
	got, err := Money{math.MaxInt64, "EUR"}.Times(1)
	require.NoError(t, err)
	require.EqualValues(t, math.MaxInt64, got.Amount)
	got, err = Money{5, "EUR"}.Times(0)
	require.NoError(t, err)
	require.Zero(t, got.Amount)
}
