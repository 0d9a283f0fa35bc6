package httpgateway

import (
	"fmt"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

// answer is what the provider says in any of its 2xx and 402 answers.
type answer struct {
	ID       string `json:"id"`
	Status   string `json:"status"`
	Reason   string `json:"reason"`
	Amount   *int64 `json:"amount"`
	Currency string `json:"currency"`
}

// receipt checks that the provider did what was asked. What it did otherwise is
// permanent: asking again would get the same answer.
func (a answer) receipt(what string, want domain.Money) (app.Receipt, error) {
	if a.ID == "" {
		return app.Receipt{}, framework.Permanent(fmt.Errorf("%s: the provider's answer has no id", what))
	}
	if want != (domain.Money{}) && ((a.Amount != nil && *a.Amount != want.Amount) || (a.Currency != "" && a.Currency != want.Currency)) {
		return app.Receipt{}, framework.Permanent(fmt.Errorf("%s %s: the provider moved another amount than %s: check the provider's books by hand",
			what, clip(a.ID), want))
	}
	return app.Receipt{Reference: a.ID}, nil
}

// reason is the provider's code, kept to what a metric, a log and an event can
// carry.
func (a answer) reason() string {
	if a.Reason == "" || clip(a.Reason) != a.Reason {
		return "declined"
	}
	return a.Reason
}

func (a answer) unexpected(what string) error {
	return framework.Permanent(fmt.Errorf("%s: the provider answered with the unknown status %q", what, clip(a.Status)))
}

// clip keeps a provider's code printable and short.
func clip(s string) string {
	const most = 64
	out := make([]byte, 0, most)
	for i := 0; i < len(s) && len(out) < most; i++ {
		if s[i] > ' ' && s[i] <= '~' {
			out = append(out, s[i])
		}
	}
	return string(out)
}
