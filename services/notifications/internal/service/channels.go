package service

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/middleware"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
	"github.com/headrace-go/headrace/services/notifications/internal/outbound"
)

// openChannels makes every channel that is on. None opens a connection yet; a
// folder is made.
func openChannels(s Settings, logger *slog.Logger) (map[domain.Channel]app.Channel, error) {
	n := s.Notifications
	channels := map[domain.Channel]app.Channel{}
	for _, name := range s.channels() {
		var (
			ch  app.Channel
			err error
		)
		switch name {
		case domain.Email:
			ch, err = openEmail(n)
		case domain.SMS:
			ch, err = openText(n, name, n.SMS)
		case domain.WhatsApp:
			ch, err = openText(n, name, n.WhatsApp)
		case domain.Webhook:
			ch, err = outbound.NewWebhook(outbound.WebhookConfig{
				URL: n.Webhook.URL.Reveal(), Secret: n.Webhook.Secret.Reveal(),
				PreviousSecret: n.Webhook.PreviousSecret.Reveal(), Timeout: n.Webhook.Timeout,
			})
		}
		if err != nil {
			return nil, fmt.Errorf("set up channel %s: %w", name, err)
		}
		if f, ok := ch.(*outbound.Folder); ok {
			logger.InfoContext(context.Background(), "messages are written to a folder and reach nobody", "channel", name, "folder", f.Dir())
		}
		channels[name] = ch
	}
	return channels, nil
}

func openEmail(n Notifications) (app.Channel, error) {
	if n.Email.Transport == transportFolder {
		return outbound.NewMailFolder(n.Folder, n.Email.From)
	}
	c := n.Email.SMTP
	return outbound.NewSMTP(outbound.SMTPConfig{
		Host: c.Host, Port: c.Port, From: n.Email.From, TLS: c.TLS, Username: c.Username, Password: c.Password.Reveal(),
		Timeout: c.Timeout, Helo: c.Helo,
	})
}

func openText(n Notifications, name domain.Channel, t Text) (app.Channel, error) {
	if t.Transport == transportFolder {
		return outbound.NewTextFolder(n.Folder)
	}
	return outbound.NewProvider(outbound.ProviderConfig{
		Channel: name, URL: t.URL, Token: t.Token.Reveal(), Sender: t.Sender, Timeout: t.Timeout,
	})
}

// sendMargin is what an attempt may take beside the send itself: its two short
// transactions.
const sendMargin = 10 * time.Second

// sendOptions is the policy of a handler that uses the channels: time for the
// slowest, and no more messages while what it depends on is broken.
func sendOptions(s Settings) func(channels ...domain.Channel) []framework.HandlerOption {
	n := s.Notifications
	timeouts := map[domain.Channel]time.Duration{
		domain.Email: n.Email.SMTP.Timeout, domain.SMS: n.SMS.Timeout, domain.WhatsApp: n.WhatsApp.Timeout, domain.Webhook: n.Webhook.Timeout,
	}
	return func(channels ...domain.Channel) []framework.HandlerOption {
		var slowest time.Duration
		for _, c := range channels {
			slowest = max(slowest, timeouts[c])
		}
		options := []framework.HandlerOption{framework.Timeout(slowest + sendMargin)}
		if len(channels) == 1 {
			// A handler of several channels has no breaker: one that is broken must
			// not stop the others.
			options = append(options, framework.Breaker(middleware.BreakerConfig{Name: string(channels[0])}))
		}
		return options
	}
}
