package nats

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	natsgo "github.com/nats-io/nats.go"

	"github.com/headrace-go/headrace/framework/broker"
)

// Adapter makes "nats" a value of broker.kind for programs that list it. Besides
// the servers' addresses broker.url may hold, behind a question mark: replicas,
// max_bytes and dedup_window (see Config), domain, creds (a file of credentials),
// and ca (a file of certificates to trust).
func Adapter() broker.Adapter {
	return broker.NewAdapter(Name, func(s broker.AdapterSettings) (Config, error) {
		cfg, err := settings(s)
		return cfg.WithDefaults(), err
	}, Open)
}

// settings makes a Config of what configuration says. Errors name parts of the
// URL, never all of it.
func settings(s broker.AdapterSettings) (Config, error) {
	cfg := Config{Prefix: s.Prefix, Retention: s.Retention, Logger: s.Logger}
	servers, query, _ := strings.Cut(s.URL, "?")
	cfg.URL = servers
	values, err := url.ParseQuery(query)
	if err != nil {
		return cfg, errors.New("nats: what follows the question mark of broker.url is no list of key=value")
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values.Get(key)
		var err error
		switch key {
		case "replicas":
			cfg.Replicas, err = strconv.Atoi(value)
		case "max_bytes":
			cfg.MaxBytes, err = strconv.ParseInt(value, 10, 64)
		case "dedup_window":
			cfg.DedupWindow, err = time.ParseDuration(value)
		case "domain":
			cfg.Domain = value
		case "creds":
			if _, err = os.Stat(value); err == nil {
				cfg.Options = append(cfg.Options, natsgo.UserCredentials(value))
			}
		case "ca":
			if _, err = os.Stat(value); err == nil {
				cfg.Options = append(cfg.Options, natsgo.RootCAs(value))
			}
		default:
			err = errors.New("no such setting: use replicas, max_bytes, dedup_window, domain, creds or ca")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("nats: broker.url says %s=%q: %w", key, value, err))
		}
	}
	return cfg, errors.Join(errs...)
}
