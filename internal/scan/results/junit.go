package results

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// suiteName is the name of the only suite without a title, and the class of cases about the run itself.
const suiteName = "trueup scan"

var junitFormat = Format{
	Name: "junit", Write: func(w io.Writer, r *Report) error {
		suite := junitSuite{Name: report.Escape(cmp.Or(r.Summary.Title, suiteName)), Report: r}
		for c := range suite.Cases() { // the sums stand in front of them
			suite.count(c)
		}
		return junitTemplate(w, suite)
	},
}

// junitTemplate lays out a test report for a CI system. Times are 0: they are not measured. See docs/scan-reports.md.
var junitTemplate = builtIn("scan.junit.tmpl")

type junitSuite struct {
	*Report
	Name                             string
	Tests, Failures, Errors, Skipped int
}

// Cases yields a case for each image and each place that could not be looked at, and one for a run that was interrupted
// or judged no image. A case fails if FailOn asks for an exit code.
func (j junitSuite) Cases() iter.Seq[junitCase] {
	s, fail := j.Summary, j.Fail
	return func(yield func(junitCase) bool) {
		if !s.Complete && !yield(lost(suiteName, "run", "interrupted",
			fmt.Sprintf("the run was interrupted: %d images were looked at, and not all", s.Images), fail)) {
			return
		}
		if s.noneJudged() && !yield(lost(suiteName, "run", "empty",
			"no image was judged; if that is right, give --allow-empty", fail)) {
			return
		}
		for i := range j.Images {
			if i.State != Gone && !yield(caseOf(i, fail)) {
				return
			}
		}
		for _, u := range s.Unreadable {
			folder, name := split(u.Path)
			if !yield(lost(folder, name, u.Error.Code, u.Error.Message, fail)) {
				return
			}
		}
	}
}

// junitCase is a test case, whose class and name are the path. All texts are escaped as for a terminal.
type junitCase struct {
	Class, Name string
	Result      *junitResult // nil: it passed
	Out         string
}

// junitResult is an element of a case: its name, and what it has. Message is one line.
type junitResult struct{ Element, Type, Message, Body string }

func (j *junitSuite) count(c junitCase) {
	j.Tests++
	if c.Result == nil {
		return
	}
	*map[string]*int{"failure": &j.Failures, "error": &j.Errors, "skipped": &j.Skipped}[c.Result.Element]++
}

// caseOf returns the case of an image. One without a verdict never passes: at best it is skipped.
func caseOf(i *Image, fail FailOn) junitCase {
	folder, name := split(i.ExactPath())
	c := junitCase{Class: report.Escape(folder), Name: report.Escape(name)}
	code := fail.Code(i)
	switch {
	case i.Accepted != nil:
		c.Result = skipped("accepted", i.Accepted.text())
	case i.State == Failed && i.Error != nil:
		return lost(folder, name, i.Error.Code, i.Error.Message, fail)
	case i.unknown() && code != 0:
		return lost(folder, name, i.unknownCode(), i.unknownText(), fail)
	case i.unknown() && !i.Verdict.Off():
		c.Result = skipped(i.unknownCode(), i.unknownText())
	case i.State != Judged:
		c.Result = skipped(string(i.State), i.finding())
	case code != 0:
		lines := i.offLines(fail)
		c.Result = &junitResult{
			"failure", string(i.Verdict), lines[0], strings.Join(append(lines, i.fixLines()...), "\n"),
		}
	case i.Verdict == align.NothingToJudge:
		c.Result = skipped(string(i.Content), "nothing to judge: "+contentLooks[i.Content].word)
	case i.lostDisk() != "":
		c.Result = skipped("disk", i.lostDisk())
	case i.Priority != nil:
		c.Out = report.Escape(string(i.Verdict) + ", which does not fail the run: " + i.Priority.Reason)
	}
	return c
}

// unknownCode returns the type of the case of an image with unknown content.
func (i *Image) unknownCode() string {
	if i.State == Packed {
		return string(Packed)
	}
	return string(align.UnknownContent)
}

