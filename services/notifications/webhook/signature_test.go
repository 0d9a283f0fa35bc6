package webhook_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/services/notifications/webhook"
)

var (
	at   = time.Unix(1767225600, 0)
	body = []byte(`{"event_type":"order.confirmed"}`)
)

func TestVerify(t *testing.T) {
	t.Parallel()
	good := webhook.Sign(body, at, "new", "old")
	for name, tc := range map[string]struct {
		header  string
		body    []byte
		now     time.Time
		secrets []string
		want    error
	}{
		"new secret":                   {good, body, at, []string{"new"}, nil},
		"old secret while replacing":   {good, body, at, []string{"old"}, nil},
		"receiver holds both":          {webhook.Sign(body, at, "new"), body, at, []string{"old", "new"}, nil},
		"unknown scheme beside it":     {good + ",v2=zz", body, at, []string{"new"}, nil},
		"at the end of the window":     {good, body, at.Add(webhook.DefaultTolerance), []string{"new"}, nil},
		"replayed after the window":    {good, body, at.Add(webhook.DefaultTolerance + time.Second), []string{"new"}, webhook.ErrOutsideWindow},
		"from the future":              {good, body, at.Add(-webhook.DefaultTolerance - time.Second), []string{"new"}, webhook.ErrOutsideWindow},
		"time moved into the window":   {strings.Replace(good, "t=1767225600", "t=1767225900", 1), body, at.Add(5 * time.Minute), []string{"new"}, webhook.ErrMismatch},
		"changed body":                 {good, []byte(`{"event_type":"order.cancelled"}`), at, []string{"new"}, webhook.ErrMismatch},
		"another secret":               {good, body, at, []string{"other"}, webhook.ErrMismatch},
		"empty secret":                 {webhook.Sign(body, at, "new"), body, at, []string{""}, webhook.ErrMismatch},
		"no secret":                    {good, body, at, nil, webhook.ErrMismatch},
		"empty header":                 {"", body, at, []string{"new"}, webhook.ErrMalformed},
		"no time":                      {strings.SplitN(good, ",", 2)[1], body, at, []string{"new"}, webhook.ErrMalformed},
		"two times":                    {"t=1," + good, body, at, []string{"new"}, webhook.ErrMalformed},
		"no signature":                 {"t=1767225600", body, at, []string{"new"}, webhook.ErrMalformed},
		"a short signature":            {"t=1767225600,v1=00ff", body, at, []string{"new"}, webhook.ErrMalformed},
		"time that is no number":       {strings.Replace(good, "t=1767225600", "t=now", 1), body, at, []string{"new"}, webhook.ErrMalformed},
		"a flood of signatures":        {"t=1" + strings.Repeat(",v1="+strings.Repeat("0", 64), 9), body, at, []string{"new"}, webhook.ErrMalformed},
		"signature made of no secrets": {webhook.Sign(body, at, ""), body, at, []string{""}, webhook.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := webhook.Verify(tc.header, tc.body, tc.now, 0, tc.secrets...)
			if tc.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, tc.want)
		})
	}
}

func ExampleVerify() {
	body := []byte(`{"event_type":"order.confirmed"}`)
	now := time.Unix(1767225600, 0)
	header := webhook.Sign(body, now, "a shared secret")
	fmt.Println(header)
	fmt.Println(webhook.Verify(header, body, now.Add(time.Minute), 0, "a shared secret"))
	fmt.Println(webhook.Verify(header, body, now.Add(time.Hour), 0, "a shared secret"))
	// Output:
	// t=1767225600,v1=49c1fc9b63aa5768a36e371110cbc78b0f22bb404e193a4f5555d4645262f65a
	// <nil>
	// webhook: time outside the replay window
}
