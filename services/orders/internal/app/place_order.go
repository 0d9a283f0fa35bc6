package app

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/headrace-go/headrace/framework"
	"github.com/headrace-go/headrace/pkg/events"
	"github.com/headrace-go/headrace/services/orders/internal/domain"
)

// PlaceOrder places orders, each once however often its request is sent.
type PlaceOrder struct {
	// Tx, Orders and Keys are required.
	Tx     Transactor
	Orders Orders
	Keys   Keys
	// Rules are the shop's limits.
	Rules domain.Rules
	// KeyRetention is how long an idempotency key is remembered.
	KeyRetention time.Duration
	Clock        Clock
}

// Placing is the outcome of a request to place an order.
type Placing struct {
	// Order is the order as it was placed.
	Order domain.Order
	// Replayed tells that an earlier request with the same key placed it.
	Replayed bool
}

// Place places the order and emits order.placed. With a key that is not empty,
// the same request returns the order that it placed the first time; another
// request with that key is ErrKeyReused. A request that breaks the rules is a
// *domain.ValidationError and uses up no key.
func (p PlaceOrder) Place(ctx context.Context, key string, req domain.Request) (Placing, error) {
	now := p.Clock.now()
	order, err := domain.Place(events.NewID(), req, p.Rules, now)
	if err != nil {
		return Placing{}, err
	}
	want := Key{
		Value: key, Fingerprint: fingerprint(req), OrderID: order.ID,
		CreatedAt: now, ExpiresAt: now.Add(p.KeyRetention),
	}
	var earlier string
	err = p.Tx.Tx(ctx, func(ctx context.Context, tx *sql.Tx) error {
		earlier = ""
		if key != "" {
			held, fresh, err := p.Keys.Claim(ctx, tx, want, now)
			if err != nil {
				return err
			}
			if !fresh {
				if held.Fingerprint != want.Fingerprint {
					return ErrKeyReused
				}
				earlier = held.OrderID
				return nil
			}
		}
		if err := p.Orders.Insert(ctx, tx, order); err != nil {
			return err
		}
		return framework.Emit(ctx, tx, placedEvent(order, req.PaymentToken))
	})
	if err != nil {
		return Placing{}, fmt.Errorf("place order: %w", err)
	}
	if earlier == "" {
		return Placing{Order: order}, nil
	}
	first, err := p.Orders.Get(ctx, earlier)
	if err != nil {
		return Placing{}, fmt.Errorf("read order %s that the key placed: %w", earlier, err)
	}
	return Placing{Order: first.AsPlaced(), Replayed: true}, nil
}

// fingerprint names the request's content. It is kept beside the key, so it must
// not change between releases: a new field is written only when it is set.
func fingerprint(req domain.Request) string {
	h := sha256.New()
	put := func(fields ...string) {
		for _, f := range fields {
			h.Write([]byte(strconv.Quote(f)))
		}
		h.Write([]byte{'\n'})
	}
	money := func(m domain.Money) string { return strconv.FormatInt(m.Amount, 10) + m.Currency }
	put("customer", req.Customer.ID, req.Customer.Email, req.Customer.Phone, req.Customer.Language)
	for _, l := range req.Lines {
		put("line", l.SKU, strconv.FormatInt(l.Quantity, 10), money(l.UnitPrice))
	}
	if req.Total != nil {
		put("total", money(*req.Total))
	}
	put("token", req.PaymentToken)
	return hex.EncodeToString(h.Sum(nil))
}
