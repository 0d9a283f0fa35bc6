package httpx_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/httpx"
)

func TestEveryCodeHasItsStatus(t *testing.T) {
	t.Parallel()
	for code, status := range map[framework.Code]int{
		framework.CodeInvalid: 400, framework.CodeUnauthenticated: 401, framework.CodeForbidden: 403, framework.CodeNotFound: 404,
		framework.CodeConflict: 409, framework.CodeTooLarge: 413, framework.CodeUnprocessable: 422, framework.CodeRateLimited: 429,
		framework.CodeInternal: 500, framework.CodeUnavailable: 503, "invented": 500,
	} {
		w := httptest.NewRecorder()
		httpx.WriteError(w, httptest.NewRequest(http.MethodGet, "/", nil), fmt.Errorf("op: %w", framework.Errorf(code, "why")))
		require.Equal(t, status, w.Code, code)
		var p map[string]any
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Equal(t, "about:blank", p["type"])
		require.InDelta(t, status, p["status"], 0)
		require.Equal(t, string(code), p["code"])
		if status < 500 {
			require.Equal(t, "op: why", p["detail"])
		} else {
			require.NotContains(t, w.Body.String(), "why")
		}
	}
}

func TestAnAnswerThatCantBeEncoded(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	require.Error(t, httpx.WriteJSON(w, http.StatusOK, func() {}))
	require.Empty(t, w.Body.String(), "nothing was sent yet, so the caller can still answer")
}

func ExampleHandler() {
	h := httpx.Handler(func(w http.ResponseWriter, r *http.Request) error {
		var in struct {
			Quantity int `json:"quantity"`
		}
		if err := httpx.DecodeJSON(w, r, &in, 0); err != nil {
			return err
		}
		if in.Quantity < 1 {
			return &framework.Error{Code: framework.CodeInvalid, Op: "order", Err: errors.New("quantity must be 1 or more")}
		}
		return httpx.WriteJSON(w, http.StatusCreated, in)
	})
	for _, body := range []string{`{"quantity":2}`, `{"quantity":0}`, `{"quantity":"two"}`} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader(body)))
		fmt.Print(w.Code, " ", w.Body.String())
	}
	// Output:
	// 201 {"quantity":2}
	// 400 {"type":"about:blank","title":"Bad Request","status":400,"detail":"order: quantity must be 1 or more","code":"invalid"}
	// 400 {"type":"about:blank","title":"Bad Request","status":400,"detail":"quantity is a JSON string: it must be int","code":"invalid"}
}
