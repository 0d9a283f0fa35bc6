package measure

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// WriteReport writes what markdown gives into a file of the folder, which is made
// where it is missing.
func WriteReport(folder, name string, markdown func(io.Writer)) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	var b strings.Builder
	markdown(&b)
	return os.WriteFile(filepath.Join(folder, name), []byte(b.String()), 0o644)
}

// LoadNote is a report's paragraph on what else the machine did; empty where that
// is not known.
func (m Machine) LoadNote() string {
	if m.LoadBefore == "" {
		return ""
	}
	return fmt.Sprintf("\nThe load average was %s before and %s after; the run itself makes 2 to 3. What is above that was other work on the same cores: it widens the spread and takes more from a system that waits for more answers.\n", m.LoadBefore, m.LoadAfter)
}