// unknownText returns why the content of an image is unknown.
func (i *Image) unknownText() string {
	switch {
	case i.State != Packed:
		return "nothing that is known was found on the disk; if that is right, give --allow-unknown"
	case len(i.Findings) == 0:
		return "it is compressed, and not read"
	}
	return i.Findings[0].Text + "; " + i.Findings[0].Remedy
}

// lostDisk returns which disk of a package could not be judged, and why.
func (i *Image) lostDisk() string {
	for n := range i.Disks {
		if i.Disks[n].Error != nil {
			return i.Disks[n].firstHindrance()
		}
	}
	return ""
}

// lost returns the case of an unknown result: an error, unless errors do not count.
func lost(class, name, code, message string, fail FailOn) junitCase {
	c := junitCase{Class: report.Escape(class), Name: report.Escape(name)}
	if fail == Never {
		c.Result = skipped(code, message)
		return c
	}
	text := report.Escape(message)
	c.Result = &junitResult{"error", report.Escape(code), text, text}
	return c
}

func skipped(kind, message string) *junitResult {
	return &junitResult{"skipped", report.Escape(kind), report.Escape(message), ""}
}

// text returns the reason and the last day.
func (a *Accepted) text() string {
	if a.Until == "" {
		return "accepted: " + a.Reason
	}
	return "accepted until " + a.Until + ": " + a.Reason
}

// split takes the folder off a path. A name without one lies in ".".
func split(path string) (folder, name string) {
	switch at := strings.LastIndexByte(path, '/'); at {
	case -1:
		return ".", path
	case 0:
		return "/", path[1:]
	default:
		return path[:at], path[at+1:]
	}
}

// maxOffLines bounds the partitions that a test case lists; the other reports list all of them.
const maxOffLines = 20

// offLines lists the partitions that fail, one in a line. There is at least one line.
func (i *Image) offLines(fail FailOn) (out []string) {
	more := 0
	for _, d := range i.Disks {
		boundary := d.Boundary
		if b, ok := levels[fail]; ok {
			boundary = b
		}
		for _, p := range d.Partitions {
			switch {
			case !p.VerdictBy(boundary).Off():
			case len(out) == maxOffLines:
				more++
			default:
				out = append(out, offLine(d, p, boundary))
			}
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	if len(out) == 0 {
		out = []string{report.Escape(string(i.Verdict))}
	}
	return out
}

func offLine(d Disk, p report.Partition, boundary int64) string {
	where := "partition " + strconv.Itoa(p.Number)
	if d.Member != "" {
		where = report.Escape(d.Member) + ": " + where
	}
	return fmt.Sprintf("%s starts at byte %d (LBA %d), off %s", where, p.Start, p.StartLBA,
		units.Short(offOf(p, boundary)))
}

// offOf returns the boundary that a partition misses, 4 KiB if it misses that too.
func offOf(p report.Partition, boundary int64) int64 {
	if p.Verdict == align.Misaligned {
		return align.Block
	}
	return boundary
}

// fixLines returns the remedy for an image.
func (i *Image) fixLines() (out []string) {
	if i.Priority == nil {
		return nil
	}
	out = append(out, report.Escape(i.Priority.Reason))
	hindrances := i.hindrances()
	for _, f := range hindrances {
		out = append(out, "refused: "+report.Escape(findingText(f)))
		if f.Remedy != "" {
			out = append(out, "  "+report.Escape(f.Remedy))
		}
	}
	switch {
	case len(hindrances) > 0:
	case i.Copied != "":
		out = append(out, report.Escape(i.copiedText()))
	default:
		out = append(out, i.Priority.Command)
	}
	return out
}

// hindrances returns those of all disks.
func (i *Image) hindrances() (out []align.Finding) {
	for n := range i.Disks {
		out = append(out, i.Disks[n].hindrances()...)
	}
	return out
}
