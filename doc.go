// Package headrace is the root of the Headrace module: an event-driven
// microservice framework for Go, built on Watermill. It holds no code; start
// with package framework.
package headrace
