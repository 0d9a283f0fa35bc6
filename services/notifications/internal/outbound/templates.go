package outbound

import (
	"embed"
	"fmt"
	htmltemplate "html/template"
	"io/fs"
	"path"
	"strings"
	texttemplate "text/template"

	"github.com/headrace-go/headrace/services/notifications/internal/app"
	"github.com/headrace-go/headrace/services/notifications/internal/domain"
)

// templateFiles holds templates/<channel>/<language>.tmpl. Each file defines,
// for every template, "<name>.text", and for e-mail "<name>.subject" and
// "<name>.html" too. templates/email/layout.html.tmpl is around every html.
//
//go:embed templates/*/*.tmpl
var templateFiles embed.FS

const layoutFile = "layout.html.tmpl"

// Templates renders the embedded templates. It is safe for concurrent use.
type Templates struct {
	brand string
	sets  map[domain.Channel]map[string]templateSet
}

type templateSet struct {
	text *texttemplate.Template
	html *htmltemplate.Template // e-mail only
}

var _ app.Renderer = (*Templates)(nil)

// LoadTemplates parses every embedded template. Brand is the name that messages
// are signed with.
func LoadTemplates(brand string) (*Templates, error) {
	t := &Templates{brand: brand, sets: map[domain.Channel]map[string]templateSet{}}
	files, err := fs.Glob(templateFiles, "templates/*/*.tmpl")
	if err != nil {
		return nil, fmt.Errorf("list the templates: %w", err)
	}
	for _, file := range files {
		if path.Base(file) == layoutFile {
			continue
		}
		channel := domain.Channel(path.Base(path.Dir(file)))
		language := strings.TrimSuffix(path.Base(file), ".tmpl")
		set, err := parseSet(channel, file)
		if err != nil {
			return nil, err
		}
		if t.sets[channel] == nil {
			t.sets[channel] = map[string]templateSet{}
		}
		t.sets[channel][language] = set
	}
	return t, nil
}

func parseSet(channel domain.Channel, file string) (templateSet, error) {
	var set templateSet
	var err error
	// A misspelt field is an error and never "<no value>" in somebody's mail.
	if set.text, err = texttemplate.New("").Option("missingkey=error").ParseFS(templateFiles, file); err != nil {
		return set, fmt.Errorf("parse template file %s: %w", file, err)
	}
	if channel == domain.Email {
		layout := path.Join(path.Dir(file), layoutFile)
		if set.html, err = htmltemplate.New("").Option("missingkey=error").ParseFS(templateFiles, layout, file); err != nil {
			return set, fmt.Errorf("parse template file %s: %w", file, err)
		}
	}
	return set, nil
}

// Has implements app.Renderer.
func (t *Templates) Has(channel domain.Channel, name string) bool {
	set, ok := t.sets[channel][domain.FallbackLanguage]
	return ok && set.text.Lookup(name+".text") != nil
}

// view is what the templates see.
type view struct {
	Brand        string
	Language     string
	OrderID      string
	Amount       string
	Reason       string
	Code         string
	ValidMinutes int
	Subject      string
	Body         htmltemplate.HTML
}

// Render implements app.Renderer.
func (t *Templates) Render(channel domain.Channel, name, language string, v app.View) (app.Content, error) {
	for _, lang := range domain.LanguageChain(language) {
		set, ok := t.sets[channel][lang]
		if !ok || set.text.Lookup(name+".text") == nil {
			continue
		}
		c, err := t.render(set, name, lang, language, v)
		if err != nil {
			return app.Content{}, fmt.Errorf("render template %q for %s in %q: %w", name, channel, lang, err)
		}
		return c, nil
	}
	return app.Content{}, fmt.Errorf("no template %q for channel %s: add it to templates/%s/%s.tmpl", name, channel, channel, domain.FallbackLanguage)
}

func (t *Templates) render(set templateSet, name, lang, wanted string, v app.View) (app.Content, error) {
	// Numbers are written as the text's language writes them, not the wanted
	// one, so that one message does not mix two.
	moneyLang := lang
	if strings.HasPrefix(domain.NormalizeLanguage(wanted), lang) {
		moneyLang = wanted
	}
	data := view{
		Brand: t.brand, Language: lang, OrderID: v.Facts.OrderID, Reason: v.Facts.Reason,
		Code: v.Code, ValidMinutes: v.ValidMinutes,
	}
	if v.Facts.Currency != "" {
		data.Amount = domain.FormatMoney(v.Facts.Amount, v.Facts.Currency, moneyLang)
	}
	var (
		c   app.Content
		err error
	)
	if c.Text, err = runText(set.text, name+".text", data); err != nil {
		return app.Content{}, err
	}
	if set.html == nil {
		c.Text = strings.TrimSpace(c.Text)
		return c, nil
	}
	c.Text = strings.TrimSpace(c.Text) + "\n"
	if c.Subject, err = runText(set.text, name+".subject", data); err != nil {
		return app.Content{}, err
	}
	// One line, whatever an order's id holds.
	c.Subject = strings.Join(strings.Fields(c.Subject), " ")
	var b strings.Builder
	if err := set.html.ExecuteTemplate(&b, name+".html", data); err != nil {
		return app.Content{}, err
	}
	data.Subject, data.Body = c.Subject, htmltemplate.HTML(b.String()) // escaped by the line above
	b.Reset()
	if err := set.html.ExecuteTemplate(&b, "layout", data); err != nil {
		return app.Content{}, err
	}
	c.HTML = b.String()
	return c, nil
}

func runText(t *texttemplate.Template, name string, data view) (string, error) {
	var b strings.Builder
	if err := t.ExecuteTemplate(&b, name, data); err != nil {
		return "", err
	}
	return b.String(), nil
}
