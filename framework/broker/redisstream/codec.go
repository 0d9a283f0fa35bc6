package redisstream

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	stock "github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/headrace-go/headrace/framework/broker/lanes"
)

// The fields of an entry, as the stock marshaller names them.
const (
	fieldUUID     = stock.UUIDHeaderKey
	fieldMetadata = "metadata"
	fieldPayload  = "payload"
)

var marshaller stock.DefaultMarshallerUnmarshaller

// decode turns an entry's fields into a message. Bytes that the stock
// unmarshaller panics over are an error.
func decode(fields map[string]any) (msg *message.Message, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("unmarshal panicked: %v", r)
		}
	}()
	return marshaller.Unmarshal(fields)
}

// rawMessage keeps what can be kept of an entry that decode refuses: the
// payload's bytes, or all fields as JSON where there is no payload.
func rawMessage(id string, fields map[string]any) *message.Message {
	var payload []byte
	if p, ok := fields[fieldPayload].(string); ok {
		payload = []byte(p)
	} else if b, err := json.Marshal(fields); err == nil {
		payload = b
	}
	msg := message.NewMessage(id, payload)
	// The metadata may be whole where something else is missing.
	if read, err := decode(map[string]any{fieldUUID: id, fieldMetadata: fields[fieldMetadata]}); err == nil {
		msg.Metadata = read.Metadata
	}
	return msg
}

// parseID splits a stream id into the milliseconds and the sequence number.
func parseID(id string) lanes.Pos {
	ms, seq, _ := strings.Cut(id, "-")
	hi, _ := strconv.ParseUint(ms, 10, 64)
	lo, _ := strconv.ParseUint(seq, 10, 64)
	return lanes.Pos{Hi: hi, Lo: lo}
}

// timeOf is when Redis accepted the entry.
func timeOf(id string) time.Time { return time.UnixMilli(int64(parseID(id).Hi)).UTC() }
