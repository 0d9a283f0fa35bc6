package outbound

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			os.Stderr.WriteString("goroutines are left: " + err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}
