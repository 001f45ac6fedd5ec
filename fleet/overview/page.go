package overview

import (
	"bytes"
	"cmp"
	_ "embed" // templates, style and script of the pages
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/internal/report/pages"
	"github.com/trueup/trueup/internal/units"
)

var (
	//go:embed html/fleet.html.tmpl
	htmlPage string
	//go:embed html/login.html.tmpl
	htmlLogin string
	//go:embed html/fleet.css
	htmlStyle string
	//go:embed html/fleet.js
	htmlScript string
)

var (
	pageKind  = pages.New(pages.Source{Body: htmlPage, Style: htmlStyle, Script: htmlScript, AllowRequests: true})
	loginKind = pages.New(pages.Source{Body: htmlLogin, Style: htmlStyle, AllowRequests: true})
)

// parts lists the parts of the page that change. Each is the name of a template and the ID of an element.
var parts = []string{"sums", "report", "datastores", "running", "failed", "ended", "workers"}

// body is the data of the page. All texts are single lines without control characters.
type body struct {
	Version, Time, Problem             string
	Tiles                              []tile
	Scans, Scanned                     string
	States                             []fleet.State
	Datastores                         []datastore
	Running                            []entry
	Failed, Ended                      []entry
	MoreRunning, MoreFailed, MoreEnded int
	Workers                            []worker
}

type tile struct {
	Class, Word string
	Count       int
}

type datastore struct {
	Name, AtOnce, Copied, Windows string
	Counts                        []int
	Workers                       int
	Drained                       bool
}

// entry is a job.
type entry struct {
	State                      fleet.State
	Image, Far, About, Message string
	Percent                    int64
	Log                        []string
}

type worker struct{ Name, About string }

// Policy returns the Content-Security-Policy of the page.
func Policy() string { return pageKind.Policy() }

// LoginPolicy returns the Content-Security-Policy of the login page.
func LoginPolicy() string { return loginKind.Policy() }

// Page writes the page with the program version and the time of day.
func (o *Overview) Page(w io.Writer, version string, now time.Time) error {
	return pageKind.Write(w, fleet.Plain(version), o.body(version, now))
}

// Login writes the page with the login form.
func Login(w io.Writer, version string, wrong bool) error {
	return loginKind.Write(w, fleet.Plain(version), struct {
		Version string
		Wrong   bool
	}{fleet.Plain(version), wrong})
}

// Event is a part of the page and its new content.
type Event struct{ Name, Data string }

// Events returns all parts of the page that change.
func (o *Overview) Events(version string, now time.Time) (out []Event, err error) {
	b := o.body(version, now)
	for _, name := range parts {
		var text bytes.Buffer
		if err := pageKind.Part(&text, name, b); err != nil {
			return nil, fmt.Errorf("page: %w", err)
		}
		out = append(out, Event{name, text.String()})
	}
	return append(out, Event{"time", b.Time}), nil
}

func (o *Overview) body(version string, now time.Time) *body {
	v := o.view()
	b := &body{
		Version: fleet.Plain(version), Time: moment(now), Problem: fleet.Plain(v.problem), States: fleet.States,
		Failed: entries(v.failed, failed), Ended: entries(v.ended, ended), Running: entries(v.running, running),
	}
	b.MoreRunning = v.count("", fleet.Running) - len(b.Running)
	b.MoreFailed = v.count("", fleet.Dead) + v.count("", fleet.Refused) - len(b.Failed)
	b.MoreEnded = v.count("", fleet.Done) + v.count("", fleet.Cancelled) - len(b.Ended)
	for _, state := range fleet.States {
		b.Tiles = append(b.Tiles, tile{string(state), string(state), v.count("", state)})
	}
	scans := 0
	var scanned time.Time
	for k, n := range v.jobs {
		if k.kind == fleet.Scan && k.state == fleet.Done {
			scans += n
		}
	}
	for _, at := range v.scanned {
		if at.After(scanned) {
			scanned = at
		}
	}
	if scans > 0 {
		b.Scans, b.Scanned = units.Counted(scans, "scan")+" done", moment(scanned)
	}
	for _, name := range v.datastores() {
		b.Datastores = append(b.Datastores, v.datastore(name))
	}
	for _, a := range v.Workers[:min(len(v.Workers), maxWorkers)] {
		b.Workers = append(b.Workers, workerOf(a))
	}
	return b
}

func (v *view) datastore(name string) datastore {
	d := datastore{Name: name, AtOnce: "–", Copied: units.Format(v.copied[name]), Drained: v.Drained[name]}
	for _, state := range fleet.States {
		d.Counts = append(d.Counts, v.count(name, state))
	}
	if b, known := v.Backlogs[name]; known {
		d.AtOnce = strconv.Itoa(b.AtOnce)
	}
	var windows []string
	for _, a := range v.Workers {
		if slices.Contains(a.Datastores, name) {
			d.Workers++
			windows = append(windows, cmp.Or(fleet.Plain(a.Window), "always"))
		}
	}
	slices.Sort(windows)
	d.Windows = cmp.Or(strings.Join(slices.Compact(windows), ", "), "–")
	return d
}

func workerOf(a fleet.Announcement) worker {
	about := fmt.Sprintf("version %s, since %s; %s at once for each of: %s", fleet.Plain(a.Version), moment(a.Began),
		units.Counted(a.Slots, "job"), strings.Join(a.Datastores, ", "))
	if a.Window != "" {
		about += "; starts jobs at " + fleet.Plain(a.Window)
	}
	return worker{fleet.Plain(a.Worker), about}
}

func entries(records []*fleet.Record, fill func(e *entry, r *fleet.Record)) (out []entry) {
	for _, r := range records {
		e := entry{State: r.State, Image: r.Datastore + ": " + fleet.Plain(r.Path)}
		if r.Path == "." {
			e.Image = r.Datastore
		}
		fill(&e, r)
		out = append(out, e)
	}
	return out
}

func running(e *entry, r *fleet.Record) {
	e.Percent = min(max(r.Percent(), 0), 100)
	e.Far = "starting"
	if r.Phase != "" || r.Found > 0 {
		e.Far = fmt.Sprintf("%s %d %%", fleet.Plain(cmp.Or(r.Phase, "scan")), e.Percent)
		switch {
		case r.Found > 0:
			e.Far += fmt.Sprintf(", %d of %s", r.Images, units.Counted(r.Found, "image"))
		case r.Total > 0:
			e.Far += ", " + units.Part(r.Done, r.Total)
		}
	}
	if r.Seconds != nil {
		e.Far += fmt.Sprintf(", %v left", time.Duration(*r.Seconds)*time.Second)
	}
	e.About = fmt.Sprintf("%s, delivery %d, on %s", r.Kind, r.Delivery, fleet.Plain(r.Worker))
}

func failed(e *entry, r *fleet.Record) {
	e.Message = fleet.Plain(r.Message)
	e.About = fmt.Sprintf("%s, code %s, after delivery %d, on %s at %s; job %s", r.Kind,
		cmp.Or(r.Code, "none"), r.Delivery, cmp.Or(fleet.Plain(r.Worker), "no worker"), moment(r.Updated), r.Key())
	for line := range strings.Lines(r.Log) {
		e.Log = append(e.Log, fleet.Plain(strings.TrimRight(line, "\n")))
	}
}

func ended(e *entry, r *fleet.Record) {
	e.About = fmt.Sprintf("%s, at %s", r.Kind, moment(r.Updated))
	if r.Worker != "" {
		e.About += ", on " + fleet.Plain(r.Worker)
	}
}

// moment formats a time for display.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
