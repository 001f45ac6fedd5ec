package results

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
)

// Limits of one row, far beyond any real image.
const (
	maxText  = 64 << 10 // bytes of one text
	maxItems = 1 << 17  // of one list
)

// Check returns the faults of a row from outside: from a worker, which an image may have compromised, or from a file of
// results. A row without faults can be summed and shown. Check does not judge the contents of texts: each report
// escapes them.
func (i *Image) Check() error {
	if i.Origin != (report.Origin{Schema: report.Schema, Command: Command}) || i.Event != imageEvent {
		return fmt.Errorf("a row that is %.32q of %.32q in %.32q, want %q of %q in %q", i.Event, i.Command, i.Schema,
			imageEvent, Command, report.Schema)
	}
	if err := i.checkState(); err != nil {
		return err
	}
	c := checker{}
	c.bounds("row", reflect.ValueOf(i).Elem(), false)
	if err := i.Labels.Check(); err != nil {
		c.errs = append(c.errs, err)
	}
	for _, f := range i.Files {
		c.file(f)
	}
	for n := range i.Disks {
		c.disk(&i.Disks[n])
	}
	return errors.Join(c.errs...)
}

// checkState checks the assumptions of readers of a row: a judged row has a format and no error, and all of its disks
// that could be read have a verdict.
func (i *Image) checkState() error {
	switch i.State {
	case Failed, Orphan, Packed, Original:
		if (i.State == Failed) != (i.Error != nil) {
			return fmt.Errorf("a row that is %s, and an error: %t", i.State, i.Error != nil)
		}
		return nil
	case Judged:
		if i.Error != nil || i.Format == "" {
			return fmt.Errorf("a row that is judged, with format %.32q and an error: %t", i.Format, i.Error != nil)
		}
	default:
		return fmt.Errorf("a row that is %.32q, want %s, %s, %s, %s or %s", i.State, Judged, Failed, Orphan, Packed,
			Original)
	}
	for _, d := range i.Disks {
		if d.Verdict == "" && d.Error == nil {
			return errors.New("a disk with neither verdict nor error")
		}
	}
	return nil
}

// checker collects the first few problems.
type checker struct{ errs []error }

const maxWrong = 4

