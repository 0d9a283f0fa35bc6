//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// Variables that arm the failpoints of a binary built with the tag failpoint.
const (
	// EnvPoint is "name" or "name@n": kill the process when step name is reached
	// for the nth time (default 1).
	EnvPoint = "HEADRACE_FAILPOINT"
	// EnvMarker is a file that is created just before the kill. While it exists
	// the failpoint is off, so a restart under the same environment lives.
	EnvMarker = "HEADRACE_FAILPOINT_MARKER"
)

var hits atomic.Int64

// Hit kills the process with SIGKILL when EnvPoint names this step and its
// count is reached.
func Hit(name string) {
	spec := os.Getenv(EnvPoint)
	if spec == "" {
		return
	}
	want, n, counted := strings.Cut(spec, "@")
	if want != name {
		return
	}
	at := int64(1)
	if counted {
		if parsed, err := strconv.ParseInt(n, 10, 64); err == nil {
			at = parsed
		}
	}
	if hits.Add(1) != at {
		return
	}
	if marker := os.Getenv(EnvMarker); marker != "" {
		f, err := os.OpenFile(marker, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		fmt.Fprintf(f, "%s %d\n", name, os.Getpid())
		f.Close()
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
