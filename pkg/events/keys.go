package events

// Keys of the broker metadata that every event carries (Envelope.Headers). The
// ones that are also entries of the envelope's metadata have the same name
// there.
const (
	KeyID          = "event_id"
	KeyType        = "event_type"
	KeySource      = "event_source"
	KeyVersion     = "event_version"
	KeyTime        = "event_time"
	KeyCorrelation = "correlation_id"
	KeyCausation   = "causation_id"
	KeyTraceParent = "traceparent"
	KeyTraceState  = "tracestate"
	KeyOrdering    = "ordering_key"
)

const headerCount = 10

// Names of the envelope's own fields.
const (
	fieldID        = "id"
	fieldSource    = "source"
	fieldType      = "type"
	fieldTimestamp = "timestamp"
	fieldVersion   = "version"
	fieldData      = "data"
	fieldMetadata  = "metadata"
)

func isMetadataKey(name string) bool {
	switch name {
	case KeyCorrelation, KeyCausation, KeyTraceParent, KeyTraceState, KeyOrdering:
		return true
	}
	return false
}
