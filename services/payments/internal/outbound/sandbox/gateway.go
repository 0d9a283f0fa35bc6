// Package sandbox is a payment gateway that moves no money. It answers as its
// documented tokens ask, and keeps a ledger of every request in tables of its
// own, written in transactions of its own. So the ledger is to the service what
// a provider's books are: it survives the service's crash, and shows whether an
// order was charged twice.
package sandbox

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/framework/migrate"
	"github.com/headrace-go/headrace/framework/sqltx"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/payments/internal/app"
	"github.com/headrace-go/headrace/services/payments/internal/domain"
)

//go:embed migrations/*/*.sql
var migrations embed.FS

// Config says where the ledger is and how the sandbox behaves. The zero value
// of a field means its default, unless it is required.
type Config struct {
	// DB and Dialect are where the ledger's tables are. Required.
	DB      *sql.DB
	Dialect sqltx.Dialect
	// Timeout ends a request that gets no answer. Default 5 s.
	Timeout time.Duration
	// Slow is how long TokenSlow takes. Default 2 s.
	Slow time.Duration
	// RetryAfter is what TokenBusy asks for. Default 1 s.
	RetryAfter time.Duration
	// Logger receives a line for each migration. Default slog.Default().
	Logger *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// WithDefaults returns c with its defaults filled in.
func (c Config) WithDefaults() Config {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Slow == 0 {
		c.Slow = DefaultSlow
	}
	if c.RetryAfter == 0 {
		c.RetryAfter = DefaultRetryAfter
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Validate reports every field that can't work, by name and remedy.
func (c Config) Validate() error {
	var errs []error
	if c.DB == nil {
		errs = append(errs, errors.New("sandbox: DB is nil: the ledger needs a database"))
	}
	if err := c.Dialect.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("sandbox: %w", err))
	}
	if c.Timeout < 0 || c.Slow < 0 || c.RetryAfter < 0 {
		errs = append(errs, fmt.Errorf("sandbox: Timeout %s, Slow %s, RetryAfter %s: none may be negative", c.Timeout, c.Slow, c.RetryAfter))
	}
	return errors.Join(errs...)
}

// Gateway is app.Gateway over the ledger. It is safe for concurrent use, also by
// several processes on one database.
type Gateway struct {
	cfg Config
}

var _ app.Gateway = (*Gateway)(nil)

// Open creates the ledger's tables where they are missing and returns the
// gateway. It does not own cfg.DB.
func Open(ctx context.Context, cfg Config) (*Gateway, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	files, err := fs.Sub(migrations, "migrations/"+string(cfg.Dialect))
	if err != nil {
		return nil, fmt.Errorf("sandbox: migrations for %s: %w", cfg.Dialect, err)
	}
	if err := migrate.Up(ctx, cfg.DB, cfg.Dialect, files, migrate.Options{Table: "sandbox_schema_version", Logger: cfg.Logger}); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	return &Gateway{cfg: cfg}, nil
}

// Errors that the sandbox answers with on purpose.
var (
	ErrUnavailable = errors.New("sandbox: the provider is unavailable")
	ErrBusy        = errors.New("sandbox: the provider asks to come back later")
	ErrAnswerLost  = errors.New("sandbox: the connection was lost before the answer")
	ErrInvalid     = errors.New("sandbox: invalid request")
)

// Charge does what the token asks for and writes it down. The same key again
// gets the first outcome.
func (g *Gateway) Charge(ctx context.Context, req app.ChargeRequest) (app.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	defer cancel()
	b := behaviourOf(req.Token)
	if b.invalid {
		return app.Receipt{}, framework.Permanent(fmt.Errorf("%w: charge of order %s", ErrInvalid, req.OrderID))
	}
	if b.slow {
		if err := wait(ctx, g.cfg.Slow); err != nil {
			return app.Receipt{}, err
		}
	}
	var c Charge
	var open bool
	err := g.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		now := g.now()
		if err := g.insertCharge(ctx, tx, Charge{
			Key: req.Key, Reference: "sandbox_ch_" + events.NewID(), OrderID: req.OrderID, Amount: money(req.Amount),
			State: stateOpen, CreatedAt: now,
		}); err != nil {
			return err
		}
		var err error
		if c, err = g.countRequest(ctx, tx, "charge_requests", req.Key, now); err != nil {
			return err
		}
		if c.OrderID == "" { // voided before any charge: now the books know whose it was
			c.OrderID, c.Amount = req.OrderID, money(req.Amount)
			if err := g.setOrder(ctx, tx, c); err != nil {
				return err
			}
		}
		if open = c.State == stateOpen; !open || b.silent || c.ChargeRequests <= b.failures {
			return nil
		}
		c.State, c.DeclineReason = stateCaptured, b.declines
		if b.declines != "" {
			c.State = stateDeclined
		}
		return g.setState(ctx, tx, c, now)
	})
	if err != nil {
		return app.Receipt{}, fmt.Errorf("sandbox: charge: %w", err)
	}
	if c.Amount != money(req.Amount) || c.OrderID != req.OrderID {
		return app.Receipt{}, framework.Permanent(fmt.Errorf("%w: key %q was used for another charge", ErrInvalid, req.Key))
	}
	switch {
	case c.State == stateOpen && b.silent:
		<-ctx.Done()
		return app.Receipt{}, fmt.Errorf("sandbox: charge: no answer: %w", ctx.Err())
	case c.State == stateOpen && b.asksToWait:
		return app.Receipt{}, framework.RetryAfter(ErrBusy, g.cfg.RetryAfter)
	case c.State == stateOpen:
		return app.Receipt{}, ErrUnavailable
	case c.State == stateDeclined:
		return app.Receipt{}, &app.DeclinedError{Reason: c.DeclineReason}
	case c.State == stateVoided:
		return app.Receipt{}, app.ErrVoided
	case open && b.loses:
		return app.Receipt{}, ErrAnswerLost
	}
	return app.Receipt{Reference: c.Reference}, nil
}

