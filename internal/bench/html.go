package bench

import (
	"cmp"
	_ "embed" // body and style of the report
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/report/pages"
	"github.com/trueup/trueup/internal/units"
)

//go:embed html/bench.html.tmpl
var htmlPage string

//go:embed html/bench.css
var htmlStyle string

var kind = pages.New(pages.Source{Body: htmlPage, Style: htmlStyle})

type body struct {
	Path     string
	Leads    []pageLead
	Facts    []fact
	Starts   []pageStart
	Sections []section
	Table    [][]string // rows of one cell are headings
	Heads    []string
	Legend   []string
}

type pageLead struct{ Words, Text string }

// pageStart is an entry of the key: a class of the style, and the start that it shows.
type pageStart struct {
	Class, Text string
}

// section is a pair of plots for each direction of one kind of I/O.
type section struct {
	ID, Title string
	Plots     []plot
}

// HTML writes the report as one file that asks no server for anything.
func (b *Bench) HTML(w io.Writer, version string) error {
	p := body{
		Path: report.SafeMessage(b.Storage.Path), Facts: b.facts(),
		Sections: b.sections(), Legend: b.legend(),
	}
	for _, l := range b.leads() {
		p.Leads = append(p.Leads, pageLead{l.words, report.SafeMessage(l.text)})
	}
	for n, s := range b.Starts {
		text := units.Format(s)
		if n == 0 {
			text += " (aligned)"
		}
		p.Starts = append(p.Starts, pageStart{class(n), text})
	}
	rows := b.rows()
	p.Heads, p.Table = rows[0], rows[1:]
	return kind.Write(w, report.Safe(version), p)
}

// classes of the style for starts. There are no more starts than these in a run.
const classes = 8

func class(n int) string { return fmt.Sprintf("s%d", n%classes) }

// sections groups the loads: by jobs where there are several numbers of them, else by size.
func (b *Bench) sections() (out []section) {
	of := func(id, title, unit string, in func(l measured.Load) bool, label func(l measured.Load) string) {
		s := section{ID: id, Title: title}
		for _, op := range []string{measured.Read, measured.Write, measured.Mixed} {
			loads := slices.DeleteFunc(slices.Clone(b.Loads),
				func(l measured.Load) bool { return l.Op != op || !in(l) })
			if len(loads) == 0 {
				continue
			}
			slices.SortFunc(loads, func(a, b measured.Load) int {
				return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Jobs, b.Jobs))
			})
			name := strings.ToUpper(op[:1]) + op[1:]
			s.Plots = append(s.Plots, rates(name, unit, loads, label), latencies(name, loads, label))
		}
		if len(s.Plots) > 0 {
			out = append(out, s)
		}
	}
	jobs := func(l measured.Load) string { return units.Counted(l.Jobs, "job") }
	size := func(l measured.Load) string { return units.Format(l.Size) }
	varied := b.variedSize()
	of("jobs", "Random I/O of "+units.Format(varied)+", by the number of jobs", perSecond,
		func(l measured.Load) bool { return l.Access == measured.Random && l.Size == varied }, jobs)
	of("random", "Random I/O with one job, by the size of the I/O", rate,
		func(l measured.Load) bool { return l.Access == measured.Random && l.Jobs == 1 && b.sizes(l.Access) > 1 }, size)
	of("sequential", "Sequential I/O, by the size of the I/O", rate,
		func(l measured.Load) bool { return l.Access == measured.Sequential }, size)
	of("file", "Job file", perSecond, func(l measured.Load) bool { return l.Access == measured.JobFile },
		func(l measured.Load) string { return report.SafeMessage(l.Name) })
	return out
}

// variedSize returns the size of random I/O that was measured with the most numbers of jobs.
func (b *Bench) variedSize() (size int64) {
	count := map[int64]int{}
	for _, l := range b.Loads {
		if l.Access != measured.Random {
			continue
		}
		if count[l.Size]++; count[l.Size] > count[size] {
			size = l.Size
		}
	}
	return size
}

// sizes returns how many sizes one kind of access has.
func (b *Bench) sizes(access string) int {
	all := map[int64]bool{}
	for _, l := range b.Loads {
		if l.Access == access {
			all[l.Size] = true
		}
	}
	return len(all)
}
