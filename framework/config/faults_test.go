package config_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/config"
)

func TestFaultsTellAll(t *testing.T) {
	t.Parallel()
	var f config.Faults
	f.Join(nil)
	require.NoError(t, f.Err())
	cause := errors.New("no route")
	f.Add("lamps.rooms", 0, "name one")
	f.Join(cause)
	require.ErrorIs(t, f.Err(), cause)
	require.ErrorContains(t, f.Err(), "lamps.rooms")
}

func ExampleFaults() {
	lines := 0
	var f config.Faults
	if lines < 1 {
		f.Add("orders.max_lines", lines, "it must be 1 or more")
	}
	fmt.Println(f.Err())
	// Output: config: orders.max_lines is 0: it must be 1 or more (HEADRACE_ORDERS_MAX_LINES)
}
