package notifications_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/pkg/events/notifications"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sent() notifications.SentData {
	return notifications.SentData{
		NotificationID: "ntf-1", EventID: "01980f2e-0000-7abc-8def-0123456789ab", EventType: "order.confirmed", Channel: "email",
		Template: "order_confirmed", OrderID: "order-7", ProviderReference: "smtp-250-abc",
	}
}

func failed() notifications.FailedData {
	return notifications.FailedData{
		NotificationID: "ntf-1", EventID: "01980f2e-0000-7abc-8def-0123456789ab", EventType: "order.confirmed", Channel: "sms",
		Template: "order_confirmed", OrderID: "order-7", Reason: "rejected_by_provider",
	}
}

// The golden files are what other teams' consumers see: a change of one is a
// change of the contract.
func TestGolden(t *testing.T) {
	t.Parallel()
	golden(t, "notification_sent_1.0.json", notifications.Sent, sent())
	golden(t, "notification_failed_1.0.json", notifications.Failed, failed())
}

func golden[T any](t *testing.T, name string, kind events.Type[T], data T) {
	t.Helper()
	draft := kind.New("order-7", data, events.At(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)))
	envelope, err := draft.Seal(events.Stamp{
		ID: "01980f2e-7c00-7abc-8def-0123456789ab", Source: "notifications", CorrelationID: "corr-1", CausationID: "01980f2e-0000-7abc-8def-0123456789ab",
	})
	require.NoError(t, err)
	got, err := envelope.Encode()
	require.NoError(t, err)
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, append(bytes.Clone(got), '\n'), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got)+"\n")

	decoded, err := events.Decode(want)
	require.NoError(t, err)
	event, err := kind.Decode(decoded)
	require.NoError(t, err)
	require.Equal(t, data, event.Data)
	require.Equal(t, "order-7", event.Metadata.OrderingKey)
}

func TestDescriptorsRegister(t *testing.T) {
	t.Parallel()
	r := events.NewRegistry()
	require.NoError(t, r.Register(notifications.Descriptors()...))
	for _, name := range []string{"notification.sent", "notification.failed"} {
		d, ok := r.Lookup(name, "1.0")
		require.True(t, ok, name)
		require.Equal(t, name, d.Topic)
	}
	require.Len(t, r.Types(), 2)
}

// B45: a required field that is missing is named.
func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*notifications.SentData){
		"notification_id": func(d *notifications.SentData) { d.NotificationID = "" },
		"event_id":        func(d *notifications.SentData) { d.EventID = "" },
		"event_type":      func(d *notifications.SentData) { d.EventType = "" },
		"channel":         func(d *notifications.SentData) { d.Channel = "" },
		"template":        func(d *notifications.SentData) { d.Template = "" },
	} {
		d := sent()
		change(&d)
		require.EqualError(t, d.Validate(), says+" is missing or empty")
	}
	f := failed()
	f.Reason = ""
	require.EqualError(t, f.Validate(), "reason is missing or empty")
	d := sent()
	d.OrderID, d.ProviderReference = "", ""
	require.NoError(t, d.Validate(), "a one-time code is about no order")
}
