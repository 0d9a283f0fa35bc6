package inbound

import (
	"time"

	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

type notificationBody struct {
	ID        string `json:"id"`
	EventID   string `json:"event_id"`
	EventType string `json:"event_type"`
	Channel   string `json:"channel"`
	Template  string `json:"template"`
	OrderID   string `json:"order_id,omitempty"`
	Recipient string `json:"recipient,omitempty"`
	Language  string `json:"language"`
	State     string `json:"state"`
	Reason    string `json:"reason,omitempty"`
	Reference string `json:"reference,omitempty"`
	Attempts  int    `json:"attempts"`
	Resends   int    `json:"resends"`
	CreatedAt string `json:"created_at"`
	UpdatedAt string `json:"updated_at"`
	SentAt    string `json:"sent_at,omitempty"`
}

type pageBody struct {
	Notifications []notificationBody `json:"notifications"`
	NextCursor    string             `json:"next_cursor,omitempty"`
}

// notificationView shows the recipient masked: enough to recognise, too little
// to collect.
func notificationView(n domain.Notification) notificationBody {
	b := notificationBody{
		ID: n.ID, EventID: n.EventID, EventType: n.EventType, Channel: string(n.Channel), Template: n.Template, OrderID: n.OrderID,
		Recipient: domain.MaskAddress(n.Recipient), Language: n.Language, State: string(n.State), Reason: n.Reason,
		Reference: n.Reference, Attempts: n.Attempts, Resends: n.Resends,
		CreatedAt: stamp(n.CreatedAt), UpdatedAt: stamp(n.UpdatedAt),
	}
	if !n.SentAt.IsZero() {
		b.SentAt = stamp(n.SentAt)
	}
	return b
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
