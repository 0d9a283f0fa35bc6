package httpx_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/httpx"
)

type picky struct{}

func (*picky) UnmarshalJSON(b []byte) error { return fmt.Errorf("%s is not to my taste", b) }

type base struct {
	Base int `json:"base"`
}

func TestBodiesThatCantBeUsed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("f", 100)
	for name, c := range map[string]struct {
		body, media string
		status      int
		field, code string
	}{
		"fine":               {`{"name":"a"}`, "application/json", 0, "", ""},
		"with a charset":     {`{"name":"a"}`, "application/json; charset=utf-8", 0, "", ""},
		"a json dialect":     {`{"name":"a"}`, "application/merge-patch+json", 0, "", ""},
		"null":               {`null`, "application/json", 0, "", ""},
		"text":               {`{"name":"a"}`, "text/plain", 415, "", ""},
		"no media type":      {`{"name":"a"}`, "", 415, "", ""},
		"a broken type":      {`{"name":"a"}`, ";", 415, "", ""},
		"empty":              {``, "application/json", 400, "", ""},
		"cut off":            {`{"name":`, "application/json", 400, "", ""},
		"not json":           {`{name}`, "application/json", 400, "", ""},
		"two values":         {`{}{}`, "application/json", 400, "", ""},
		"a stray bracket":    {`{}]`, "application/json", 400, "", ""},
		"a list":             {`[]`, "application/json", 400, "", ""},
		"own decoder":        {`{"picky":"s3cret"}`, "application/json", 400, "", ""},
		"too large":          {`{"name":"` + strings.Repeat("a", 1000) + `"}`, "application/json", 413, "", ""},
		"unknown":            {`{"nom":"s3cret"}`, "application/json", 422, "nom", "unknown"},
		"unknown and long":   {`{"` + long + `":1}`, "application/json", 422, long[:64], "unknown"},
		"string for number":  {`{"n":"s3cret"}`, "application/json", 422, "n", "wrong_type"},
		"fraction":           {`{"n":1.5}`, "application/json", 422, "n", "wrong_type"},
		"number for string":  {`{"name":7}`, "application/json", 422, "name", "wrong_type"},
		"twice":              {`{"name":"s3cret","n":1,"name":"b"}`, "application/json", 422, "name", "duplicate"},
		"another case":       {`{"Name":"s3cret"}`, "application/json", 422, "Name", "unknown"},
		"twice, by case":     {`{"name":"s3cret","NAME":"b"}`, "application/json", 422, "NAME", "unknown"},
		"twice, deep":        {`{"lines":[{"sku":"a"},{"sku":"a","sku":"b"}]}`, "application/json", 422, "lines.sku", "duplicate"},
		"another case, deep": {`{"lines":[{"Sku":"a"}]}`, "application/json", 422, "lines.Sku", "unknown"},
		"twice in a map":     {`{"tags":{"a":"x","A":"y","a":"z"}}`, "application/json", 422, "tags.a", "duplicate"},
		"a map and a base":   {`{"tags":{"a":"x","A":"y"},"any":{"X":[{}]},"base":1,"lines":[]}`, "application/json", 0, "", ""},
		"deep":               {`{"lines":[{"sku":7}]}`, "application/json", 422, "lines.sku", "wrong_type"},
		"object for a list":  {`{"lines":{}}`, "application/json", 422, "lines", "wrong_type"},
		"string for a share": {`{"share":"s3cret"}`, "application/json", 422, "share", "wrong_type"},
		"string for a flag":  {`{"on":"s3cret"}`, "application/json", 422, "on", "wrong_type"},
	} {
		var in struct {
			Name  string  `json:"name"`
			N     uint8   `json:"n"`
			Share float64 `json:"share"`
			On    bool    `json:"on"`
			Lines []struct {
				SKU string `json:"sku"`
			} `json:"lines"`
			Picky picky             `json:"picky"`
			Tags  map[string]string `json:"tags"`
			Any   any               `json:"any"`
			base
		}
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.media)
		w := httptest.NewRecorder()
		err := httpx.DecodeJSON(w, r, &in, 500)
		if c.status == 0 {
			require.NoError(t, err, name)
			continue
		}
		httpx.WriteError(w, r, err)
		require.Equal(t, c.status, w.Code, name)
		require.NotContains(t, w.Body.String(), "s3cret", name)
		var p *httpx.Problem
		require.ErrorAs(t, err, &p, name)
		require.NotEmpty(t, p.Detail, name)
		if c.field == "" {
			require.Empty(t, p.Fields, name)
			continue
		}
		require.Len(t, p.Fields, 1, name)
		require.Equal(t, c.field, p.Fields[0].Field, name)
		require.Equal(t, c.code, p.Fields[0].Code, name)
		require.NotEmpty(t, p.Fields[0].Message, name)
	}
}

