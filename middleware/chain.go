package middleware

import "github.com/ThreeDotsLabs/watermill/message"

// Chain composes middlewares into one, the first outermost. Nil entries are left
// out, so an optional layer needs no if.
func Chain(layers ...message.HandlerMiddleware) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		for i := len(layers) - 1; i >= 0; i-- {
			if layers[i] != nil {
				h = layers[i](h)
			}
		}
		return h
	}
}
