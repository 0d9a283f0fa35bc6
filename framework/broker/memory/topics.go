package memory

import (
	"context"
	"strings"
)

// Topics returns the names of the topics that end with suffix.
func (a admin) Topics(ctx context.Context, suffix string) ([]string, error) {
	if err := a.b.Ping(ctx); err != nil {
		return nil, err
	}
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	var topics []string
	for t := range a.b.topics {
		if strings.HasSuffix(t, suffix) {
			topics = append(topics, t)
		}
	}
	return topics, nil
}
