// Package service wires the notifications service together and runs it.
package service

import (
	"errors"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/headrace-go/headrace/framework/config"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
	"github.com/headrace-go/headrace/services/notifications/internal/inbound"
)

// Settings is what the service reads at start: the profile that all services
// share, and its own section.
type Settings struct {
	config.Profile `koanf:",squash"`
	Notifications  Notifications `koanf:"notifications"`
}

// Notifications is the service's own section.
type Notifications struct {
	// Brand is the name that messages are signed with.
	Brand string `koanf:"brand"`
	// MaxAge is how old an event may be for its message to make sense.
	MaxAge time.Duration `koanf:"max_age"`
	// Folder is where channels with transport "folder" write their messages.
	Folder    string    `koanf:"folder"`
	Rules     Rules     `koanf:"rules"`
	Email     Email     `koanf:"email"`
	SMS       Text      `koanf:"sms"`
	WhatsApp  Text      `koanf:"whatsapp"`
	Webhook   Webhook   `koanf:"webhook"`
	Codes     Codes     `koanf:"codes"`
	Retention Retention `koanf:"retention"`
}

// Rules say which channels an event goes to: a list of channel or
// channel:template. The template defaults to the event's type with an
// underscore ("order_confirmed"). An empty list sends nothing.
type Rules struct {
	OrderConfirmed  []string `koanf:"order_confirmed"`
	OrderCancelled  []string `koanf:"order_cancelled"`
	PaymentFailed   []string `koanf:"payment_failed"`
	PaymentRefunded []string `koanf:"payment_refunded"`
}

// Transports of a channel.
const (
	transportOff    = "off"
	transportFolder = "folder"
	transportSMTP   = "smtp"
	transportHTTP   = "http"
)

// Email is the channel "email".
type Email struct {
	// Transport is "folder", "smtp" or "off".
	Transport string `koanf:"transport"`
	// From is the sender: "Shop <no-reply@example.com>".
	From string `koanf:"from"`
	SMTP SMTP   `koanf:"smtp"`
}

// SMTP is the mail server.
type SMTP struct {
	Host string `koanf:"host"`
	// Port 0 is 465 with tls "implicit" and 587 otherwise.
	Port int `koanf:"port"`
	// TLS is "mandatory" (the default), "implicit", "opportunistic" or "none".
	TLS      string        `koanf:"tls"`
	Username string        `koanf:"username"`
	Password config.Secret `koanf:"password"`
	// Timeout bounds one whole send. Default 20 s.
	Timeout time.Duration `koanf:"timeout"`
	// Helo is the name that the service gives itself. Default: the host's name.
	Helo string `koanf:"helo"`
}

// Text is the channel "sms" or "whatsapp".
type Text struct {
	// Transport is "folder", "http" or "off".
	Transport string `koanf:"transport"`
	// URL takes the messages; see the README for the interface.
	URL    string        `koanf:"url"`
	Token  config.Secret `koanf:"token"`
	Sender string        `koanf:"sender"`
	// Timeout bounds one request. Default 10 s.
	Timeout time.Duration `koanf:"timeout"`
}

// Webhook is the channel "webhook". An empty URL is off.
type Webhook struct {
	URL    config.Secret `koanf:"url"`
	Secret config.Secret `koanf:"secret"`
	// PreviousSecret signs too, while Secret replaces it.
	PreviousSecret config.Secret `koanf:"previous_secret"`
	// Timeout bounds one delivery. Default 10 s.
	Timeout time.Duration `koanf:"timeout"`
}

// Codes are the one-time codes.
type Codes struct {
	// Enabled offers them. Default false.
	Enabled bool `koanf:"enabled"`
	// Secret hashes and seals them: 32 bytes or more. A new one makes the open
	// codes worthless.
	Secret config.Secret `koanf:"secret"`
	// TTL is how long a code is valid. Default 10 m.
	TTL time.Duration `koanf:"ttl"`
	// MaxAttempts is how often one code may be tried. Default 5.
	MaxAttempts int `koanf:"max_attempts"`
	// Limit is how many codes one recipient gets within Window. Defaults 5, 1 h.
	Limit  int           `koanf:"limit"`
	Window time.Duration `koanf:"window"`
}

// Retention is how long what holds personal data is kept.
type Retention struct {
	// Notifications that are sent or failed. Default 2160 h (90 days).
	Notifications time.Duration `koanf:"notifications"`
	// Contacts of orders. Default 2160 h.
	Contacts time.Duration `koanf:"contacts"`
}

