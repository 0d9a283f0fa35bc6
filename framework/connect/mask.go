package connect

import (
	"errors"
	"net/url"
	"strings"

	"github.com/headrace-go/headrace/framework/config"
)

// mask returns err, or an error with its text cleaned where a secret stands in
// it: drivers like to repeat what they were given. A cleaned error unwraps to
// nothing, since its chain would tell.
func mask(err error, secrets ...string) error {
	text := err.Error()
	clean := text
	for _, s := range secrets {
		for _, form := range []string{s, url.QueryEscape(s), url.PathEscape(s)} {
			if form != "" {
				clean = strings.ReplaceAll(clean, form, config.Redacted)
			}
		}
	}
	if clean == text {
		return err
	}
	return errors.New(clean)
}

// shown is a URL as an error may show it, and the secrets in it.
func shown(raw string) (safe string, secrets []string) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return config.Redacted, []string{raw}
	}
	secrets = []string{raw}
	if u.User != nil {
		if password, ok := u.User.Password(); ok {
			secrets = append(secrets, password)
		}
		u.User = url.User(u.User.Username())
	}
	u.RawQuery, u.Fragment = "", "" // a password may stand there too
	return u.String(), secrets
}