// Void ends the key, unless it was captured.
func (g *Gateway) Void(ctx context.Context, chargeKey string) (app.Receipt, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	defer cancel()
	var c Charge
	err := g.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		now := g.now()
		if err := g.insertCharge(ctx, tx, Charge{
			Key: chargeKey, Reference: "sandbox_ch_" + events.NewID(), State: stateOpen, CreatedAt: now,
		}); err != nil {
			return err
		}
		var err error
		if c, err = g.countRequest(ctx, tx, "void_requests", chargeKey, now); err != nil || c.State != stateOpen {
			return err
		}
		c.State = stateVoided
		return g.setState(ctx, tx, c, now)
	})
	if err != nil {
		return app.Receipt{}, false, fmt.Errorf("sandbox: void: %w", err)
	}
	if c.State == stateCaptured || c.State == stateRefunded {
		return app.Receipt{Reference: c.Reference}, true, nil
	}
	return app.Receipt{}, false, nil
}

// Refund gives a captured charge back. The same key again gets the same
// receipt.
func (g *Gateway) Refund(ctx context.Context, req app.RefundRequest) (app.Receipt, error) {
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	defer cancel()
	var reference string
	err := g.tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		now := g.now()
		c, err := g.lockByReference(ctx, tx, req.Charge, now)
		if errors.Is(err, sql.ErrNoRows) {
			return framework.Permanent(fmt.Errorf("%w: refund of the unknown charge %q", ErrInvalid, req.Charge))
		}
		if err != nil {
			return err
		}
		added, err := g.insertRefund(ctx, tx, req, "sandbox_re_"+events.NewID(), now)
		if err != nil {
			return err
		}
		var charge string
		if reference, charge, err = g.countRefund(ctx, tx, req.Key, now); err != nil {
			return err
		}
		switch {
		case charge != req.Charge:
			return framework.Permanent(fmt.Errorf("%w: key %q was used for another refund", ErrInvalid, req.Key))
		case !added:
			return nil
		case c.Amount != money(req.Amount):
			return framework.Permanent(fmt.Errorf("%w: refund of %s from a charge of %d %s", ErrInvalid, req.Amount, c.Amount.Amount, c.Amount.Currency))
		case c.State != stateCaptured:
			return framework.Permanent(fmt.Errorf("%w: refund of a charge that is %s", ErrInvalid, c.State))
		}
		c.State = stateRefunded
		return g.setState(ctx, tx, c, now)
	})
	if err != nil {
		return app.Receipt{}, fmt.Errorf("sandbox: refund: %w", err)
	}
	return app.Receipt{Reference: reference}, nil
}

func (g *Gateway) tx(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	return sqltx.Run(ctx, g.cfg.DB, sqltx.Options{Dialect: g.cfg.Dialect}, fn)
}

func (g *Gateway) now() int64 { return g.cfg.Now().UnixMicro() }

func money(m domain.Money) events.Money {
	return events.Money{Amount: m.Amount, Currency: m.Currency}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sandbox: no answer: %w", ctx.Err())
	}
}
