package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headrace-go/headrace/framework/testenv"
)

var (
	anyID   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	anyTime = regexp.MustCompile(`\+?\d+ms`)
	branch  = regexp.MustCompile(`[│├└]─? *`) // which child is the last differs from run to run
	spaces  = regexp.MustCompile(`[ \t]+`)
)

// shape is a demo's output without what differs from run to run: the lines of
// the journeys, with ids, times and spacing made equal.
func shape(output string) []string {
	var lines []string
	for line := range strings.Lines(output) {
		if strings.Contains(line, "|") {
			continue // the supervisor's own
		}
		line = branch.ReplaceAllString(line, " ")
		line = anyTime.ReplaceAllString(anyID.ReplaceAllString(line, "ID"), "TIME")
		if line = strings.TrimSpace(spaces.ReplaceAllString(line, " ")); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestDemo runs the README's first command as a newcomer does, on the embedded
// default, and holds its output against what the README shows.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(bin(t, "headrace"), "demo", "--exit", "--any-port", "--dir", "..", "--state", dir)
	cmd.Env = environ()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)

	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(readme), "<!-- demo -->\n```\n")
	require.True(t, found, "README.md shows the demo's output behind <!-- demo -->")
	shown, _, found := strings.Cut(rest, "\n```")
	require.True(t, found)
	require.ElementsMatch(t, shape(shown), shape(string(out)), "%s", out)

	mails, err := filepath.Glob(filepath.Join(dir, ".headrace", "mail", "*.eml"))
	require.NoError(t, err)
	require.Len(t, mails, strings.Count(string(out), ".eml"), "each mail that the journeys name is a file")
	requireGone(t, dir)
}

// TestDevStopsClean starts the system as `headrace dev` does, kills a service
// with SIGKILL, sees it started again, and stops all with Ctrl-C.
func TestDevStopsClean(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out := &lockedBuffer{}
	cmd := exec.Command(bin(t, "headrace"), "dev", "--any-port", "--dir", "..", "--state", dir, "--redis", testenv.Redis(t).URL())
	cmd.Env, cmd.Stdout, cmd.Stderr = environ(), out, out
	require.NoError(t, cmd.Start())
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	say := func(what string) {
		t.Helper()
		eventually(t, 4*time.Minute, func() error { // it builds three services
			select {
			case err := <-exited:
				t.Fatalf("dev ended early: %v\n%s", err, out)
			default:
			}
			if !strings.Contains(out.String(), what) {
				return fmt.Errorf("it has not said %q yet:\n%s", what, out)
			}
			return nil
		})
	}
	say("all services run")
	require.NoError(t, exec.Command("pkill", "-KILL", "-f", filepath.Join(dir, ".headrace", "bin", "payments")).Run())
	say("payments ended (signal: killed); starting it again")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	select {
	case err := <-exited:
		require.NoError(t, err, "%s", out)
	case <-time.After(time.Minute):
		t.Fatalf("dev did not stop within a minute of Ctrl-C\n%s", out)
	}
	require.Contains(t, out.String(), "stopped")
	requireGone(t, dir)
}

// requireGone checks that no process of the state folder is left.
func requireGone(t *testing.T, dir string) {
	t.Helper()
	left, _ := exec.Command("pgrep", "-f", dir).Output()
	require.Empty(t, strings.TrimSpace(string(left)), "processes left behind")
	require.NoFileExists(t, filepath.Join(dir, ".headrace", "dev.json"))
}

// environ is the environment without settings of the person who runs the tests.
func environ() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "HEADRACE_") {
			env = append(env, kv)
		}
	}
	return env
}
