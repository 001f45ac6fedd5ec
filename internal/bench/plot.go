package bench

import (
	"fmt"
	"math"
	"strconv"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/units"
)

// Units of a plot of rates.
const (
	perSecond = "I/O a second"
	rate      = "MiB a second"
)

// Sizes of a plot, in pixels.
const (
	plotWidth, plotHeight        = 560, 250
	left, right, top, underneath = 64, 8, 12, 34
	groupGap                     = 0.24 // of the room of a group
)

// plot is one picture: groups of marks over a scale.
type plot struct {
	Title, Unit, Label string
	Width, Height      int
	Left, Right        float64
	Base               float64 // the line at the bottom
	Ticks              []tick
	Groups             []group
	Rates              bool
}

type tick struct {
	Y    float64
	Text string
}

// group is what was measured for one load.
type group struct {
	X     float64 // its middle
	Text  string
	Marks []mark
}

// mark is one start. Of rates a bar with its spread, of latencies a line through percentiles.
type mark struct {
	Class, Text          string
	X, Middle, Width     float64
	Y, Height            float64 // of the bar; Y is also that of the median latency
	High, Low            float64 // of the spread; of latencies the 99 % and the median
	Between              float64 // the 95 %
	WhiskerL, WhiskerR   float64
	Significant, Aligned bool
}

func number(x float64) float64 { return math.Round(10*x) / 10 }

// rates draws medians as bars, with a line from the least to the most round.
func rates(title, unit string, loads []measured.Load, label func(measured.Load) string) plot {
	value := measured.IOPS
	if unit == rate {
		value = func(r measured.Round) float64 { return r.Bytes / float64(units.MiB) }
	}
	most := 0.0
	for _, l := range loads {
		for _, p := range l.Points {
			most = max(most, measured.SpreadOf(p.Rounds, value).Max)
		}
	}
	step := niceStep(most)
	ceiling := max(math.Ceil(most/step), 1) * step
	y := func(x float64) float64 {
		return number(plotHeight - underneath - x/ceiling*(plotHeight-top-underneath))
	}
	out := frame(title+", "+unit, unit, loads, label)
	out.Rates = true
	for x := 0.0; x <= ceiling*1.001; x += step {
		out.Ticks = append(out.Ticks, tick{y(x), shortNumber(x)})
	}
	for g := range out.Groups {
		for m := range out.Groups[g].Marks {
			p, mk := loads[g].Points[m], &out.Groups[g].Marks[m]
			s := measured.SpreadOf(p.Rounds, value)
			mk.Y, mk.High, mk.Low = y(s.Median), y(s.Max), y(s.Min)
			mk.Height = number(y(0) - mk.Y)
			mk.Significant = p.Against != nil && p.Against.Distinct
			mk.Text = fmt.Sprintf("%s, start %s: %s %s, %s to %s", label(loads[g]), units.Format(p.Start),
				plainNumber(s.Median), unit, plainNumber(s.Min), plainNumber(s.Max))
			if p.Against != nil {
				mk.Text += "; aligned: " + p.Against.Text()
			}
		}
	}
	return out
}

// latencies draws the median, the 95 % and the 99 % on a scale of powers of ten.
func latencies(title string, loads []measured.Load, label func(measured.Load) string) plot {
	least, most := math.Inf(1), 1.0
	for _, l := range loads {
		for _, p := range l.Points {
			least = min(least, float64(max(p.Latency(percentiles[0].of), 1)))
			most = max(most, float64(p.Latency(percentiles[2].of)))
		}
	}
	low, high := math.Floor(math.Log10(min(least, most))), math.Ceil(math.Log10(most))
	high = max(high, low+1)
	y := func(ns int64) float64 {
		share := (math.Log10(float64(max(ns, 1))) - low) / (high - low)
		return number(plotHeight - underneath - max(share, 0)*(plotHeight-top-underneath))
	}
	out := frame(title+", latency: median, 95 % and 99 %", "latency", loads, label)
	for e := low; e <= high; e++ {
		ns := int64(math.Pow(10, e))
		out.Ticks = append(out.Ticks, tick{y(ns), latency(ns)})
	}
	for g := range out.Groups {
		for m := range out.Groups[g].Marks {
			p, mk := loads[g].Points[m], &out.Groups[g].Marks[m]
			var ns [3]int64
			for n := range ns {
				ns[n] = p.Latency(percentiles[n].of)
			}
			mk.Low, mk.Between, mk.High = y(ns[0]), y(ns[1]), y(ns[2])
			mk.Text = fmt.Sprintf("%s, start %s: median %s, 95 %% %s, 99 %% %s", label(loads[g]), units.Format(p.Start),
				latency(ns[0]), latency(ns[1]), latency(ns[2]))
		}
	}
	return out
}

// frame places the groups and their marks.
func frame(title, unit string, loads []measured.Load, label func(measured.Load) string) plot {
	out := plot{
		Title: title, Unit: unit, Label: title, Width: plotWidth, Height: plotHeight, Left: left,
		Right: plotWidth - right, Base: plotHeight - underneath,
	}
	room := float64(plotWidth-left-right) / float64(max(len(loads), 1))
	for n, l := range loads {
		begin := left + float64(n)*room
		g := group{X: number(begin + room/2), Text: label(l)}
		width := min(room*(1-groupGap)/float64(max(len(l.Points), 1)), 34)
		first := begin + room/2 - width*float64(len(l.Points))/2
		for m := range l.Points {
			x := first + float64(m)*width
			middle := x + width/2
			g.Marks = append(g.Marks, mark{
				Class: class(m), X: number(x + 1), Width: number(max(width-2, 1)), Middle: number(middle),
				WhiskerL: number(middle - min(width/4, 4)), WhiskerR: number(middle + min(width/4, 4)), Aligned: m == 0,
			})
		}
		out.Groups = append(out.Groups, g)
	}
	return out
}

// niceStep returns 1, 2 or 5 times a power of ten, so that a scale has five steps or fewer.
func niceStep(most float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(max(most, 1e-3)/5)))
	for _, n := range []float64{1, 2, 5} {
		if n*power*5 >= most {
			return n * power
		}
	}
	return 10 * power
}

// shortNumber prints a number of a scale: 20 000 as 20k.
func shortNumber(x float64) string {
	switch {
	case x >= 1e6:
		return strconv.FormatFloat(x/1e6, 'g', 3, 64) + "M"
	case x >= 1e4:
		return strconv.FormatFloat(x/1e3, 'g', 3, 64) + "k"
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}

// plainNumber prints a number with three digits or all before the point.
func plainNumber(x float64) string {
	if x >= 100 {
		return whole(x)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}
