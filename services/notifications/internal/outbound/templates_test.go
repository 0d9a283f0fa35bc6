package outbound

import (
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

var (
	templateNames = []string{"order_confirmed", "order_cancelled", "payment_failed", "payment_refunded", "one_time_code"}
	languages     = []string{"en", "de", "fr"}
)

func templates(t *testing.T) *Templates {
	t.Helper()
	tpl, err := LoadTemplates("Dam & Sons")
	require.NoError(t, err)
	return tpl
}

func TestEveryTemplateRendersOnEveryChannelInEveryLanguage(t *testing.T) {
	t.Parallel()
	tpl := templates(t)
	v := app.View{
		Facts: domain.Facts{OrderID: "o-1", Amount: 123450, Currency: "EUR", Reason: "declined"},
		Code:  "042137", ValidMinutes: 10,
	}
	for _, channel := range []domain.Channel{domain.Email, domain.SMS, domain.WhatsApp} {
		for _, name := range templateNames {
			require.True(t, tpl.Has(channel, name), path.Join(string(channel), name))
			seen := map[string]string{}
			for _, lang := range languages {
				c, err := tpl.Render(channel, name, lang, v)
				require.NoError(t, err)
				require.NotEmpty(t, c.Text)
				require.Contains(t, c.Text, "Dam & Sons", "no HTML escape in plain text")
				want := "o-1"
				if name == "one_time_code" {
					want = "042137"
				}
				require.Contains(t, c.Text, want)
				if channel == domain.Email {
					require.NotEmpty(t, c.Subject)
					require.Contains(t, c.HTML, want)
					require.Contains(t, c.HTML, `<html lang="`+lang+`">`)
					require.Contains(t, c.HTML, "Dam &amp; Sons")
					require.NotContains(t, c.Subject, "042137", "a code is not in a subject, which shows on a locked phone")
				} else {
					require.Empty(t, c.HTML)
				}
				require.NotContains(t, seen, c.Text, "%s in %s is not translated", name, lang)
				seen[c.Text] = lang
			}
		}
	}
}

func TestLanguageFallsBackToItsBaseAndThenEnglish(t *testing.T) {
	t.Parallel()
	tpl := templates(t)
	v := app.View{Facts: domain.Facts{OrderID: "o-1", Amount: 123450, Currency: "EUR"}}
	subject := func(lang string) string {
		c, err := tpl.Render(domain.Email, "order_confirmed", lang, v)
		require.NoError(t, err)
		return c.Subject
	}
	require.Equal(t, "Ihre Bestellung o-1 ist bestätigt", subject("de-AT"))
	require.Equal(t, "Your order o-1 is confirmed", subject("pt-BR"))
	require.Equal(t, "Your order o-1 is confirmed", subject(""))
	c, err := tpl.Render(domain.SMS, "order_confirmed", "pt-BR", v)
	require.NoError(t, err)
	require.Contains(t, c.Text, "EUR\u00a01,234.50", "numbers as the text's language writes them")
}

func TestHostileFactsStayText(t *testing.T) {
	t.Parallel()
	tpl := templates(t)
	c, err := tpl.Render(domain.Email, "order_confirmed", "en",
		app.View{Facts: domain.Facts{OrderID: "<script>x</script>\r\nBcc: victim@example.com"}})
	require.NoError(t, err)
	require.NotContains(t, c.HTML, "<script>")
	require.False(t, strings.ContainsAny(c.Subject, "\r\n"))
}

func TestUnknownTemplateIsNamed(t *testing.T) {
	t.Parallel()
	tpl := templates(t)
	require.False(t, tpl.Has(domain.SMS, "nope"))
	_, err := tpl.Render(domain.SMS, "nope", "de", app.View{})
	require.ErrorContains(t, err, `no template "nope" for channel sms`)
}
