package cli

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/headrace-go/headrace/framework/deadletter"
)

// shown is a dead letter in JSON.
type shown struct {
	ID             string             `json:"id"`
	Group          string             `json:"group"`
	Position       string             `json:"position"`
	DeadLetteredAt time.Time          `json:"dead_lettered_at"`
	EventID        string             `json:"event_id,omitempty"`
	EventType      string             `json:"event_type,omitempty"`
	Key            string             `json:"ordering_key,omitempty"`
	CorrelationID  string             `json:"correlation_id,omitempty"`
	Reason         string             `json:"reason"`
	Error          string             `json:"error,omitempty"`
	ErrorChain     []deadletter.Cause `json:"error_chain,omitempty"`
	Stack          string             `json:"stack,omitempty"`
	Service        string             `json:"service,omitempty"`
	Handler        string             `json:"handler,omitempty"`
	Topic          string             `json:"topic,omitempty"`
	Attempts       int                `json:"attempts"`
	Deliveries     int                `json:"deliveries"`
	Redrives       int                `json:"redrives"`
	// ParksKey tells that later messages of the key wait for the letter, ParkSeq is
	// its place among them, ParkedBehind the first of them.
	ParksKey       bool      `json:"parks_key,omitempty"`
	ParkSeq        int64     `json:"park_seq,omitempty"`
	ParkedBehind   string    `json:"parked_behind,omitempty"`
	RedrivesParked int       `json:"redrives_parked,omitempty"`
	FirstFailedAt  time.Time `json:"first_failed_at,omitzero"`
	LastFailedAt   time.Time `json:"last_failed_at,omitzero"`
	Fingerprint    string    `json:"fingerprint"`
	EditedAt       time.Time `json:"edited_at,omitzero"`
	EditedBy       string    `json:"edited_by,omitempty"`
	// Metadata is the message's own, without the story.
	Metadata      map[string]string `json:"metadata"`
	PayloadBytes  int               `json:"payload_bytes"`
	Payload       string            `json:"payload,omitempty"`
	PayloadBase64 string            `json:"payload_base64,omitempty"`
}

func show(l deadletter.Letter, payload bool) shown {
	s := shown{
		ID: l.ID, Group: l.Group, Position: l.Position, DeadLetteredAt: l.DeadLetteredAt,
		EventID: l.EventID, EventType: l.EventType, Key: l.Key, CorrelationID: l.CorrelationID,
		Reason: l.Reason, Error: l.Error, ErrorChain: l.ErrorChain, Stack: l.Stack,
		Service: l.Service, Handler: l.Handler, Topic: l.Topic,
		Attempts: l.Attempts, Deliveries: l.Deliveries, Redrives: l.Redrives,
		ParksKey: l.ParksKey, ParkSeq: l.ParkSeq, ParkedBehind: l.ParkedBehind, RedrivesParked: l.RedrivesParked,
		FirstFailedAt: l.FirstFailedAt, LastFailedAt: l.LastFailedAt, Fingerprint: l.Fingerprint,
		EditedAt: l.EditedAt, EditedBy: l.EditedBy,
		Metadata: l.Original().Metadata, PayloadBytes: len(l.Message.Payload),
	}
	switch {
	case !payload:
	case utf8.Valid(l.Message.Payload):
		s.Payload = string(l.Message.Payload)
	default:
		s.PayloadBase64 = base64.StdEncoding.EncodeToString(l.Message.Payload)
	}
	return s
}

