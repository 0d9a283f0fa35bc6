package events

import "time"

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// parseTime reads an RFC 3339 time into UTC.
func parseTime(field string, b []byte) (time.Time, error) {
	var when time.Time
	if !isRFC3339(b) || when.UnmarshalText(b) != nil {
		return time.Time{}, &DecodeError{Code: CodeBadTime, Field: field, Value: clip(string(b))}
	}
	when = when.UTC()
	// An offset can push year 0 or 9999 over the edge of the format, and the
	// zero time is how a producer spells "not set".
	if y := when.Year(); y < 0 || y > 9999 || when.IsZero() {
		return time.Time{}, &DecodeError{Code: CodeBadTime, Field: field, Value: clip(string(b))}
	}
	return when, nil
}

// isRFC3339 checks the shape, which package time doesn't: it lets "T3:04:05", a
// decimal comma and an offset of 25 hours pass. The ranges of the rest it does
// check.
func isRFC3339(b []byte) bool {
	const shape = "0000-00-00T00:00:00"
	if len(b) <= len(shape) {
		return false
	}
	for i := range len(shape) {
		if shape[i] == '0' {
			if !isDigit(b[i]) {
				return false
			}
		} else if b[i] != shape[i] {
			return false
		}
	}
	b = b[len(shape):]
	if b[0] == '.' {
		n := 1
		for n < len(b) && isDigit(b[n]) {
			n++
		}
		if n == 1 {
			return false
		}
		b = b[n:]
	}
	if len(b) == 1 {
		return b[0] == 'Z'
	}
	return len(b) == 6 && (b[0] == '+' || b[0] == '-') && b[3] == ':' &&
		isDigit(b[1]) && isDigit(b[2]) && isDigit(b[4]) && isDigit(b[5]) &&
		string(b[1:3]) < "24" && string(b[4:6]) < "60"
}
