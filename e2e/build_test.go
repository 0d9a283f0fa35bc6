package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var names = []string{"orders", "payments", "notifications"}

// binaries builds the CLI and the three services once a run, the services with
// the failpoints that the kill tests arm.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "headrace-e2e-")
	if err != nil {
		return "", err
	}
	root, err := filepath.Abs("..")
	if err != nil {
		return "", err
	}
	for _, n := range names {
		if err := goBuild(filepath.Join(root, "services", n), filepath.Join(dir, n), "./cmd/"+n, "-tags=failpoint"); err != nil {
			return "", err
		}
	}
	return dir, goBuild(root, filepath.Join(dir, "headrace"), "./cmd/headrace")
})

func goBuild(dir, out, pkg string, flags ...string) error {
	args := append([]string{"build"}, flags...)
	cmd := exec.Command("go", append(args, "-o", out, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", pkg, dir, err, b)
	}
	return nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := binaries(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func bin(t *testing.T, name string) string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// command runs a built program to its end, with no settings of the person who
// runs the tests, and returns what it printed.
func command(t *testing.T, name string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.Command(bin(t, name), args...)
	cmd.Env = environ()
	return cmd.CombinedOutput()
}
