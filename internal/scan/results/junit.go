package results

import (
	"bufio"
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// suiteName is the name of the only suite without a title, and the class of cases about the run itself.
const suiteName = "trueup scan"

var junitFormat = Format{
	Name: "junit", Write: func(w io.Writer, r *Report) error { return writeJUnit(w, r.Summary, r.Images, r.Fail) },
}

// writeJUnit writes a test report for a CI system: an image is a test case, and so is a place that could not be looked
// at, and a run that was interrupted. A case fails if fail asks for an exit code. Times are 0: they are not measured.
// See docs/scan-reports.md.
func writeJUnit(w io.Writer, s *Summary, images iter.Seq[*Image], fail FailOn) error {
	name := report.Escape(cmp.Or(s.Title, suiteName))
	suite := junitSuite{Name: name, Timestamp: s.Started, Properties: []junitProperty{
		{"boundary", units.Short(s.Boundary)},
		{"storage", report.Escape(s.Storage)},
		{"fail-on", report.Escape(cmp.Or(s.FailOn, "default"))},
		{"version", report.Escape(s.Version)},
		{"complete", strconv.FormatBool(s.Complete)},
	}}
	if s.Shard != "" {
		suite.Properties = append(suite.Properties, junitProperty{"shard", report.Escape(s.Shard)})
	}
	cases := func(yield func(junitCase) bool) {
		if !s.Complete && !yield(lost(suiteName, "run", "interrupted",
			fmt.Sprintf("the run was interrupted: %d images were looked at, and not all", s.Images), fail)) {
			return
		}
		if s.noneJudged() && !yield(lost(suiteName, "run", "empty",
			"no image was judged; if that is right, give --allow-empty", fail)) {
			return
		}
		for i := range images {
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
	for c := range cases { // the sums stand in front of them
		suite.count(c)
	}
	b := bufio.NewWriter(w)
	fmt.Fprint(b, xml.Header)
	if err := suite.write(b, cases); err != nil {
		return fmt.Errorf("junit: %w", err)
	}
	fmt.Fprintln(b)
	return b.Flush() // an earlier error comes again
}

type junitSuite struct {
	Tests, Failures, Errors, Skipped int
	Name, Timestamp                  string
	Properties                       []junitProperty
}

// write writes the suites with the one suite. Cases are made one at a time.
func (s *junitSuite) write(w io.Writer, cases iter.Seq[junitCase]) error {
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	element := func(name string, attrs ...string) xml.StartElement {
		out := xml.StartElement{Name: xml.Name{Local: name}}
		for n := 0; n < len(attrs); n += 2 {
			out.Attr = append(out.Attr, xml.Attr{Name: xml.Name{Local: attrs[n]}, Value: attrs[n+1]})
		}
		return out
	}
	sums := []string{
		"name", s.Name, "tests", strconv.Itoa(s.Tests), "failures", strconv.Itoa(s.Failures),
		"errors", strconv.Itoa(s.Errors),
	}
	suites := element("testsuites", append(slices.Clone(sums), "time", "0")...)
	suite := element("testsuite", append(slices.Clone(sums),
		"skipped", strconv.Itoa(s.Skipped), "time", "0", "timestamp", s.Timestamp)...)
	err := errors.Join(e.EncodeToken(suites), e.EncodeToken(suite), e.EncodeElement(struct {
		All []junitProperty `xml:"property"`
	}{s.Properties}, element("properties")))
	for c := range cases {
		if err == nil {
			err = e.EncodeElement(c, element("testcase"))
		}
	}
	return errors.Join(err, e.EncodeToken(suite.End()), e.EncodeToken(suites.End()), e.Close())
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

// junitCase has no attribute "file": the schema of Jenkins's xUnit plugin refuses it, and class and name are the path.
type junitCase struct {
	Class   string       `xml:"classname,attr"`
	Name    string       `xml:"name,attr"`
	Time    int          `xml:"time,attr"`
	Failure *junitResult `xml:"failure"`
	Error   *junitResult `xml:"error"`
	Skipped *junitResult `xml:"skipped"`
	Out     string       `xml:"system-out,omitempty"`
}

type junitResult struct {
	Type    string `xml:"type,attr,omitempty"`
	Message string `xml:"message,attr"` // one line
	Body    string `xml:",cdata"`
}

func (s *junitSuite) count(c junitCase) {
	s.Tests++
	switch {
	case c.Failure != nil:
		s.Failures++
	case c.Error != nil:
		s.Errors++
	case c.Skipped != nil:
		s.Skipped++
	}
}

// caseOf returns the case of an image. One without a verdict never passes: at best it is skipped.
func caseOf(i *Image, fail FailOn) junitCase {
	folder, name := split(i.ExactPath())
	c := junitCase{Class: report.Escape(folder), Name: report.Escape(name)}
	code := fail.Code(i)
	switch {
	case i.Accepted != nil:
		c.Skipped = skipped("accepted", i.Accepted.text())
	case i.State == Failed && i.Error != nil:
		return lost(folder, name, i.Error.Code, i.Error.Message, fail)
	case i.unknown() && code != 0:
		return lost(folder, name, i.unknownCode(), i.unknownText(), fail)
	case i.unknown() && !i.Verdict.Off():
		c.Skipped = skipped(i.unknownCode(), i.unknownText())
	case i.State != Judged:
		c.Skipped = skipped(string(i.State), csvRow{Image: i}.finding())
	case code != 0:
		lines := i.offLines(fail)
		c.Failure = &junitResult{
			Type: string(i.Verdict), Message: lines[0],
			Body: strings.Join(append(lines, i.fixLines()...), "\n"),
		}
	case i.Verdict == align.NothingToJudge:
		c.Skipped = skipped(string(i.Content), "nothing to judge: "+contentLooks[i.Content].word)
	case i.lostDisk() != "":
		c.Skipped = skipped("disk", i.lostDisk())
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
	if i.State == Packed {
		return packedText(i.Findings)
	}
	return "nothing that is known was found on the disk; if that is right, give --allow-unknown"
}

// packedText returns the remedy for a packed file.
func packedText(fs []align.Finding) string {
	if len(fs) == 0 {
		return "it is compressed, and not read"
	}
	return fs[0].Text + "; " + fs[0].Remedy
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
		c.Skipped = skipped(code, message)
		return c
	}
	text := report.Escape(message)
	c.Error = &junitResult{Type: report.Escape(code), Message: text, Body: text}
	return c
}

func skipped(kind, message string) *junitResult {
	return &junitResult{Type: report.Escape(kind), Message: report.Escape(message)}
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
