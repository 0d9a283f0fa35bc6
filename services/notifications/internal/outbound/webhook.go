package outbound

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/webhook"
)

// WebhookConfig configures NewWebhook.
type WebhookConfig struct {
	// URL is where deliveries go: https, or http on this machine.
	URL string
	// Secret signs them; PreviousSecret signs too while it is being replaced.
	Secret, PreviousSecret string
	// Timeout bounds one delivery. 0 means 10 s.
	Timeout time.Duration
}

// Webhook posts signed JSON to one receiver. It is idempotent as far as the
// receiver drops a delivery id that it has seen, which the format asks of it.
type Webhook struct {
	poster  *poster
	secrets []string
}

var _ app.Channel = (*Webhook)(nil)

// minWebhookSecret is how long a secret must be at least.
const minWebhookSecret = 16

// NewWebhook checks cfg. It opens no connection.
func NewWebhook(cfg WebhookConfig) (*Webhook, error) {
	if len(cfg.Secret) < minWebhookSecret {
		return nil, fmt.Errorf("webhook secret has %d bytes: it needs %d or more", len(cfg.Secret), minWebhookSecret)
	}
	if cfg.PreviousSecret != "" && len(cfg.PreviousSecret) < minWebhookSecret {
		return nil, errors.New("webhook previous secret is too short to have been one: leave it empty")
	}
	p, err := newPoster("webhook", cfg.URL, cfg.Timeout)
	if err != nil {
		return nil, err
	}
	return &Webhook{poster: p, secrets: []string{cfg.Secret, cfg.PreviousSecret}}, nil
}

// delivery is the body of a webhook. Fields may be added.
type delivery struct {
	DeliveryID     string    `json:"delivery_id"`
	NotificationID string    `json:"notification_id"`
	EventID        string    `json:"event_id"`
	EventType      string    `json:"event_type"`
	Template       string    `json:"template"`
	OrderID        string    `json:"order_id"`
	CreatedAt      time.Time `json:"created_at"`
	// Amount is in minor units of Currency.
	Amount   int64  `json:"amount,omitempty"`
	Currency string `json:"currency,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Idempotent implements app.Channel.
func (w *Webhook) Idempotent() bool { return true }

// Send implements app.Channel. The reference is the delivery id.
func (w *Webhook) Send(ctx context.Context, m app.Message) (string, error) {
	body, err := json.Marshal(delivery{
		DeliveryID: m.Key, NotificationID: m.NotificationID, EventID: m.EventID, EventType: m.EventType, Template: m.Template,
		OrderID: m.OrderID, CreatedAt: m.CreatedAt, Amount: m.Facts.Amount, Currency: m.Facts.Currency, Reason: m.Facts.Reason,
	})
	if err != nil {
		return "", fmt.Errorf("encode webhook %s: %w", m.Key, err)
	}
	_, err = w.poster.post(ctx, body, map[string]string{
		webhook.HeaderDeliveryID: m.Key,
		webhook.HeaderSignature:  webhook.Sign(body, w.poster.clock(), w.secrets...),
	})
	if err != nil {
		return "", err
	}
	return m.Key, nil
}
