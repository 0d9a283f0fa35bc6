package redisstream

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/broker/lanes"
)

func TestRawMessageKeepsWhatCanBeRead(t *testing.T) {
	t.Parallel()
	sent := message.NewMessage("id", []byte("payload"))
	sent.Metadata.Set("k", "v")
	values, err := marshaller.Marshal("t", sent)
	require.NoError(t, err)
	md := string(values[fieldMetadata].([]byte))

	raw := rawMessage("7-0", map[string]any{fieldMetadata: md, fieldPayload: "\xff\x00"})
	require.Equal(t, "7-0", raw.UUID)
	require.Equal(t, "\xff\x00", string(raw.Payload))
	require.Equal(t, message.Metadata{"k": "v"}, raw.Metadata)

	raw = rawMessage("7-0", map[string]any{fieldMetadata: "\xde\xff", fieldPayload: "p"})
	require.Equal(t, "p", string(raw.Payload))
	require.NotNil(t, raw.Metadata)

	raw = rawMessage("7-0", map[string]any{"foreign": "fields", "n": "1"})
	require.JSONEq(t, `{"foreign":"fields","n":"1"}`, string(raw.Payload))
}

func TestParseID(t *testing.T) {
	t.Parallel()
	require.Equal(t, lanes.Pos{Hi: 1700000000123, Lo: 4}, parseID("1700000000123-4"))
	require.EqualValues(t, 1700000000123, timeOf("1700000000123-4").UnixMilli())
	require.True(t, parseID("9-9").Less(parseID("10-0")))
	require.True(t, parseID("9-9").Less(parseID("9-10")))
}

// FuzzDecode: bytes from outside never panic, and an entry that is refused keeps
// its payload.
func FuzzDecode(f *testing.F) {
	f.Add("id", "\x81\xa1k\xa1v", "{}", true)
	f.Add("", "\xdf\xff\xff\xff\xff", "\x00", true)
	f.Add("id", "\xc1", "", false)
	f.Fuzz(func(t *testing.T, uuid, md, payload string, hasUUID bool) {
		fields := map[string]any{fieldMetadata: md, fieldPayload: payload}
		if hasUUID {
			fields[fieldUUID] = uuid
		}
		msg, err := decode(fields)
		if err == nil {
			require.Equal(t, uuid, msg.UUID)
			require.Equal(t, payload, string(msg.Payload))
			return
		}
		require.Equal(t, payload, string(rawMessage("1-0", fields).Payload))
	})
}
