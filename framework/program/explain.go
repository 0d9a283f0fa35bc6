package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/headrace-go/headrace/framework/config"
)

// explain prints every setting as a table, also of settings that serve would
// refuse; the error then says what is wrong with them.
func (p Program[S]) explain(_ context.Context, c Call) error {
	x, err := p.explained(c)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	file := x.File
	if file == "" {
		file = "no file"
	}
	fmt.Fprintf(&out, "profile %s, %s\n\n", x.Env, file)
	table := tabwriter.NewWriter(&out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "KEY\tVARIABLE\tTYPE\tSOURCE\tVALUE")
	for _, s := range x.Settings {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", s.Key, s.Env, s.Type, s.Source, shown(s.Value))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if _, err := c.Stdout.Write(out.Bytes()); err != nil {
		return err
	}
	return faultsOf(x)
}

func (p Program[S]) explainJSON(_ context.Context, c Call) error {
	x, err := p.explained(c)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(c.Stdout)
	enc.SetIndent("", "  ")
	if err := enc.Encode(x.Settings); err != nil {
		return fmt.Errorf("write the settings: %w", err)
	}
	return faultsOf(x)
}

// explained are the settings. An environment without a profile has none to show.
func (p Program[S]) explained(c Call) (*config.Explanation, error) {
	settings := p.Defaults
	x, err := config.Explain(&settings, p.source(c))
	if err != nil {
		return nil, err
	}
	if unknown := (*config.UnknownProfileError)(nil); errors.As(x.Faults, &unknown) {
		return nil, unknown
	}
	return x, nil
}

// shown is a value in one cell: as the environment would write it.
func shown(value any) string {
	switch value := value.(type) {
	case string:
		if value == "" {
			return `""`
		}
		return value
	case []string:
		return strings.Join(value, ",")
	default:
		return fmt.Sprint(value)
	}
}

// faultsOf says why serve would refuse.
func faultsOf(x *config.Explanation) error {
	if x.Faults == nil {
		return nil
	}
	return fmt.Errorf("these settings do not work:\n%w", x.Faults)
}