// Defaults returns the settings to load a profile into.
func Defaults() Settings {
	return Settings{Notifications: Notifications{
		Brand: "Headrace", MaxAge: 24 * time.Hour, Folder: ".headrace/mail",
		Email:     Email{Transport: transportOff, SMTP: SMTP{TLS: "mandatory", Timeout: 20 * time.Second}},
		SMS:       Text{Transport: transportOff, Timeout: 10 * time.Second},
		WhatsApp:  Text{Transport: transportOff, Timeout: 10 * time.Second},
		Webhook:   Webhook{Timeout: 10 * time.Second},
		Codes:     Codes{TTL: 10 * time.Minute, MaxAttempts: 5, Limit: 5, Window: time.Hour},
		Retention: Retention{Notifications: 90 * 24 * time.Hour, Contacts: 90 * 24 * time.Hour},
	}}
}

// Validate reports every setting of the service's own that can't work.
func (s Settings) Validate() error {
	var faults config.Faults
	bad := faults.Add
	n := s.Notifications
	if s.Database.Driver == "" {
		bad("database.driver", `""`, "notifications keeps what it sent in a database: set sqlite, postgres or mysql")
	}
	if strings.TrimSpace(n.Brand) == "" {
		bad("notifications.brand", `""`, "name who signs the messages")
	}
	for key, d := range map[string]time.Duration{
		"max_age": n.MaxAge, "email.smtp.timeout": n.Email.SMTP.Timeout, "sms.timeout": n.SMS.Timeout,
		"whatsapp.timeout": n.WhatsApp.Timeout, "webhook.timeout": n.Webhook.Timeout,
	} {
		if d <= 0 {
			bad("notifications."+key, d, "it must be above 0")
		}
	}
	if slices.Contains([]string{n.Email.Transport, n.SMS.Transport, n.WhatsApp.Transport}, transportFolder) && n.Folder == "" {
		bad("notifications.folder", `""`, "name the folder that messages are written to")
	}
	n.Email.check(bad)
	n.SMS.check("sms", bad)
	n.WhatsApp.check("whatsapp", bad)
	if n.Webhook.URL != "" && n.Webhook.Secret == "" {
		bad("notifications.webhook.secret", `""`, "a webhook is signed: set a secret of 16 bytes or more")
	}
	if s.Env == "production" {
		for key, t := range map[string]string{"email": n.Email.Transport, "sms": n.SMS.Transport, "whatsapp": n.WhatsApp.Transport} {
			if t == transportFolder {
				bad("notifications."+key+".transport", t, "files reach no customer: it is for one laptop and for tests")
			}
		}
	}
	n.Codes.check(s, bad)
	if n.Retention.Notifications < s.Dedup.Retention {
		bad("notifications.retention.notifications", n.Retention.Notifications,
			fmt.Sprintf("it must not be below dedup.retention (%s): a late redelivery would find no trace of the send", s.Dedup.Retention))
	}
	if n.Retention.Contacts < n.MaxAge {
		bad("notifications.retention.contacts", n.Retention.Contacts, fmt.Sprintf("it must not be below notifications.max_age (%s)", n.MaxAge))
	}
	if _, err := s.routes(); err != nil {
		faults.Join(err)
	}
	return faults.Err()
}

// shared tells whether the profile is one where several processes work
// together.
func (s Settings) shared() bool { return s.Env == "staging" || s.Env == "production" }

type badFunc func(key string, value any, remedy string)

func (e Email) check(bad badFunc) {
	const key = "notifications.email."
	switch e.Transport {
	case transportOff:
		return
	case transportFolder:
	case transportSMTP:
		if e.SMTP.Host == "" {
			bad(key+"smtp.host", `""`, "name the mail server")
		}
		if e.SMTP.Port < 0 || e.SMTP.Port > 65535 {
			bad(key+"smtp.port", e.SMTP.Port, "it must be from 0 to 65535")
		}
		if e.SMTP.Username != "" && e.SMTP.Password == "" {
			bad(key+"smtp.password", `""`, "a username is set, so set its password")
		}
		if e.SMTP.Username != "" && e.SMTP.TLS == "none" {
			bad(key+"smtp.tls", `"none"`, "a password never travels in the clear: use mandatory or implicit")
		}
	default:
		bad(key+"transport", fmt.Sprintf("%q", e.Transport), "use folder, smtp or off")
	}
	if _, err := mail.ParseAddress(e.From); err != nil {
		bad(key+"from", fmt.Sprintf("%q", e.From), `give a mail address, such as "Shop <no-reply@example.com>"`)
	}
}

