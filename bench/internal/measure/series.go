// Package measure holds what the benchmarks share: series of figures, and what
// the machine is.
package measure

import (
	"fmt"
	"slices"
)

// Series is what one measurement gave, run by run.
type Series []float64

func (s Series) sorted() Series {
	c := slices.Clone(s)
	slices.Sort(c)
	return c
}

// Median returns the middle value; 0 of none.
func (s Series) Median() float64 {
	c := s.sorted()
	switch n := len(c); {
	case n == 0:
		return 0
	case n%2 == 1:
		return c[n/2]
	default:
		return (c[n/2-1] + c[n/2]) / 2
	}
}

func (s Series) Low() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Min(s)
}

func (s Series) High() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Max(s)
}

// Over divides run by run, so that what disturbed a whole run cancels out.
func (s Series) Over(base Series) Series {
	var out Series
	for i := range min(len(s), len(base)) {
		if base[i] > 0 {
			out = append(out, s[i]/base[i])
		}
	}
	return out
}

// Rate writes a rate with its spread.
func (s Series) Rate() string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf("%s (%s–%s)", Thousands(s.Median()), Thousands(s.Low()), Thousands(s.High()))
}

// Ratio writes a ratio with its spread.
func (s Series) Ratio() string {
	if len(s) == 0 {
		return "–"
	}
	f := "%.2f (%.2f–%.2f)"
	if s.Median() >= 10 {
		f = "%.0f (%.0f–%.0f)"
	}
	return fmt.Sprintf(f, s.Median(), s.Low(), s.High())
}

// Thousands writes a number with commas.
func Thousands(f float64) string {
	n := int64(f + 0.5)
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", Thousands(float64(n/1000)), n%1000)
}

// Millis writes milliseconds with their spread.
func (s Series) Millis() string {
	return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median(), s.Low(), s.High())
}

// MiB writes bytes in mebibytes.
func MiB(bytes uint64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20)) }
