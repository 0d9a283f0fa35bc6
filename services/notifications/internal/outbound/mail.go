package outbound

import (
	"fmt"
	"net/mail"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// mailComposer writes a message as a mail. Everything that could differ between
// two attempts at one send follows from the message, its Message-ID and date
// among them.
type mailComposer struct {
	from *mail.Address
	host string // the right side of the Message-ID
}

func newMailComposer(from string) (mailComposer, error) {
	addr, err := mail.ParseAddress(from)
	if err != nil {
		return mailComposer{}, fmt.Errorf("sender %q is no mail address, such as \"Shop <no-reply@example.com>\": %w", from, err)
	}
	_, host, _ := strings.Cut(addr.Address, "@")
	return mailComposer{from: addr, host: host}, nil
}

func (c mailComposer) compose(m app.Message) (*gomail.Msg, error) {
	if domain.CheckAddress(domain.Email, m.Recipient) != "" {
		return nil, &app.RefusedError{Reason: domain.ReasonBadAddress}
	}
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	msg.FromMailAddress(c.from)
	msg.ToMailAddress(&mail.Address{Address: m.Recipient})
	msg.Subject(m.Content.Subject)
	msg.SetMessageIDWithValue(domain.MessageID(m.Key, c.host))
	msg.SetDateWithValue(m.CreatedAt)
	msg.SetGenHeader(gomail.HeaderXMailer, "Headrace notifications")
	// Out-of-office replies to a receipt help nobody (RFC 3834).
	msg.SetGenHeader(gomail.Header("Auto-Submitted"), "auto-generated")
	msg.SetGenHeader(gomail.Header("X-Headrace-Notification-Id"), m.NotificationID)
	msg.SetBodyString(gomail.TypeTextPlain, m.Content.Text)
	if m.Content.HTML != "" {
		msg.AddAlternativeString(gomail.TypeTextHTML, m.Content.HTML)
	}
	return msg, nil
}
