package middleware

import (
	"path"
	"reflect"
	"runtime"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Kind is what a layer does, as far as Check cares.
type Kind string

// The kinds of layers. An unknown layer has the kind KindOther, and passes.
const (
	KindOther       Kind = ""
	KindRecover     Kind = "recover"
	KindCorrelation Kind = "correlation"
	KindMetrics     Kind = "metrics"
	KindPoison      Kind = "poison"
	KindPark        Kind = "park"
	KindRetry       Kind = "retry"
	KindTimeout     Kind = "timeout"
	KindBreaker     Kind = "breaker"
	KindRateLimit   Kind = "rate limit"
	KindDedup       Kind = "dedup"
	// KindAck acks the message before what it wraps runs.
	KindAck Kind = "ack"
	// KindIgnore turns errors into success.
	KindIgnore Kind = "ignore errors"
)

// Layer is one layer of a Stack, for showing and for Check.
type Layer struct {
	// Name is the middleware's name, such as "retry".
	Name string
	// Detail is its effective settings in words; empty when there is none.
	Detail string

	// Kind is what it does.
	Kind Kind
	// MarksBeforeWork: a dedup that notes a message as handled before it was.
	MarksBeforeWork bool
	// Overtakes: a failed message waits while later ones of its key are handled.
	Overtakes bool
	// Attempts is how often a retry runs what it wraps; 0 is unknown.
	Attempts int
	// Takes is the longest time that the layer adds: a timeout's deadline, all of
	// a retry's waits, a rate limit's wait. 0 is unknown.
	Takes time.Duration
	// Elapsed bounds the start of a retry's last attempt; 0 is no bound.
	Elapsed time.Duration
	// Redeliveries is how often a retry has the broker bring a message again.
	Redeliveries int
	// Deliveries is how many deliveries a poison lets through; 0 is no limit.
	Deliveries int
	// Keeps is how long a dedup keeps a key; 0 is unknown.
	Keeps time.Duration
}

// stockDir is where the stock middlewares of Watermill are, in their package's
// path and in that of their files.
const stockDir = "/message/router/middleware"

// ownFile tells this package's folder.
var _, ownFile, _, _ = runtime.Caller(0)

// LayerOf tells what mw is, where it is a middleware of this package or of
// Watermill: it goes by the code that mw is made of. Another one, or one that is
// wrapped in a function of its own, is a layer of the kind KindOther. Settings
// can't be seen from outside: set the fields that you know.
func LayerOf(mw message.HandlerMiddleware) Layer {
	if mw == nil {
		return Layer{}
	}
	f := runtime.FuncForPC(reflect.ValueOf(mw).Pointer())
	if f == nil {
		return Layer{}
	}
	file, _ := f.FileLine(f.Entry())
	name := f.Name()
	switch {
	case path.Dir(file) == path.Dir(ownFile) && !strings.HasSuffix(file, "_test.go"):
		return ownLayer(strings.TrimSuffix(path.Base(file), ".go"))
	case strings.Contains(strings.ToLower(file), "watermill") && strings.HasSuffix(path.Dir(file), stockDir):
		return stockLayer(strings.ReplaceAll(strings.TrimSuffix(path.Base(file), ".go"), "_", ""))
	case strings.Contains(name, "/watermill"+stockDir+"."):
		// A method as a value: Retry.Middleware-fm, (*Deduplicator).Middleware-fm.
		_, name, _ = strings.Cut(name, stockDir+".")
		name, _, _ = strings.Cut(strings.Trim(name, "(*"), ".")
		return stockLayer(strings.ToLower(strings.Trim(name, "()*")))
	case strings.Contains(name, "headrace/middleware.(*breaker).middleware"):
		return ownLayer("breaker")
	case strings.Contains(name, "headrace/middleware.(*Parking).Middleware"):
		return ownLayer("park")
	}
	return Layer{}
}

func ownLayer(file string) Layer {
	kinds := map[string]Kind{
		"recover": KindRecover, "correlation": KindCorrelation, "metrics": KindMetrics, "poison": KindPoison, "park": KindPark,
		"retry": KindRetry, "timeout": KindTimeout, "breaker": KindBreaker, "ratelimit": KindRateLimit, "dedup": KindDedup,
	}
	return Layer{Name: string(kinds[file]), Kind: kinds[file]}
}

func stockLayer(name string) Layer {
	l := Layer{Name: "watermill " + name}
	switch name {
	case "retry":
		l.Kind = KindRetry
	case "poison", "poisonqueue":
		l.Kind = KindPoison
	case "timeout":
		l.Kind = KindTimeout
	case "deduplicator":
		l.Kind, l.MarksBeforeWork = KindDedup, true
	case "delayonerror":
		l.Overtakes = true
	case "circuitbreaker":
		l.Kind = KindBreaker
	case "throttle":
		l.Kind = KindRateLimit
	case "recoverer":
		l.Kind = KindRecover
	case "correlation":
		l.Kind = KindCorrelation
	case "instantack":
		l.Kind = KindAck
	case "ignoreerrors":
		l.Kind = KindIgnore
	}
	return l
}

// LayersOf is LayerOf for each of a chain's middlewares, outermost first.
func LayersOf(chain ...message.HandlerMiddleware) []Layer {
	layers := make([]Layer, 0, len(chain))
	for _, mw := range chain {
		if mw != nil {
			layers = append(layers, LayerOf(mw))
		}
	}
	return layers
}