func (d *dlq) show() *cobra.Command {
	var payload, raw bool
	cmd := &cobra.Command{
		Use:   "show GROUP ID",
		Short: "Tell a dead letter's whole story",
		Long: `show prints all that is known of a dead letter: the event, why and where it failed, how
often, when, the chain of errors and its metadata. ID is the message's or the event's
id, or a position. The payload is printed only when it is asked for, since it may
hold what not everybody should read.`,
		Args: oneGroup("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if raw && d.json {
				return usageError{errors.New("--raw and --json: choose one")}
			}
			q, p, err := d.queue(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer p.Close()
			letters, err := q.Find(cmd.Context(), args[1])
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			switch {
			case raw:
				if len(letters) > 1 {
					return several(letters)
				}
				_, err := out.Write(letters[0].Message.Payload)
				return err
			case d.json:
				all := make([]shown, len(letters))
				for i, l := range letters {
					all[i] = show(l, payload)
				}
				return printJSON(out, all)
			}
			for i, l := range letters {
				if i > 0 {
					fmt.Fprintln(out)
				}
				tell(out, show(l, payload))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&payload, "payload", false, "print the payload too")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the payload's bytes and nothing else, to edit them")
	return cmd
}

// several is the error where one letter is meant and an id has more.
func several(letters []deadletter.Letter) error {
	positions := make([]string, len(letters))
	for i, l := range letters {
		positions[i] = l.Position
	}
	return fmt.Errorf("%d dead letters have the id %s: name one by its position: %s", len(letters), letters[0].ID, strings.Join(positions, ", "))
}

// tell prints the story for people.
func tell(w io.Writer, s shown) {
	fmt.Fprintf(w, "dead letter %s of %s\n", printable(s.ID), printable(s.Group))
	row := func(name, format string, args ...any) {
		text := printable(strings.TrimSpace(fmt.Sprintf(format, args...)))
		if text != "" {
			fmt.Fprintf(w, "  %-14s %s\n", name, strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 17)))
		}
	}
	row("event", "%s %s", s.EventType, s.EventID)
	row("ordering key", "%s", s.Key)
	row("correlation id", "%s", s.CorrelationID)
	row("reason", "%s", s.Reason)
	row("error", "%s", s.Error)
	for i, c := range s.ErrorChain {
		name := ""
		if i == 0 {
			name = "error chain"
		}
		row(name, "%s: %s", c.Type, c.Message)
	}
	row("stack", "%s", s.Stack)
	row("service", "%s", s.Service)
	row("handler", "%s", s.Handler)
	row("topic", "%s", s.Topic)
	if s.ParkedBehind != "" {
		row("attempts", "0: it was parked unrun")
	} else {
		row("attempts", "%s", times(s.Attempts))
	}
	row("deliveries", "%s", times(s.Deliveries))
	redrives := strconv.Itoa(s.Redrives)
	if s.RedrivesParked > 0 {
		redrives += fmt.Sprintf(", %d of them parked again", s.RedrivesParked)
	}
	row("redrives", "%s", redrives)
	if s.ParksKey {
		row("holds up", "the later messages of its key, at place %d", s.ParkSeq)
	}
	row("parked behind", "%s", s.ParkedBehind)
	row("first failed", "%s", at(s.FirstFailedAt))
	row("last failed", "%s", at(s.LastFailedAt))
	row("dead-lettered", "%s", at(s.DeadLetteredAt))
	row("fingerprint", "%s", s.Fingerprint)
	row("position", "%s", s.Position)
	if !s.EditedAt.IsZero() {
		row("edited", "%s by %s", at(s.EditedAt), s.EditedBy)
	}
	for i, k := range slices.Sorted(maps.Keys(s.Metadata)) {
		name := ""
		if i == 0 {
			name = "metadata"
		}
		row(name, "%s: %s", k, s.Metadata[k])
	}
	switch {
	case s.Payload != "":
		row("payload", "%s", s.Payload)
	case s.PayloadBase64 != "":
		row("payload", "%d bytes that are no text, in base64:\n%s", s.PayloadBytes, s.PayloadBase64)
	default:
		row("payload", "%d bytes", s.PayloadBytes)
	}
}

func times(n int) string {
	if n == 0 {
		return "not known"
	}
	return strconv.Itoa(n)
}

// printable drops what could steer a terminal: a dead letter's text may come
// from anybody.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}
