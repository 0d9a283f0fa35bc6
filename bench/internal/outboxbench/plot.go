package outboxbench

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/headrace-go/headrace/bench/internal/measure"
)

var (
	oursColor  = color.RGBA{R: 0x0b, G: 0x6e, B: 0x99, A: 0xff}
	stockColor = color.RGBA{R: 0xc0, G: 0x39, B: 0x2b, A: 0xff}
	handColor  = color.RGBA{R: 0x7f, G: 0x8c, B: 0x8d, A: 0xff}
)

// ranges are points with the lowest and the highest around them.
type ranges struct {
	plotter.XYs
	plotter.YErrors
}

// plotRates draws each relay's rate on a logarithmic scale.
func (r *Report) plotRates(path string) error {
	p := plot.New()
	p.Title.Text = "Outbox relay, events a second (log scale)"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, powers{}
	p.X.Min, p.X.Max = -0.5, float64(len(r.Relays))-0.5
	p.Legend.Top = true
	names := make([]string, len(r.Relays))
	for i, x := range r.Relays {
		names[i] = x.name()
	}
	for _, s := range []struct {
		name  string
		color color.Color
		shift float64
		of    func(RelayResult) measure.Series
		shape draw.GlyphDrawer
	}{
		{"by hand", handColor, 0.15, func(x RelayResult) measure.Series { return x.Hand }, draw.SquareGlyph{}},
		{"ours", oursColor, 0, func(x RelayResult) measure.Series { return x.Ours }, draw.CircleGlyph{}},
		{"stock", stockColor, -0.15, func(x RelayResult) measure.Series { return x.Stock }, draw.PyramidGlyph{}},
	} {
		var pts ranges
		for i, x := range r.Relays {
			v := s.of(x)
			pts.XYs = append(pts.XYs, plotter.XY{X: float64(i) + s.shift, Y: v.Median()})
			pts.YErrors = append(pts.YErrors, struct{ Low, High float64 }{v.Median() - v.Low(), v.High() - v.Median()})
		}
		dots, err := plotter.NewScatter(pts)
		if err != nil {
			return err
		}
		dots.Color, dots.Shape, dots.Radius = s.color, s.shape, vg.Points(4)
		bars, err := plotter.NewYErrorBars(pts)
		if err != nil {
			return err
		}
		bars.Color = s.color
		p.Add(bars, dots)
		p.Legend.Add(s.name, dots)
	}
	p.Add(plotter.NewGrid())
	p.NominalX(names...)
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = 0.5, draw.XRight, draw.YCenter
	p.Y.Min, p.Y.Max = 100, 300_000
	return p.Save(9*vg.Inch, 5*vg.Inch, path)
}

// plotBacklog draws the rate of each hundredth of the backlog.
func (r *Report) plotBacklog(path string) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("One relay drains %s rows", measure.Thousands(float64(r.Backlog.Rows)))
	p.X.Label.Text, p.Y.Label.Text = "share drained, %", "rows a second"
	pts := make(plotter.XYs, len(r.Backlog.Percent))
	most := 0.0
	for i, rate := range r.Backlog.Percent {
		pts[i] = plotter.XY{X: float64(i + 1), Y: rate}
		most = max(most, rate)
	}
	line, err := plotter.NewLine(pts)
	if err != nil {
		return err
	}
	line.Color, line.Width = oursColor, vg.Points(1.5)
	p.Add(plotter.NewGrid(), line)
	p.Y.Min, p.Y.Max = 0, most*1.05
	p.Y.Tick.Marker = plain{}
	return p.Save(9*vg.Inch, 3.5*vg.Inch, path)
}

// powers labels powers of ten.
type powers struct{}

// Ticks are the powers of ten, with marks between them.
func (powers) Ticks(low, high float64) []plot.Tick {
	var all []plot.Tick
	for base := 1.0; base <= high; base *= 10 {
		for n := 1.0; n < 10; n++ {
			if v := n * base; v >= low && v <= high {
				t := plot.Tick{Value: v}
				if n == 1 {
					t.Label = measure.Thousands(v)
				}
				all = append(all, t)
			}
		}
	}
	return all
}

// plain labels numbers with thousands.
type plain struct{}

// Ticks are the default ones, written out.
func (plain) Ticks(low, high float64) []plot.Tick {
	all := plot.DefaultTicks{}.Ticks(low, high)
	for i := range all {
		if all[i].Label != "" {
			all[i].Label = measure.Thousands(all[i].Value)
		}
	}
	return all
}
