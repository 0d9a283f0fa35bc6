package sqs

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// closable is a body that has nothing left once it is closed, as the SDK's.
type closable struct {
	io.Reader
	closed bool
}

func (c *closable) Read(p []byte) (int, error) {
	if c.closed {
		return 0, io.ErrClosedPipe
	}
	return c.Reader.Read(p)
}

func (c *closable) Close() error {
	c.closed = true
	return nil
}

type keepRequest struct{ got *http.Request }

func (k *keepRequest) Do(r *http.Request) (*http.Response, error) {
	k.got = r
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// The transport may still read a body after the SDK has closed its own.
func TestABodyOutlivesItsClose(t *testing.T) {
	t.Parallel()
	keep := &keepRequest{}
	body := &closable{Reader: strings.NewReader("hello")}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://example.invalid", body)
	require.NoError(t, err)
	resp, err := wholeBodies{keep}.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, req.Body.Close())
	for range 2 {
		got, err := io.ReadAll(keep.got.Body)
		require.NoError(t, err)
		require.Equal(t, "hello", string(got))
		keep.got.Body, err = keep.got.GetBody()
		require.NoError(t, err)
	}
	req.Body = nil
	resp, err = wholeBodies{keep}.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Nil(t, keep.got.Body)
}
