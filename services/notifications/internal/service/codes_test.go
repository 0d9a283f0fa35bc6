package service

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/frameworktest"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
	notificationevents "github.com/headrace-go/headrace/pkg/events/notifications"
	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
	"github.com/headrace-go/headrace/services/notifications/internal/outbound"
)

const codeBodyText = `{"channel":"sms","recipient":"+441632960961","language":"de","purpose":"login"}`

var sixDigits = regexp.MustCompile(`\b\d{6}\b`)

// code asks for a code and reads it from the message.
func (h *harness) code(t *testing.T) (id, digits string) {
	t.Helper()
	res := h.Call(http.MethodPost, "/v1/codes", codeBodyText)
	require.Equal(t, http.StatusAccepted, res.Status, "%s", res.Body)
	sent := frameworktest.Data[notificationevents.SentData](t, h.next("notification.sent"))
	require.Equal(t, "notification.code_requested", sent.EventType)
	require.Empty(t, sent.OrderID)
	text, err := os.ReadFile(filepath.Join(h.folder, sent.ProviderReference))
	require.NoError(t, err)
	require.Contains(t, string(text), "Ihr Code")
	digits = sixDigits.FindString(string(text))
	require.NotEmpty(t, digits)
	require.NotContains(t, string(res.Body), digits)
	return res.Object(t)["id"].(string), digits
}

func (h *harness) verify(t *testing.T, id, digits, purpose string) bool {
	t.Helper()
	body, err := json.Marshal(map[string]string{"id": id, "code": digits, "purpose": purpose})
	require.NoError(t, err)
	res := h.Call(http.MethodPost, "/v1/codes/verify", string(body))
	require.Equal(t, http.StatusOK, res.Status, "%s", res.Body)
	return res.Object(t)["verified"].(bool)
}

func other(digits string) string {
	n, _ := strconv.Atoi(digits)
	return strconv.Itoa(100_000 + (n+1)%900_000)
}

func TestOneTimeCodeVerifiesOnce(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, setup{})
		emitted := h.Listen("notification.code_requested")
		id, digits := h.code(t)
		var sealed []byte
		require.NoError(t, db.QueryRowContext(t.Context(), `SELECT sealed FROM notification_codes`).Scan(&sealed))
		require.Empty(t, sealed, "the digits are forgotten once they are out")
		require.False(t, h.verify(t, id, other(digits), "login"))
		require.False(t, h.verify(t, id, digits, "payout"), "another purpose")
		require.False(t, h.verify(t, events.NewID(), digits, "login"), "another id")
		require.True(t, h.verify(t, id, digits, "login"))
		require.False(t, h.verify(t, id, digits, "login"), "used")

		e := emitted.Next("notification.code_requested")
		require.NotContains(t, string(e.Data), digits)
		require.NotContains(t, string(e.Data), "441632960961")
		require.NotContains(t, h.log.String(), digits)
		require.NotContains(t, h.log.String(), "441632960961")
		n := h.list("")[0]
		require.Equal(t, "+44********61", n["recipient"])
		require.NotContains(t, n, "order_id")
	})
}

func TestOneTimeCodeStandsFewGuesses(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{settings: func(s *Settings) { s.Notifications.Codes.MaxAttempts = 3 }})
	id, digits := h.code(t)
	for range 3 {
		require.False(t, h.verify(t, id, other(digits), "login"))
	}
	require.False(t, h.verify(t, id, digits, "login"), "the right one comes too late")
}

func TestCodesForOneRecipientAreLimited(t *testing.T) {
	t.Parallel()
	frameworktest.EachDB(t, Program().Files, func(t *testing.T, db frameworktest.DB) {
		h := start(t, db, setup{settings: func(s *Settings) { s.Notifications.Codes.Limit = 2 }})
		h.code(t)
		h.code(t)
		res := h.Call(http.MethodPost, "/v1/codes", codeBodyText)
		require.Equal(t, http.StatusTooManyRequests, res.Status)
		seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
		require.NoError(t, err)
		require.InDelta(t, 3600, seconds, 60)
		// Another recipient is not held up.
		res = h.Call(http.MethodPost, "/v1/codes", `{"channel":"email","recipient":"ada@example.com","purpose":"login"}`)
		require.Equal(t, http.StatusAccepted, res.Status)
		h.next("notification.sent")
		h.events.Silent()
	})
}

func TestCodeThatHasExpiredIsNotSent(t *testing.T) {
	t.Parallel()
	db := frameworktest.SQLite(t, Program().Files)
	h := start(t, db, setup{})
	keeper, err := domain.NewCodeKeeper([]byte("local-only-secret-that-protects-nothing"))
	require.NoError(t, err)
	code, err := keeper.Issue(domain.Code{
		ID: "c-1", Channel: domain.SMS, Recipient: "+441632960961", Language: "en", Purpose: "login",
		CreatedAt: time.Now().Add(-time.Hour), ExpiresAt: time.Now().Add(-time.Second),
	})
	require.NoError(t, err)
	store := outbound.NewStore(db.DB, db.Dialect)
	require.NoError(t, sqltx.Run(t.Context(), db.DB, sqltx.Options{Dialect: db.Dialect}, func(ctx context.Context, tx *sql.Tx) error {
		return store.AddCode(ctx, tx, code)
	}))
	h.publish(app.CodeRequested.New("c-1", app.CodeRequestedData{CodeID: "c-1", Channel: "sms"}))
	failed := frameworktest.Data[notificationevents.FailedData](t, h.next("notification.failed"))
	require.Equal(t, domain.ReasonExpired, failed.Reason)
	files, err := os.ReadDir(h.folder)
	require.NoError(t, err)
	require.Empty(t, files)
	res := h.Call(http.MethodPost, "/v1/notifications/"+failed.NotificationID+"/resend", "")
	require.Equal(t, http.StatusConflict, res.Status, "a new code should be asked for")
}

func TestCodesThatAreOffAreNotThere(t *testing.T) {
	t.Parallel()
	h := start(t, frameworktest.SQLite(t, Program().Files), setup{settings: func(s *Settings) { s.Notifications.Codes = Codes{} }})
	require.Equal(t, http.StatusNotFound, h.Call(http.MethodPost, "/v1/codes", codeBodyText).Status)
	require.Equal(t, http.StatusNotFound, h.Call(http.MethodPost, "/v1/codes/verify", `{}`).Status)
}
