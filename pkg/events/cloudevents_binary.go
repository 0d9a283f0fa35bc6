package events

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// Binding is a protocol binding of CloudEvents: how binary mode writes
// attributes into a message's headers.
type Binding int

const (
	// BindingHTTP: "ce-" before the name, values percent-encoded.
	BindingHTTP Binding = iota
	// BindingKafka: "ce_" before the name, values as they are.
	BindingKafka
	// BindingAMQP: "cloudEvents_" before the name, values as they are. That
	// spelling, and not the older "cloudEvents:", is what JMS can carry too.
	BindingAMQP
)

const headerContentType = "content-type"

func (b Binding) prefix() string {
	switch b {
	case BindingKafka:
		return "ce_"
	case BindingAMQP:
		return "cloudEvents_"
	default:
		return "ce-"
	}
}

// CloudEventBinary writes the event as a binary-mode CloudEvent 1.0: attributes
// as headers, Data as the body. The content type stands under "content-type";
// all header names are those of the binding. The mapping and the errors are
// those of CloudEvent.
func (e Envelope) CloudEventBinary(b Binding) (headers map[string]string, body []byte, err error) {
	attrs, data, err := e.cloudAttributes()
	if err != nil {
		return nil, nil, err
	}
	headers = make(map[string]string, len(attrs))
	for _, a := range attrs {
		value := a.value
		if a.name == ceContentType {
			headers[headerContentType] = value
			continue
		}
		if b == BindingHTTP {
			value = percentEncode(value)
		}
		headers[b.prefix()+a.name] = value
	}
	return headers, data, nil
}

// FromCloudEventBinary reads a binary-mode CloudEvent. It takes the headers of
// every Binding, in any letter case, and ignores those that are no attributes; a
// body of type CloudEventContentType is read as FromCloudEvent does. An empty
// body is data null. Otherwise the rules are those of FromCloudEvent. Raw returns
// the body.
func FromCloudEventBinary(headers map[string]string, body []byte, opts ...CloudEventOption) (Envelope, error) {
	r := newCloudReader(opts)
	for key, value := range headers {
		key = strings.ToLower(key)
		if key == headerContentType {
			media := strings.TrimSpace(strings.ToLower(value))
			media, _, _ = strings.Cut(media, ";")
			switch strings.TrimSpace(media) {
			case CloudEventContentType:
				return FromCloudEvent(body, opts...)
			case "":
				continue
			}
			if err := r.put(ceContentType, value); err != nil {
				return Envelope{}, err
			}
			continue
		}
		name, percent, ok := attributeOf(key)
		if !ok || name == ceContentType || name == ceData {
			continue
		}
		if percent {
			decoded, ok := percentDecode(value)
			if !ok {
				return Envelope{}, &DecodeError{Code: CodeInvalid, Field: clip(name), Value: clip(strings.ToValidUTF8(value, "\uFFFD")), Err: errors.New("bad percent-encoding")}
			}
			value = decoded
		}
		if !utf8.ValidString(value) {
			return Envelope{}, &DecodeError{Code: CodeInvalid, Field: clip(name), Value: clip(strings.ToValidUTF8(value, "\uFFFD")), Err: errNotUTF8}
		}
		if value == "" {
			continue
		}
		if err := r.put(name, value); err != nil {
			return Envelope{}, err
		}
	}
	r.data = body
	return r.envelope(body)
}

// attributeOf strips a binding's prefix from a lower-case header name.
func attributeOf(key string) (name string, percent, ok bool) {
	if name, ok = strings.CutPrefix(key, "ce-"); ok {
		return name, true, true
	}
	for _, prefix := range [...]string{"ce_", "cloudevents_", "cloudevents:"} {
		if name, ok = strings.CutPrefix(key, prefix); ok {
			return name, false, true
		}
	}
	return "", false, false
}

// percentEncode follows the HTTP binding: blank, quote, percent and all that is
// not printable ASCII.
func percentEncode(s string) string {
	const hex = "0123456789ABCDEF"
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		clean = isHeaderSafe(s[i])
	}
	if clean {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for i := 0; i < len(s); i++ {
		if c := s[i]; isHeaderSafe(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&0xf])
		}
	}
	return string(b)
}

func isHeaderSafe(c byte) bool { return c > 0x20 && c < 0x7f && c != '"' && c != '%' }

// percentDecode follows the HTTP binding: a quoted string is unquoted first.
func percentDecode(s string) (string, bool) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		quoted := s[1 : len(s)-1]
		b := make([]byte, 0, len(quoted))
		for i := 0; i < len(quoted); i++ {
			if quoted[i] == '\\' && i+1 < len(quoted) {
				i++
			}
			b = append(b, quoted[i])
		}
		s = string(b)
	}
	if !strings.Contains(s, "%") {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
			return "", false
		}
		b = append(b, unhex(s[i+1])<<4|unhex(s[i+2]))
		i += 2
	}
	return string(b), true
}

func unhex(c byte) byte {
	switch {
	case c >= 'a':
		return c - 'a' + 10
	case c >= 'A':
		return c - 'A' + 10
	default:
		return c - '0'
	}
}
