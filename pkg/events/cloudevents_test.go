package events_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/pkg/events"
)

const cloud = `{"specversion":"1.0","id":"A-1","source":"/cloud/x?y=1","type":"com.example.someevent","time":"2026-07-01T12:00:00+02:00",` +
	`"eventversion":"2.1","datacontenttype":"application/json","subject":"file/9","dataschema":"https://example.com/s/2.1",` +
	`"partitionkey":"k9","sampled":true,"count":3,"unset":null,"Not_A_Name":{"x":1},"data":{ "a" : 1.0 }}`

func TestFromCloudEvent(t *testing.T) {
	t.Parallel()
	e, err := events.FromCloudEvent([]byte(cloud))
	require.NoError(t, err)
	same(t, events.Envelope{
		ID: "A-1", Source: "/cloud/x?y=1", Type: "com.example.someevent", Version: "2.1",
		Timestamp: time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC), Data: json.RawMessage(`{ "a" : 1.0 }`),
		Metadata: events.Metadata{OrderingKey: "k9", Extra: map[string]string{
			"subject": "file/9", "dataschema": "https://example.com/s/2.1", "partitionkey": "k9", "sampled": "true", "count": "3",
		}},
	}, e)
	require.Equal(t, cloud, string(e.Raw()))

	// What came in goes out again.
	out, err := e.CloudEvent()
	require.NoError(t, err)
	var attrs map[string]any
	require.NoError(t, json.Unmarshal(out, &attrs))
	require.Equal(t, "file/9", attrs["subject"])
	require.Equal(t, "https://example.com/s/2.1", attrs["dataschema"])
	back, err := events.FromCloudEvent(out)
	require.NoError(t, err)
	same(t, e, back)
}

func TestCloudEventRefusals(t *testing.T) {
	t.Parallel()
	swap := func(old, replacement string) string {
		require.Contains(t, cloud, old)
		return strings.Replace(cloud, old, replacement, 1)
	}
	for name, tc := range map[string]struct {
		payload string
		code    events.DecodeCode
		field   string
	}{
		"empty":              {"", events.CodeEmpty, ""},
		"batch":              {"[" + cloud + "]", events.CodeNotObject, ""},
		"truncated":          {cloud[:len(cloud)-2], events.CodeTruncated, ""},
		"trailing":           {cloud + "}", events.CodeMalformed, ""},
		"no specversion":     {swap(`"specversion":"1.0",`, ``), events.CodeMissing, "specversion"},
		"old specversion":    {swap(`"specversion":"1.0"`, `"specversion":"0.3"`), events.CodeUnsupported, "specversion"},
		"specversion number": {swap(`"specversion":"1.0"`, `"specversion":1.0`), events.CodeWrongType, "specversion"},
		"no id":              {swap(`"id":"A-1",`, ``), events.CodeMissing, "id"},
		"no source":          {swap(`"source":"/cloud/x?y=1",`, ``), events.CodeMissing, "source"},
		"no type":            {swap(`"type":"com.example.someevent",`, ``), events.CodeMissing, "type"},
		"no time":            {swap(`"time":"2026-07-01T12:00:00+02:00",`, ``), events.CodeMissing, "time"},
		"bad time":           {swap(`2026-07-01T12:00:00+02:00`, `yesterday`), events.CodeBadTime, "time"},
		"id twice":           {swap(`"id":"A-1"`, `"id":"A-1","id":"A-2"`), events.CodeDuplicate, "id"},
		"object attribute":   {swap(`"count":3`, `"count":{}`), events.CodeWrongType, "count"},
		"image":              {swap(`application/json`, `image/png`), events.CodeUnsupported, "datacontenttype"},
		"data twice":         {swap(`"data":`, `"data":1,"data":`), events.CodeDuplicate, "data"},
		"both data":          {swap(`"data":`, `"data_base64":"e30=","data":`), events.CodeDuplicate, "data"},
		"bad base64":         {swap(`"data":{ "a" : 1.0 }`, `"data_base64":"!"`), events.CodeInvalid, "data_base64"},
		"base64 of no JSON":  {swap(`"data":{ "a" : 1.0 }`, `"data_base64":"aGVsbG8="`), events.CodeMalformed, "data"},
		"base64 number":      {swap(`"data":{ "a" : 1.0 }`, `"data_base64":1`), events.CodeWrongType, "data_base64"},
		"control in key":     {swap(`"k9"`, `"k\n9"`), events.CodeInvalid, "orderingkey"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := events.FromCloudEvent([]byte(tc.payload))
			d := refused(t, err)
			require.Equal(t, tc.code, d.Code, "%v", err)
			require.Equal(t, tc.field, d.Field, "%v", err)
		})
	}
}