func (t Text) check(name string, bad badFunc) {
	key := "notifications." + name + "."
	switch t.Transport {
	case transportOff, transportFolder:
	case transportHTTP:
		if t.URL == "" {
			bad(key+"url", `""`, "name the provider's address")
		}
	default:
		bad(key+"transport", fmt.Sprintf("%q", t.Transport), "use folder, http or off")
	}
}

func (c Codes) check(s Settings, bad badFunc) {
	const key = "notifications.codes."
	if !c.Enabled {
		return
	}
	if len(c.Secret.Reveal()) < domain.MinSecretBytes {
		bad(key+"secret", fmt.Sprintf("%d bytes long", len(c.Secret.Reveal())), fmt.Sprintf("it must have %d or more", domain.MinSecretBytes))
	}
	if s.shared() && strings.HasPrefix(c.Secret.Reveal(), "local-only") {
		bad(key+"secret", "the local profile's", "set one of your own")
	}
	if c.TTL < time.Minute || c.TTL > time.Hour {
		bad(key+"ttl", c.TTL, "it must be from 1m to 1h")
	}
	if c.MaxAttempts < 1 || c.MaxAttempts > 10 {
		bad(key+"max_attempts", c.MaxAttempts, "it must be from 1 to 10: six digits stand no more guesses")
	}
	if c.Limit < 1 {
		bad(key+"limit", c.Limit, "it must be 1 or more")
	}
	if c.Window < time.Minute {
		bad(key+"window", c.Window, "it must be 1m or more")
	}
	if len(s.codeChannels()) == 0 {
		bad(key+"enabled", true, "no channel is on that could carry a code: set up email, sms or whatsapp")
	}
}

// codeChannels lists the channels that codes can go out on.
func (s Settings) codeChannels() []domain.Channel {
	return slices.DeleteFunc(s.channels(), func(c domain.Channel) bool { return c == domain.Webhook })
}

// channels lists the channels that are on.
func (s Settings) channels() []domain.Channel {
	n := s.Notifications
	var on []domain.Channel
	for _, c := range []struct {
		name domain.Channel
		on   bool
	}{
		{domain.Email, n.Email.Transport != transportOff},
		{domain.SMS, n.SMS.Transport != transportOff},
		{domain.WhatsApp, n.WhatsApp.Transport != transportOff},
		{domain.Webhook, n.Webhook.URL != ""},
	} {
		if c.on {
			on = append(on, c.name)
		}
	}
	return on
}

// routes reads the rules.
func (s Settings) routes() ([]inbound.Route, error) {
	r := s.Notifications.Rules
	lists := map[string][]string{
		"order.confirmed": r.OrderConfirmed, "order.cancelled": r.OrderCancelled,
		"payment.failed": r.PaymentFailed, "payment.refunded": r.PaymentRefunded,
	}
	var (
		routes []inbound.Route
		errs   []error
	)
	for _, event := range inbound.RoutableEvents() {
		name := strings.ReplaceAll(event, ".", "_")
		key := "notifications.rules." + name
		seen := map[domain.Channel]bool{}
		for _, entry := range lists[event] {
			channel, template, found := strings.Cut(entry, ":")
			if !found {
				template = name
			}
			route := inbound.Route{Event: event, Channel: domain.Channel(channel), Template: template}
			switch {
			case !route.Channel.Valid() || template == "":
				errs = append(errs, fmt.Errorf("config: %s has %q: write channel or channel:template, with channel one of %v (%s)", key, entry, domain.Channels(), config.EnvName(key)))
			case !slices.Contains(s.channels(), route.Channel):
				errs = append(errs, fmt.Errorf("config: %s has %q: that channel is off: set it up or take it out (%s)", key, entry, config.EnvName(key)))
			case seen[route.Channel]:
				errs = append(errs, fmt.Errorf("config: %s names %s twice: an event goes out once on a channel (%s)", key, channel, config.EnvName(key)))
			default:
				routes = append(routes, route)
			}
			seen[route.Channel] = true
		}
	}
	return routes, errors.Join(errs...)
}
