package events_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with testdata/<name>, apart from the final line break.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, append(bytes.Clone(got), '\n'), 0o600))
	}
	require.Equal(t, string(readGolden(t, name)), string(got))
}

func readGolden(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return bytes.TrimSuffix(b, []byte("\n"))
}

func full() events.Envelope {
	return events.Envelope{
		ID: "01980f2e-7c00-7abc-8def-0123456789ab", Source: "orders", Type: "order.placed", Version: "1.0",
		Timestamp: time.Date(2026, 7, 1, 12, 0, 0, 123456789, time.UTC),
		Data:      json.RawMessage(`{ "note":"<b>&amp;</b>", "total": 12345678901234567890.10,` + "\t" + `"e":"\u00e9é"}`),
		Metadata: events.Metadata{
			CorrelationID: "corr-1", CausationID: "01980f2e-0000-7abc-8def-0123456789ab",
			TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			TraceState:  "congo=t61rcWkgMzE", OrderingKey: "order-7",
			Extra: map[string]string{"zone": "eu \"west\"\n", "tenant": "acme", "": "empty name"},
		},
	}
}

func minimal() events.Envelope {
	return events.Envelope{
		ID: "1", Source: "orders", Type: "order.placed", Version: "1.0",
		Timestamp: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), Data: json.RawMessage(`{}`),
	}
}

// same compares all but Raw.
func same(t *testing.T, want, got events.Envelope) {
	t.Helper()
	require.Equal(t, want.ID, got.ID)
	require.Equal(t, want.Source, got.Source)
	require.Equal(t, want.Type, got.Type)
	require.Equal(t, want.Version, got.Version)
	require.True(t, want.Timestamp.Equal(got.Timestamp), "%s != %s", want.Timestamp, got.Timestamp)
	require.Equal(t, time.UTC, got.Timestamp.Location())
	require.Equal(t, string(want.Data), string(got.Data))
	require.Equal(t, want.Metadata, got.Metadata)
}

func TestGoldenEnvelopes(t *testing.T) {
	for name, e := range map[string]events.Envelope{"envelope_full.json": full(), "envelope_minimal.json": minimal()} {
		t.Run(name, func(t *testing.T) {
			b, err := e.Encode()
			require.NoError(t, err)
			golden(t, name, b)
			require.True(t, json.Valid(b))
			back, err := events.Decode(b)
			require.NoError(t, err)
			same(t, e, back)
		})
	}
}

// What another producer may send: other order, blanks, unknown fields, an
// offset, escapes in names. Its bytes, and those of its data, stay as they are.
func TestGoldenForeignEnvelope(t *testing.T) {
	raw := readGolden(t, "envelope_foreign.json")
	e, err := events.Decode(raw)
	require.NoError(t, err)
	require.Equal(t, string(raw), string(e.Raw()))
	require.Equal(t, "{\n    \"b\" : 1.50,\n    \"a\" : [ ]\n  }", string(e.Data))
	require.Equal(t, time.Date(2026, 7, 1, 7, 0, 6, 800_000_000, time.UTC), e.Timestamp)
	require.Equal(t, map[string]string{
		"retries": "3", "nested": `{"a": [1, 2]}`, "sampled": "true", "trace_id": "0af7651916cd43dd8448eb211c80319c",
	}, e.Metadata.Extra)
	b, err := e.Encode()
	require.NoError(t, err)
	golden(t, "envelope_foreign_encoded.json", b)
}

func TestGoldenCloudEvents(t *testing.T) {
	b, err := full().CloudEvent()
	require.NoError(t, err)
	golden(t, "cloudevent_full.json", b)
	b, err = minimal().CloudEvent()
	require.NoError(t, err)
	golden(t, "cloudevent_minimal.json", b)
}
