package outbound

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// ProviderConfig configures NewProvider.
type ProviderConfig struct {
	// Channel is domain.SMS or domain.WhatsApp.
	Channel domain.Channel
	// URL takes the messages: https, or http on this machine.
	URL string
	// Token is sent as a bearer token. Empty sends none.
	Token string
	// Sender is the name or number that the message comes from.
	Sender string
	// Timeout bounds one request. 0 means 10 s.
	Timeout time.Duration
}

// Provider sends text messages through an HTTP provider. The README describes
// the interface; a provider that speaks another one sits behind an adapter. It
// is idempotent by the Idempotency-Key header.
type Provider struct {
	cfg    ProviderConfig
	poster *poster
}

var _ app.Channel = (*Provider)(nil)

// NewProvider checks cfg. It opens no connection.
func NewProvider(cfg ProviderConfig) (*Provider, error) {
	p, err := newPoster(string(cfg.Channel), cfg.URL, cfg.Timeout)
	if err != nil {
		return nil, err
	}
	return &Provider{cfg: cfg, poster: p}, nil
}

type providerRequest struct {
	Channel   string `json:"channel"`
	From      string `json:"from,omitempty"`
	To        string `json:"to"`
	Text      string `json:"text"`
	Template  string `json:"template"`
	Language  string `json:"language"`
	Reference string `json:"reference"`
}

// Idempotent implements app.Channel.
func (p *Provider) Idempotent() bool { return true }

// Send implements app.Channel. The reference is the provider's id of the
// message, where it gives one.
func (p *Provider) Send(ctx context.Context, m app.Message) (string, error) {
	body, err := json.Marshal(providerRequest{
		Channel: string(p.cfg.Channel), From: p.cfg.Sender, To: m.Recipient, Text: m.Content.Text,
		Template: m.Template, Language: m.Language, Reference: m.NotificationID,
	})
	if err != nil {
		return "", fmt.Errorf("encode message %s: %w", m.Key, err)
	}
	headers := map[string]string{"Idempotency-Key": m.Key}
	if p.cfg.Token != "" {
		headers["Authorization"] = "Bearer " + p.cfg.Token
	}
	answer, err := p.poster.post(ctx, body, headers)
	if err != nil {
		return "", err
	}
	var taken struct {
		ID string `json:"id"`
	}
	// The message is taken, whatever the answer looks like: the id is a help for
	// people and no proof.
	if json.Unmarshal(answer, &taken) == nil && len(taken.ID) <= 200 && !strings.ContainsFunc(taken.ID, func(r rune) bool { return r < ' ' }) {
		return taken.ID, nil
	}
	return "", nil
}
