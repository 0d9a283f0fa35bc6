package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/headrace-go/headrace/framework/broker"
)

// Adapter makes "kafka" a value of broker.kind for programs that list it.
// broker.url is "kafka://user:password@host:9092,host2:9092"; "kafka+tls://" for
// TLS. Behind a question mark it may hold partitions, replication (see Config),
// sasl (plain, scram-sha-256 or scram-sha-512, the default, where there is a
// user) and ca (a file of certificates to trust).
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
	address, query, _ := strings.Cut(s.URL, "?")
	scheme, rest, found := strings.Cut(address, "://")
	if !found {
		scheme, rest = "kafka", address
	}
	if scheme != "kafka" && scheme != "kafka+tls" {
		return cfg, errors.New("kafka: broker.url begins with another scheme: use kafka://host:9092 or kafka+tls://host:9092")
	}
	user, password := "", ""
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		name, secret, _ := strings.Cut(rest[:i], ":")
		var err1, err2 error
		user, err1 = url.PathUnescape(name)
		password, err2 = url.PathUnescape(secret)
		if err1 != nil || err2 != nil {
			return cfg, errors.New("kafka: user or password in broker.url is not escaped: write a % as %25, an @ as %40")
		}
		rest = rest[i+1:]
	}
	for host := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), ",") {
		if host = strings.TrimSpace(host); host != "" {
			cfg.Brokers = append(cfg.Brokers, host)
		}
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return cfg, errors.New("kafka: what follows the question mark of broker.url is no list of key=value")
	}
	mechanism, trusted := "scram-sha-512", (*x509.CertPool)(nil)
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values.Get(key)
		var err error
		switch key {
		case "partitions":
			cfg.Partitions, err = strconv.Atoi(value)
		case "replication":
			cfg.ReplicationFactor, err = strconv.Atoi(value)
		case "sasl":
			mechanism = value
			if user == "" {
				err = errors.New("there is no user: write kafka://user:password@host")
			}
		case "ca":
			trusted, err = certificates(value)
			if err == nil && scheme != "kafka+tls" {
				err = errors.New("without TLS there is nothing to trust: write kafka+tls://host")
			}
		default:
			err = errors.New("no such setting: use partitions, replication, sasl or ca")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("kafka: broker.url says %s=%q: %w", key, value, err))
		}
	}
	if scheme == "kafka+tls" {
		cfg.Options = append(cfg.Options, kgo.DialTLSConfig(&tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}))
	}
	if user != "" {
		m, err := saslMechanism(mechanism, user, password)
		if err != nil {
			errs = append(errs, err)
		} else {
			cfg.Options = append(cfg.Options, kgo.SASL(m))
		}
	}
	return cfg, errors.Join(errs...)
}

func saslMechanism(name, user, password string) (sasl.Mechanism, error) {
	switch name {
	case "plain":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "scram-sha-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	}
	return nil, fmt.Errorf("kafka: broker.url says sasl=%q: use plain, scram-sha-256 or scram-sha-512", name)
}

func certificates(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("the file holds no certificate in PEM form")
	}
	return pool, nil
}
