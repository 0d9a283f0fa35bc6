// Package redisstream is the broker on Redis Streams.
package redisstream
