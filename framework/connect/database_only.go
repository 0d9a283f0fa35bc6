package connect

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"

	"github.com/headrace-go/headrace/framework/config"
)

// OpenDatabase opens the database of the profile and nothing else, for tools
// that look at a running system: no file, table or folder is made. Logger nil
// means slog.Default(). On an error nothing stays open.
func OpenDatabase(ctx context.Context, p config.Profile, logger *slog.Logger) (*Connections, error) {
	p = p.WithDefaults()
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = slog.Default()
	}
	path := p.Database.DSN.Reveal()
	switch {
	case p.Database.Driver == "":
		return nil, fault("database.driver", "", errors.New("the profile has no database"), "name one that has")
	case p.Database.Driver != "sqlite":
	case path == ":memory:":
		return nil, fault(keyDSN, path, errors.New("it ends with the process that has it"), "name a file's path")
	case !strings.HasPrefix(path, "file:"):
		if _, err := os.Stat(path); err != nil {
			return nil, fault(keyDSN, path, err, "name the file that the service uses")
		}
	}
	c := &Connections{}
	if err := c.openDatabase(ctx, p, logger); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}
