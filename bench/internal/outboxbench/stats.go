package outboxbench

import (
	"fmt"
	"slices"
)

// series is what one measurement gave, run by run.
type series []float64

func (s series) sorted() series {
	c := slices.Clone(s)
	slices.Sort(c)
	return c
}

// median returns the middle value; 0 of none.
func (s series) median() float64 {
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

func (s series) low() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Min(s)
}

func (s series) high() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Max(s)
}

// over divides run by run, so that what disturbed a whole run cancels out.
func (s series) over(base series) series {
	var out series
	for i := range min(len(s), len(base)) {
		if base[i] > 0 {
			out = append(out, s[i]/base[i])
		}
	}
	return out
}

// rate writes a rate with its spread.
func (s series) rate() string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf("%s (%s–%s)", thousands(s.median()), thousands(s.low()), thousands(s.high()))
}

// ratio writes a ratio with its spread.
func (s series) ratio() string {
	if len(s) == 0 {
		return "–"
	}
	f := "%.2f (%.2f–%.2f)"
	if s.median() >= 10 {
		f = "%.0f (%.0f–%.0f)"
	}
	return fmt.Sprintf(f, s.median(), s.low(), s.high())
}

func thousands(f float64) string {
	n := int64(f + 0.5)
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(float64(n/1000)), n%1000)
}
