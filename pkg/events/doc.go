// Package events is the vocabulary that services share: the envelope around
// every event, typed events with an explicit registry, the ids and the metadata
// keys. It knows no broker, no database and no Watermill.
//
// # The envelope
//
// An event travels as one JSON object:
//
//	{"id":"0197…","source":"orders","type":"order.placed",
//	 "timestamp":"2026-07-01T12:00:00Z","version":"1.0",
//	 "data":{…},
//	 "metadata":{"correlation_id":"…","causation_id":"…","traceparent":"…",
//	             "tracestate":"…","ordering_key":"…"}}
//
// Decode is tolerant where a producer may grow (unknown fields are ignored,
// unknown metadata is kept in Metadata.Extra) and strict where a consumer would
// otherwise guess: a missing id, type, source, timestamp, version or data, a time
// that is not RFC 3339, a field that occurs twice and anything that is not JSON
// are refused with a *DecodeError that names the field. Nothing is ever replaced
// by a default such as the present time.
//
// The bytes of data reach the consumer exactly as the producer wrote them:
// neither Encode nor Decode reformats, compacts or escapes them. The ids also
// stand in the broker's metadata (Envelope.Headers), so that routing,
// deduplication and tracing need not parse a payload.
//
// # Typed events
//
// A team declares its events as values and registers them where the program is
// wired; there is no global registry:
//
//	var Placed = events.Define[PlacedData]("order.placed", "1.0")
//
// A data type may have a method Validate() error. It is called on the way out
// (Type.New) and on the way in (Type.Decode), which is how a required field is
// declared. Its error must not print what it found: it ends in logs and dead
// letters.
//
// # Versions
//
// A version is MAJOR.MINOR. Fields may be added within one major version, so a
// type accepts every minor version of its own major; another major is refused.
package events