func TestABodyThatMayBeLeftOut(t *testing.T) {
	t.Parallel()
	var in struct {
		Name string `json:"name"`
	}
	there, err := httpx.DecodeOptionalJSON(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", http.NoBody), &in, 0)
	require.NoError(t, err)
	require.False(t, there)
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(`{"name":"a"}`))
	r.Header.Set("Content-Type", "application/json")
	there, err = httpx.DecodeOptionalJSON(httptest.NewRecorder(), r, &in, 0)
	require.NoError(t, err)
	require.True(t, there)
	require.Equal(t, "a", in.Name)
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, errors.New("connection reset") }
func (brokenBody) Close() error             { return nil }

func TestABodyThatBreaksOff(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequest(http.MethodPost, "/", brokenBody{})
	var p *httpx.Problem
	require.ErrorAs(t, httpx.DecodeJSON(httptest.NewRecorder(), r, &struct{}{}, 0), &p)
	require.Equal(t, "malformed", string(p.Code))
}

func TestQueryTellsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	q := httpx.ParseQuery(httptest.NewRequest(http.MethodGet, "/?customer_id=%00&state=paid&limit=0&cursor=MS4xLg&page=x", nil))
	q.ID("customer_id", 10)
	httpx.OneOf(q, "state", "placed", "confirmed", "cancelled")
	require.Equal(t, 20, q.Int("limit", 1, 100, 20))
	require.Equal(t, 1, q.Int("page", 1, 9, 1))
	require.Zero(t, q.Cursor("cursor"))
	var p *httpx.Problem
	require.ErrorAs(t, q.Err(), &p)
	require.Equal(t, []httpx.FieldError{
		{Field: "customer_id", Code: "invalid", Message: "must be printable ASCII without blanks, of at most 10 bytes"},
		{Field: "state", Code: "invalid", Message: "must be placed, confirmed or cancelled"},
		{Field: "limit", Code: "invalid", Message: "must be a number from 1 to 100"},
		{Field: "page", Code: "invalid", Message: "must be a number from 1 to 9"},
		{Field: "cursor", Code: "invalid", Message: "must be the next_cursor of an earlier page"},
	}, p.Fields)

	q = httpx.ParseQuery(httptest.NewRequest(http.MethodGet, "/?stat=placed&limit=5&Limit=7&"+strings.Repeat("x", 100)+"=1", nil))
	require.Equal(t, 5, q.Int("limit", 1, 100, 20))
	require.Equal(t, "", q.String("state"))
	require.ErrorAs(t, q.Err(), &p)
	require.Equal(t, []httpx.FieldError{
		{Field: "Limit", Code: "unknown", Message: "is not a parameter of this request"},
		{Field: "stat", Code: "unknown", Message: "is not a parameter of this request"},
		{Field: strings.Repeat("x", 64), Code: "unknown", Message: "is not a parameter of this request"},
	}, p.Fields)
	require.Equal(t, framework.CodeInvalid, p.Code)

	q = httpx.ParseQuery(httptest.NewRequest(http.MethodGet, "/", nil))
	require.Empty(t, q.ID("customer_id", 10)+httpx.OneOf(q, "state", "placed"))
	require.Equal(t, 7, q.Int("limit", 1, 100, 7))
	require.NoError(t, q.Err())
}

func TestIDs(t *testing.T) {
	t.Parallel()
	for id, valid := range map[string]bool{
		"o-1": true, "12345": true, "123456": false, "": false, "a b": false, "a\x00": false, "a\x7f": false, "é": false,
	} {
		require.Equal(t, valid, httpx.ValidID(id, 5), "%q", id)
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.SetPathValue("id", id)
		got, ok := httpx.PathID(r, "id", 5)
		require.Equal(t, valid, ok, "%q", id)
		require.Equal(t, id, got)
	}
}

func TestCursorsComeBack(t *testing.T) {
	t.Parallel()
	c := httpx.Cursor{At: time.Date(2026, 5, 4, 3, 2, 1, 987_654_000, time.UTC), ID: "ord.1"}
	got, err := httpx.ParseCursor(c.String())
	require.NoError(t, err)
	require.Equal(t, c, got)
	for _, forged := range []string{"!", "MS4xLg", "Mi4xLmE", "MS54LmE", "MQ", c.String() + "AAAA"} {
		_, err := httpx.ParseCursor(forged)
		require.Error(t, err, forged)
		require.NotContains(t, err.Error(), forged)
	}
}

func ExampleParseQuery() {
	r := httptest.NewRequest(http.MethodGet, "/v1/orders?state=lost&limit=5", nil)
	q := httpx.ParseQuery(r)
	state, limit := httpx.OneOf(q, "state", "placed", "shipped"), q.Int("limit", 1, 100, 20)
	if err := q.Err(); err != nil {
		var p *httpx.Problem
		errors.As(err, &p)
		fmt.Println(p.Detail, p.Fields)
		return
	}
	fmt.Println(state, limit)
	// Output: the query can't be used [{state invalid must be placed or shipped}]
}