func TestCloudEventVersion(t *testing.T) {
	t.Parallel()
	const none = `{"specversion":"1.0","id":"1","source":"a","type":"t","time":"2026-07-01T12:00:00Z"`
	for tail, want := range map[string]string{
		`,"eventversion":"3.0","dataschema":"http://x/9.9"}`: "3.0",
		`,"dataschema":"https://x/order.placed/1.2"}`:        "1.2",
		`,"dataschema":"https://x/order.placed/v1.2.json"}`:  "1.2",
		`,"dataschema":"https://x/order.placed#2.0"}`:        "2.0",
		`,"dataschema":"urn:example:order.placed/4.1"}`:      "4.1",
		`,"dataschema":"https://x/order.placed/2026-01-01"}`: "7.7",
		`}`: "7.7",
	} {
		e, err := events.FromCloudEvent([]byte(none+tail), events.AssumeVersion("7.7"))
		require.NoError(t, err, tail)
		require.Equal(t, want, e.Version, tail)
		require.Equal(t, "null", string(e.Data))
	}
	_, err := events.FromCloudEvent([]byte(none + `}`))
	require.Equal(t, "eventversion", refused(t, err).Field)
	require.ErrorContains(t, err, "AssumeVersion")
}

func TestCloudEventData(t *testing.T) {
	t.Parallel()
	for part, want := range map[string]string{
		`"data":null`:                            `null`,
		`"data":"text"`:                          `"text"`,
		`"data":{"a" : "\u00e9"}`:                `{"a" : "\u00e9"}`,
		`"data_base64":"eyJhIjogIsOpIn0="`:       `{"a": "é"}`,
		`"data":1,"datacontenttype":"text/json"`: `1`,
		`"data":1,"datacontenttype":"application/vnd.x+json; charset=utf-8"`: `1`,
	} {
		e, err := events.FromCloudEvent([]byte(`{"specversion":"1.0","id":"1","source":"a","type":"t","time":"2026-07-01T12:00:00Z","eventversion":"1.0",` + part + `}`))
		require.NoError(t, err, part)
		require.Equal(t, want, string(e.Data))
		out, err := e.CloudEvent()
		require.NoError(t, err)
		back, err := events.FromCloudEvent(out)
		require.NoError(t, err)
		same(t, e, back)
	}
}

// Metadata that no attribute can carry still survives the trip.
func TestCloudEventLosesNoMetadata(t *testing.T) {
	t.Parallel()
	e := full()
	for _, k := range []string{
		"id", "data", "data_base64", "time", "specversion", "datacontenttype", "eventversion", "eventextra", "correlationid", "orderingkey",
		"UPPER", "a_b", "a-b", "ü", "subject", "partitionkey", "empty", "control", "percent",
	} {
		e.Metadata.Extra[k] = "value of " + k
	}
	e.Metadata.Extra["empty"], e.Metadata.Extra["control"], e.Metadata.Extra["percent"] = "", "a\tb", `100% "é"`
	e.Metadata.OrderingKey = "order 7 ü"
	for _, key := range []string{e.Metadata.OrderingKey, ""} {
		e.Metadata.OrderingKey = key
		b, err := e.CloudEvent()
		require.NoError(t, err)
		back, err := events.FromCloudEvent(b)
		require.NoError(t, err)
		same(t, e, back)
		for _, binding := range []events.Binding{events.BindingHTTP, events.BindingKafka, events.BindingAMQP} {
			headers, body, err := e.CloudEventBinary(binding)
			require.NoError(t, err)
			back, err := events.FromCloudEventBinary(headers, body)
			require.NoError(t, err)
			same(t, e, back)
		}
	}
}