func (c *checker) wrong(format string, args ...any) {
	if len(c.errs) < maxWrong {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

// signed lists the fields whose numbers can be negative: times before 1970, the distance of a move, unknown sizes, and
// places stated by a volume.
var signed = []string{"File.Modified", "File.Changed", "Move.Delta", "Volume.DataStart", "part.Size", "part.Start"}

// words lists the valid values of texts that reports and sums interpret, by the types of fields.
var words = map[reflect.Type][]string{
	reflect.TypeFor[align.Verdict](): texts("", align.NothingToJudge, align.Aligned, align.BelowBoundary,
		align.Misaligned),
	reflect.TypeFor[align.Content]():  append(texts(align.Contents...), ""),
	reflect.TypeFor[align.Severity](): texts(align.Info, align.Warning, align.Error),
	reflect.TypeFor[boot.State]():     texts(boot.ShutDown, boot.Running, boot.Hibernated, boot.NotKnown),
	reflect.TypeFor[Depth]():          texts(Survey, Full, Head),
}

func texts[T ~string](all ...T) (out []string) {
	for _, text := range all {
		out = append(out, string(text))
	}
	return out
}

// bounded describes a field of a struct within a row.
type bounded struct {
	at     int
	name   string
	absent bool     // the list may be null
	words  []string // nil allows any text
}

// boundedFields caches the fields of each type: reading their tags costs more than the checks.
var boundedFields sync.Map // of reflect.Type: []bounded

func boundedOf(t reflect.Type) []bounded {
	if known, ok := boundedFields.Load(t); ok {
		return known.([]bounded) //nolint:forcetypeassert // stored below
	}
	var out []bounded
	for n := range t.NumField() {
		f := t.Field(n)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name != "" && name != "-" && !slices.Contains(signed, t.Name()+"."+f.Name) {
			b := bounded{n, name, options == "omitempty", words[f.Type]}
			if t == reflect.TypeFor[report.Error]() && f.Name == "Code" {
				b.words = ondisk.Codes
			}
			out = append(out, b)
		}
	}
	boundedFields.Store(t, out)
	return out
}

// bounds checks a value and all of its fields: numbers are not negative, texts and lists are of bounded length, words
// are valid, and lists are not null unless they may be absent. It skips values of other kinds.
func (c *checker) bounds(name string, v reflect.Value, absent bool) {
	switch v.Kind() { //nolint:exhaustive // see above
	case reflect.Pointer:
		if !v.IsNil() {
			c.bounds(name, v.Elem(), false)
		}
	case reflect.String:
		if v.Len() > maxText {
			c.wrong("a text of %d bytes, want at most %d", v.Len(), maxText)
		}
	case reflect.Int, reflect.Int64:
		if v.Int() < 0 {
			c.wrong("the number %d, want 0 or more", v.Int())
		}
	case reflect.Map:
		for at := v.MapRange(); at.Next(); {
			c.bounds(name, at.Key(), false)
			c.bounds(name, at.Value(), false)
		}
	case reflect.Slice:
		if v.IsNil() && !absent || v.Len() > maxItems {
			c.wrong("list of %s: %d of them, absent: %t, want at most %d", name, v.Len(), v.IsNil(), maxItems)
			return
		}
		for n := range v.Len() {
			c.bounds(name, v.Index(n), false)
		}
	case reflect.Struct:
		for _, f := range boundedOf(v.Type()) {
			field := v.Field(f.at)
			if f.words != nil && !slices.Contains(f.words, field.String()) {
				c.wrong("the %s %.32q, want one of %q", f.name, field.String(), f.words)
			}
			c.bounds(f.name, field, f.absent)
		}
	}
}

// file requires a name in the folder of the image, since a later scan compares the named files. It also accepts an
// absolute path to a file elsewhere, which a later scan does not read.
func (c *checker) file(f File) {
	if f.Name == "" || f.Name == "." || f.Name == ".." || strings.Contains(f.Name, "\x00") ||
		strings.Contains(f.Name, "/") && !path.IsAbs(f.Name) {
		c.wrong("the file %.64q, want a name in the folder of the image", f.Name)
	}
}

// CheckError is like Check, for an error outside of a row.
func CheckError(e *report.Error) error {
	c := checker{}
	c.bounds("error", reflect.ValueOf(e), false)
	return errors.Join(c.errs...)
}

// disk requires a disk with a verdict or the reason for none, and with the state of its machine if it is of depth Full.
// Rows of versions that did not look for that state are read anew.
func (c *checker) disk(d *Disk) {
	if (d.Verdict == align.NothingToJudge) != (d.Content != "") {
		c.wrong("the content %.32q with the verdict %.32q", d.Content, d.Verdict)
	}
	if d.Depth == Head && (d.Fix != nil || d.Advice != nil) {
		c.wrong("a copy or advice for a disk of the depth %s", Head)
	}
	if d.Depth == Full && d.Guest == nil && d.Error == nil {
		c.wrong("a disk of depth %s without the state of its machine", Full)
	}
	if err := d.Boundary.Check(); err != nil {
		c.wrong("%w", err)
	}
	if f := d.Fix; f != nil {
		if f.NewSize < f.OldSize {
			c.wrong("a copy of %d bytes, want %d or more", f.NewSize, f.OldSize)
		}
		c.boundary(f.Boundary)
	}
	if d.Advice != nil {
		c.boundary(d.Advice.Boundary)
	}
}

// boundary requires a boundary that a user can choose, or none.
func (c *checker) boundary(b align.Boundary) {
	if err := b.Check(); err != nil && b != (align.Boundary{}) {
		c.wrong("%w", err)
	}
}

// MostItems bounds the partitions, moves, findings and boot steps in a row, for each kind on all disks together. A GPT
// may have 16,384 partitions; the worst of them are enough.
const MostItems = 1024

// leftOut is the code of the finding about items that Trim has left out.
const leftOut = "details-left-out"

// Items returns the number of items that Trim can leave out. Each takes about a kilobyte of memory.
func (i *Image) Items() (n int) {
	n = len(i.Findings)
	for _, d := range i.Disks {
		n += len(d.Partitions) + len(d.Findings) + len(d.Chain)
		if d.Guest != nil {
			n += len(d.Guest.Signs)
		}
		if d.Fix != nil {
			n += len(d.Fix.Moves) + len(d.Fix.Refusals)
		}
	}
	return n
}

// Trim shortens a row to at most the given number of items of each kind, and adds a finding about the omitted ones. It
// omits the best partitions first. Verdicts, costs and the fix remain.
func (i *Image) Trim(most int) {
	before := i.Items()
	findings, parts, steps, moves, signs := most, most, most, most, most
	i.Findings = slices.DeleteFunc(slices.Clone(i.Findings), func(f align.Finding) bool { return f.Code == leftOut })
	i.Findings = upTo(&findings, i.Findings)
	for k := range i.Disks {
		d := &i.Disks[k]
		d.Partitions = worst(d.Partitions, len(upTo(&parts, d.Partitions)))
		d.Findings, d.Chain = upTo(&findings, d.Findings), upTo(&steps, d.Chain)
		if g := d.Guest; g != nil {
			slices.SortStableFunc(g.Signs, func(a, b boot.Sign) int { return b.State.Gravity() - a.State.Gravity() })
			g.Signs = upTo(&signs, g.Signs)
		}
		if f := d.Fix; f != nil {
			f.Moves = upTo(&moves, f.Moves)
			some := upTo(&findings, f.Refusals)
			if len(some) == 0 && len(f.Refusals) > 0 { // an empty list would mean that the copy can be made
				some = slices.Clone(f.Refusals[:1])
			}
			f.Refusals = some
		}
	}
	if after := i.Items(); after < before {
		i.Findings = append(i.Findings, align.Finding{
			Code: leftOut, Severity: align.Info, Text: "the row has not all partitions and findings: " +
				"there are too many",
			Remedy: "see them with trueup inspect",
		})
	}
}

// upTo returns the first items of a list, at most *left of them, and subtracts their number from *left.
func upTo[T any](left *int, list []T) []T {
	n := min(len(list), *left)
	*left -= n
	return slices.Clone(list[:n])
}

// worst returns n partitions in their order, preferring partitions off the boundary.
func worst(all []report.Partition, n int) []report.Partition {
	out := slices.Clone(all)
	if n == len(all) {
		return out
	}
	slices.SortStableFunc(out, func(a, b report.Partition) int { return badness(b.Verdict) - badness(a.Verdict) })
	out = slices.Clone(out[:n])
	slices.SortFunc(out, func(a, b report.Partition) int { return a.Number - b.Number })
	return out
}

func badness(v align.Verdict) int {
	return slices.Index([]align.Verdict{align.NothingToJudge, align.Aligned, align.BelowBoundary, align.Misaligned}, v)
}

// Digest returns a hash of the facts of a result that matter to users. Results with the same digest are the same:
// state, verdict, format, sizes, the class of the error, each file (name, size, inode, time of the last write), and
// each disk with the places, kinds, contents and verdicts of its partitions. Findings, plans, costs and texts are left
// out, since their wording changes between versions. A name is hashed as in JSON, where invalid UTF-8 is replaced.
func Digest(i *Image) []byte {
	h := sha256.New()
	text := func(name string) string { return string([]rune(name)) }
	fmt.Fprintf(h, "%q %q %q %q %q %d %q %q\n", i.State, i.Verdict, i.Content, i.Format, i.Subformat, i.Size,
		orZero(i.Error).Code, i.Parents)
	for _, f := range i.Files {
		fmt.Fprintf(h, "file %q %d %d %d\n", text(f.Name), f.Size, f.Inode, f.Modified)
	}
	for _, d := range i.Disks {
		fmt.Fprintf(h, "disk %q %d %q %q %q %q\n", text(d.Member), d.Size, d.Table.Scheme, d.Verdict, d.Content,
			orZero(d.Error).Code)
		for _, p := range d.Partitions {
			v := orZero(p.Volume)
			fmt.Fprintf(h, "%d %q %q %d %d %q %q %q\n", p.Number, p.Kind, p.Type, p.Start, p.Size, v.Kind,
				text(v.Label), p.Verdict)
		}
	}
	return h.Sum(nil)
}

// MaxLine bounds a line, in bytes. A row has at most 1024 partitions and findings of each kind, and a summary has the
// PATHs of its scan.
const MaxLine = 64 << 20

// Line is one line of a file with results.
type Line struct {
	Number int    // from 1
	Offset int64  // of its first byte in the file
	Text   []byte // without the line end; valid until the next line is read
	Open   bool   // the file ends without a line end
}

// Lines passes the non-empty lines of r to use. most bounds the bytes of a line with its end.
func Lines(r io.Reader, most int, use func(Line) error) error {
	in := bufio.NewScanner(r)
	in.Buffer(nil, most)
	l, next := Line{}, int64(0)
	in.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		n, text, err := bufio.ScanLines(data, atEOF)
		if text != nil {
			l.Number, l.Offset, l.Open = l.Number+1, next, data[n-1] != '\n'
		}
		next += int64(n)
		return n, text, err
	})
	for in.Scan() {
		if l.Text = bytes.TrimRight(in.Bytes(), "\r"); len(l.Text) == 0 {
			continue
		}
		if err := use(l); err != nil {
			return err
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d: %w: it has more than %d bytes", l.Number+1, ondisk.ErrLimit, most)
	}
	return in.Err()
}

// head holds the fields of all lines.
type head struct {
	Schema  string `json:"schema"`
	Command string `json:"command"`
	Event   string `json:"event"`
}

// rowBegins is the beginning of rows printed by scan. It saves parsing them twice.
const rowBegins = `{"schema":"` + report.Schema + `","command":"` + Command + `","event":"` + imageEvent + `",`

// Kind returns the event of a line, image or summary. unknown is the error of a line of another version or command.
func (l Line) Kind() (event string, unknown, err error) {
	if bytes.HasPrefix(l.Text, []byte(rowBegins)) {
		return imageEvent, nil, nil
	}
	var h head
	if err := jsonv2.Unmarshal(l.Text, &h); err != nil {
		return "", nil, errors.New("no object of JSON: the line is damaged")
	}
	switch {
	case h.Schema == "":
		return "", nil, errors.New("no result of trueup scan")
	case h.Schema != report.Schema:
		return "", ondisk.In(ondisk.ErrUnsupported, "schema %.40q, not %q: read it with the trueup that wrote it",
			h.Schema, report.Schema), nil
	case h.Command != Command && h.Command != ReportCommand:
		return "", ondisk.In(ondisk.ErrUnsupported, "it is a result of trueup %.40q, not of scan -o json",
			h.Command), nil
	case h.Event != "image" && h.Event != "summary":
		return "", nil, fmt.Errorf("event %.40q: must be image or summary", h.Event)
	}
	return h.Event, nil, nil
}

// Image returns the row of a line, whose Kind was image.
func (l Line) Image(options ...jsonv2.Options) (*Image, error) {
	i := NewImage("")
	if err := l.row(i, &i.Path, options...); err != nil {
		return nil, err
	}
	i.Command = Command // even in a row of a report
	return i, nil
}

// Head returns the row of a line, whose Kind was image, with its path and its state alone.
func (l Line) Head() (*Image, error) {
	var h struct {
		Path      string `json:"path"`
		PathBytes string `json:"path_base64"`
		State     State  `json:"state"`
	}
	if err := l.row(&h, &h.Path); err != nil {
		return nil, err
	}
	return &Image{Path: h.Path, PathBytes: h.PathBytes, State: h.State}, nil
}

// row decodes a row, with its path.
func (l Line) row(v any, path *string, options ...jsonv2.Options) error {
	if err := jsonv2.Unmarshal(l.Text, v, options...); err != nil {
		return errors.New("no row of an image: the line is damaged")
	}
	if *path == "" {
		return errors.New("a row without a path")
	}
	return nil
}

// Summary returns the summary of a line, whose Kind was summary, with the fields that a report needs.
func (l Line) Summary() (*Summary, error) {
	s := NewSummary()
	if err := jsonv2.Unmarshal(l.Text, s); err != nil {
		return nil, errors.New("no summary: the line is damaged")
	}
	for _, at := range []*string{&s.Started, &s.Finished} { // they are compared as texts
		parsed, err := time.Parse(time.RFC3339, *at)
		if err != nil {
			return nil, fmt.Errorf("a summary with the time %.40q", *at)
		}
		*at = parsed.UTC().Format(time.RFC3339)
	}
	if min(s.Skipped, s.Temporary, s.Links) < 0 || s.UnreadableCount < len(s.Unreadable) ||
		s.UnreadableCount > MaxCount {
		return nil, errors.New("a summary with impossible counts")
	}
	for n := range s.Unreadable {
		if err := CheckError(&s.Unreadable[n].Error); err != nil {
			return nil, err
		}
	}
	if err := s.Labels.Check(); err != nil {
		return nil, err
	}
	return s, nil
}

// MaxCount bounds the places counted by a summary, so that no sum overflows.
const MaxCount = 1 << 30
