package connect

import (
	"errors"
	"log/slog"
	"time"

	"github.com/headrace-go/headrace/framework/outbox/pgnotify"
)

// waker listens for other processes' commits and tells them of this one's; an
// App that gets it uses both sides.
type waker struct {
	*pgnotify.Waker
	*pgnotify.Notifier
}

// Close ends the listening side; the telling side ends with its Run. While a
// relay still waits for news Close can't end it, and says so.
func (w waker) Close() error {
	closed := make(chan error, 1)
	go func() { closed <- w.Waker.Close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeTimeout):
		return errors.New("connect: the outbox relay still listens to the database: close the connections after the App's Run has returned")
	}
}

const closeTimeout = 2 * time.Second

// openWaker readies LISTEN and NOTIFY. Neither connects before it is used.
func (c *Connections) openWaker(dsn string, logger *slog.Logger) error {
	cfg := pgnotify.Config{DSN: dsn, Logger: logger}
	listen, listenErr := pgnotify.NewWaker(cfg)
	tell, tellErr := pgnotify.NewNotifier(cfg)
	if err := errors.Join(listenErr, tellErr); err != nil {
		return err
	}
	w := waker{Waker: listen, Notifier: tell}
	c.onClose(w.Close)
	c.Waker = w
	return nil
}