func TestCloudEventBinaryHeaders(t *testing.T) {
	t.Parallel()
	e := minimal()
	e.Metadata.OrderingKey = `5% "ü"`
	e.Metadata.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	h, body, err := e.CloudEventBinary(events.BindingHTTP)
	require.NoError(t, err)
	require.Equal(t, `{}`, string(body))
	require.Equal(t, map[string]string{
		"content-type": "application/json", "ce-specversion": "1.0", "ce-id": "1", "ce-source": "orders", "ce-type": "order.placed",
		"ce-time": "2026-07-01T12:00:00Z", "ce-eventversion": "1.0", "ce-traceparent": e.Metadata.TraceParent,
		"ce-orderingkey": "5%25%20%22%C3%BC%22",
	}, h)
	h, _, err = e.CloudEventBinary(events.BindingKafka)
	require.NoError(t, err)
	require.Equal(t, `5% "ü"`, h["ce_orderingkey"])
	h, _, err = e.CloudEventBinary(events.BindingAMQP)
	require.NoError(t, err)
	require.Equal(t, "1", h["cloudEvents_id"])
}

func TestFromCloudEventBinary(t *testing.T) {
	t.Parallel()
	headers := func() map[string]string {
		return map[string]string{
			"Content-Type": "application/json; charset=utf-8", "CE-Specversion": "1.0", "Ce-Id": "1", "ce-source": "a", "ce-type": "t",
			"ce-time": "2026-07-01T12:00:00Z", "ce-eventversion": "1.0", "ce-name": `"quoted \"%C3%BC\""`, "ce-empty": "", "X-Other": "ignored",
		}
	}
	e, err := events.FromCloudEventBinary(headers(), []byte(" {\"a\" : 1}\n"))
	require.NoError(t, err)
	require.Equal(t, `{"a" : 1}`, string(e.Data))
	require.Equal(t, map[string]string{"name": `quoted "ü"`, "datacontenttype": "application/json; charset=utf-8"}, e.Metadata.Extra)

	e, err = events.FromCloudEventBinary(headers(), nil)
	require.NoError(t, err)
	require.Equal(t, "null", string(e.Data))

	e, err = events.FromCloudEventBinary(map[string]string{"content-type": "application/cloudevents+json; charset=UTF-8"}, []byte(cloud))
	require.NoError(t, err)
	require.Equal(t, "A-1", e.ID)

	for header, value := range map[string]string{"ce-id": "", "ce-source": "%zz", "ce-type": "%ff", "ce-time": "now", "content-type": "text/plain"} {
		h := headers()
		for k := range h {
			if strings.EqualFold(k, header) {
				delete(h, k)
			}
		}
		h[header] = value
		_, err := events.FromCloudEventBinary(h, []byte(`{}`))
		field := strings.TrimPrefix(header, "ce-")
		if field == "content-type" {
			field = "datacontenttype"
		}
		require.Equal(t, field, refused(t, err).Field)
	}
	_, err = events.FromCloudEventBinary(headers(), []byte("hello"))
	require.Equal(t, "data", refused(t, err).Field)
}

func TestCloudEventWantsURIReference(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"my service", "a<b", "%zz", "http://[::1"} {
		e := minimal()
		e.Source = source
		_, err := e.CloudEvent()
		require.Equal(t, "source", refused(t, err).Field, source)
		_, _, err = e.CloudEventBinary(events.BindingKafka)
		require.Equal(t, "source", refused(t, err).Field, source)
	}
}
