package nats

import (
	"encoding/json"
	"strings"
	"testing"

	stock "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
)

// TestOddMessages: what NATS would change, drop or obey comes back as it was
// (B26).
func TestOddMessages(t *testing.T) {
	t.Parallel()
	for name, msg := range map[string]*message.Message{
		"nothing":     {},
		"plain":       {UUID: "id", Metadata: message.Metadata{"k": "v", "empty": "", "ü": "ü"}},
		"orders":      {UUID: "id", Metadata: message.Metadata{"Nats-Rollup": "all", "nats-ttl": "1s", "Nats-Expected-Stream": "x"}},
		"status":      {UUID: "id", Metadata: message.Metadata{"Status": "503", "Description": "x"}},
		"whitespace":  {UUID: " id\n", Metadata: message.Metadata{"k": " v ", "l": "a\tb\r\nX: y", "": "no key"}},
		"our headers": {UUID: "id", Metadata: message.Metadata{HeaderMetadata: "a=b", HeaderUUID: "%zz", stock.WatermillUUIDHdr: "other"}},
		"binary":      {UUID: "\xff\x00", Metadata: message.Metadata{"k\xff": "\xfe", "a:b": "c", "a@b": "d", "k&=": "=&"}, Payload: []byte{0, 255}},
	} {
		out, err := encode("s", msg)
		require.NoError(t, err, name)
		for key, all := range out.Header {
			require.Len(t, all, 1)
			require.False(t, reserved(key), "%s: %s reaches the server", name, key)
		}
		// Through the client's own writing and reading.
		in := &natsgo.Msg{Data: out.Data}
		in.Header, err = natsgo.DecodeHeadersMsg(headerBytes(t, out))
		require.NoError(t, err, name)
		got, err := decode(in, "place")
		require.NoError(t, err, name)
		require.Equal(t, msg.UUID, got.UUID, name)
		require.Equal(t, string(msg.Payload), string(got.Payload), name)
		require.Len(t, got.Metadata, len(msg.Metadata), name)
		for key, value := range msg.Metadata {
			require.Equal(t, value, got.Metadata[key], "%s: %q", name, key)
		}
	}
}

func headerBytes(t *testing.T, m *natsgo.Msg) []byte {
	t.Helper()
	var b strings.Builder
	b.WriteString("NATS/1.0\r\n")
	for key, all := range m.Header {
		for _, value := range all {
			b.WriteString(key + ": " + value + "\r\n")
		}
	}
	return []byte(b.String() + "\r\n")
}

func TestStockReadsPlainMessages(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("id", []byte("x"))
	msg.Metadata.Set("event_type", "orders.placed")
	out, err := encode("s", msg)
	require.NoError(t, err)
	want, err := (&stock.NATSMarshaler{}).Marshal("s", msg)
	require.NoError(t, err)
	require.Equal(t, want, out, "what stock writes, byte for byte")
}

// TestForeignMessages: a program that knows no Watermill published them.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	got, err := decode(&natsgo.Msg{Data: []byte("hello"), Header: natsgo.Header{"k": {"v"}, "Nats-Msg-Id": {"1"}, "Nats-Stream-Source": {"x"}}}, "STREAM:7")
	require.NoError(t, err)
	require.Equal(t, "STREAM:7", got.UUID, "two of them are two messages")
	require.Equal(t, message.Metadata{"k": "v"}, got.Metadata)

	placed, err := events.Define[map[string]string]("nats.test", "1.0").New("o-1", map[string]string{"a": "b"}).
		Seal(events.Stamp{ID: "e-1", Source: "tests", CorrelationID: "c-1"})
	require.NoError(t, err)
	raw, err := json.Marshal(placed)
	require.NoError(t, err)
	got, err = decode(&natsgo.Msg{Data: raw}, "STREAM:8")
	require.NoError(t, err)
	require.Equal(t, placed.ID, got.UUID)
	require.Equal(t, "nats.test", got.Metadata[events.KeyType])
}

func TestMalformed(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]natsgo.Header{
		"two values":   {"k": {"a", "b"}},
		"no form":      {HeaderMetadata: {"%"}},
		"a key twice":  {HeaderMetadata: {"a=1&a=2"}},
		"no form part": {HeaderUUID: {"%zz"}},
	} {
		in := &natsgo.Msg{Data: []byte("raw"), Header: header}
		_, err := decode(in, "S:1")
		require.Error(t, err, name)
		raw := rawMessage(in, "S:1")
		require.Equal(t, "S:1", raw.UUID)
		require.Equal(t, "raw", string(raw.Payload))
	}
}

func TestMessageID(t *testing.T) {
	t.Parallel()
	event := func(change func(*message.Message)) string {
		m := message.NewMessage("id", []byte("x"))
		m.Metadata.Set(events.KeyID, "e-1")
		m.Metadata.Set("k", "v")
		change(m)
		return messageID(m)
	}
	same := event(func(*message.Message) {})
	require.Equal(t, same, event(func(m *message.Message) { m.SetContext(t.Context()) }))
	for name, change := range map[string]func(*message.Message){
		"payload":  func(m *message.Message) { m.Payload = []byte("y") },
		"metadata": func(m *message.Message) { m.Metadata.Set("dead_letter_redrive_count", "1") },
		"uuid":     func(m *message.Message) { m.UUID = "other" },
		"moved":    func(m *message.Message) { m.Metadata = message.Metadata{events.KeyID: "e-1", "kv": ""} },
	} {
		require.NotEqual(t, same, event(change), name)
	}
	require.Empty(t, event(func(m *message.Message) { delete(m.Metadata, events.KeyID) }), "no event: nothing to recognize a copy by")
}
