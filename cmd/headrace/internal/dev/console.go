package dev

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/fatih/color"
)

// palette is the colours that tell services apart, in the order of their names.
var palette = []color.Attribute{color.FgCyan, color.FgYellow, color.FgMagenta, color.FgGreen, color.FgBlue}

// Console writes whole lines of several processes to one place, each behind its
// service's name in its service's colour. It is safe for concurrent use.
type Console struct {
	mu      sync.Mutex
	out     io.Writer
	width   int
	colours map[string]*color.Color
	quiet   bool
}

// NewConsole makes a console for the named services. Quiet leaves out the
// services' own lines; what the supervisor says is printed all the same. Colour
// is used when out is a terminal and NO_COLOR is not set.
func NewConsole(out io.Writer, names []string, quiet bool) *Console {
	c := &Console{out: out, width: len("headrace"), colours: map[string]*color.Color{}, quiet: quiet}
	f, isFile := out.(*os.File)
	useColour := isFile && !color.NoColor && isTerminal(f)
	for i, n := range names {
		col := color.New(palette[i%len(palette)])
		if useColour {
			col.EnableColor()
		} else {
			col.DisableColor()
		}
		c.colours[n] = col
		c.width = max(c.width, len(n))
	}
	bold := color.New(color.Bold)
	if useColour {
		bold.EnableColor()
	} else {
		bold.DisableColor()
	}
	c.colours["headrace"] = bold
	return c
}

// Say prints a line of the supervisor's own.
func (c *Console) Say(format string, args ...any) {
	c.line("headrace", fmt.Sprintf(format, args...))
}

func (c *Console) line(name, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.out, "%s %s\n", c.colours[name].Sprintf("%-*s |", c.width, name), text)
}

// Copy prints r's lines behind the service's name, and to log whole, until r
// ends.
func (c *Console) Copy(name string, r io.Reader, log io.Writer) {
	br := bufio.NewReaderSize(r, 64<<10)
	for {
		text, err := br.ReadString('\n')
		if text != "" {
			fmt.Fprint(log, text)
			if !c.quiet {
				c.line(name, strings.TrimRight(text, "\r\n"))
			}
		}
		if err != nil {
			return
		}
	}
}
