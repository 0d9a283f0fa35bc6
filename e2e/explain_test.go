package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework"
)

// TestServicesStartClean has each service explain itself in the profiles that
// need no secrets: nothing in its set-up is unsafe, and each handler's numbers
// have a source.
func TestServicesStartClean(t *testing.T) {
	t.Parallel()
	for _, n := range names {
		for _, env := range []string{"local", "test"} {
			t.Run(n+"/"+env, func(t *testing.T) {
				t.Parallel()
				var out, log bytes.Buffer
				cmd := exec.Command(bin(t, n), "explain", "--json")
				cmd.Dir, cmd.Env = t.TempDir(), []string{"PATH=" + os.Getenv("PATH"), "HEADRACE_ENV=" + env}
				cmd.Stdout, cmd.Stderr = &out, &log
				require.NoError(t, cmd.Run(), "%s%s", &out, &log)
				var x framework.Explanation
				require.NoError(t, json.Unmarshal(out.Bytes(), &x))
				require.Empty(t, x.Findings)
				require.NotEmpty(t, x.Handlers)
				for _, h := range x.Handlers {
					require.NotEmpty(t, h.Stack, h.Name)
					for _, number := range h.Numbers {
						require.NotEmpty(t, number.Source, "%s: %s", h.Name, number.Name)
					}
				}
			})
		}
	}
}
