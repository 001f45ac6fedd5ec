package scan

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

// earlier holds the rows of an earlier scan, as printed by scan -o json. The rows stay in the file; memory holds a
// place for each. A nil earlier has no rows.
type earlier struct {
	in       *os.File
	name     string // as the user wrote it
	folder   string // the working directory
	settings string // of this run; rows with other settings are only compared
	ended    string // end of the last scan in the file, RFC 3339; empty without a summary
	cut      int    // see cutLine
	places   []place
	at       map[sum]int // index of places, by absolute paths
	left     int         // images that this scan did not reach, not reported as removed
}

// sum is the first half of a SHA-256.
type sum [16]byte

func sumOf(s string) sum {
	all := sha256.Sum256([]byte(s))
	return sum(all[:len(sum{})])
}

// place locates the row of an image in the file, and records whether this run has found the image.
type place struct {
	offset       int64
	length, line int
	row          bool // this run has a row of the image
	noImage      bool // the file exists, but no longer has a row of its own
}

// absolute returns the absolute path that identifies a row. It does not resolve links: the user gives the same PATHs
// again.
func (e *earlier) absolute(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(e.folder, path)
}

// maxRows bounds the rows of an earlier scan and of a report, since each takes memory. It fits an int32.
const maxRows = 1 << 24

// openEarlier reads the results in a file. If first is set, the file need not exist.
func openEarlier(path, settings string, first bool) (*earlier, error) {
	folder, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	in, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && first:
		return &earlier{}, nil
	case err != nil:
		return nil, fmt.Errorf("--since %s: %w", path, sys.Cause(err))
	}
	e := &earlier{in: in, name: path, folder: folder, settings: settings, at: map[sum]int{}}
	if err := results.Lines(in, results.MaxLine, e.addLine); err != nil {
		return nil, errors.Join(e.unusable(err), in.Close())
	}
	return e, nil
}

// unusable adds the file and the remedy to an error of its content.
func (e *earlier) unusable(err error) error {
	return fmt.Errorf("--since %s: %w; name another FILE, or scan without --since", e.name, err)
}

func (e *earlier) close() error {
	if e == nil || e.in == nil {
		return nil
	}
	return e.in.Close()
}

// cutLine returns the number of an incomplete last line, or 0.
func (e *earlier) cutLine() int {
	if e == nil {
		return 0
	}
	return e.cut
}

// rowBegins is the beginning of all lines of results, even of a truncated one.
const rowBegins = `{"schema":"`

// addLine records the row of a line. It skips an incomplete last line, which a killed scan has left.
func (e *earlier) addLine(l results.Line) error {
	err := e.note(l)
	n := min(len(l.Text), len(rowBegins))
	if err != nil && l.Open && !json.Valid(l.Text) && string(l.Text[:n]) == rowBegins[:n] {
		e.cut = l.Number
		return nil
	}
	if err != nil {
		return fmt.Errorf("line %d: %w", l.Number, err)
	}
	return nil
}

func (e *earlier) note(l results.Line) error {
	event, unknown, err := l.Kind()
	if err := cmp.Or(err, unknown); err != nil {
		return err
	}
	if event == "summary" {
		s, err := l.Summary()
		if err == nil && s.Command != results.Command {
			err = errors.New("it is a report of several scans; name the file written by one scan -o json")
		}
		if err == nil {
			e.ended = s.Finished
		}
		return err
	}
	i, err := l.Head()
	if err != nil {
		return err
	}
	at := sumOf(e.absolute(i.ExactPath()))
	if i.State == results.Gone {
		delete(e.at, at)
		return nil
	}
	if len(e.places) == maxRows {
		return fmt.Errorf("%w of %d images", ondisk.ErrLimit, maxRows)
	}
	e.at[at] = len(e.places)
	e.places = append(e.places, place{offset: l.Offset, length: len(l.Text), line: l.Number})
	return nil
}

// decode returns the row of a line, and the identity of its main file if this run may reuse the row. A row of another
// build or with other options serves for comparison only. A row of this build must be one that this build can write.
func (e *earlier) decode(l results.Line) (i *results.Image, id *image.Identity, err error) {
	if i, err = l.Image(); err != nil || i.Reuse == nil || i.Reuse.Settings != e.settings || i.State == results.Gone {
		return i, nil, err
	}
	id = &image.Identity{}
	if err = i.Check(); err == nil && len(i.Files) == 0 {
		err = errors.New("a row without files")
	}
	if err == nil && json.Unmarshal(i.Reuse.Identity, id) != nil {
		err = errors.New("a row without the identity of its file")
	}
	if err == nil {
		err = checkIdentity(*id)
	}
	return i, id, err
}

// find returns the place of the row of a path, or nil if the earlier scan has no such row.
func (e *earlier) find(path string) *place {
	if e == nil {
		return nil
	}
	if n, ok := e.at[sumOf(e.absolute(path))]; ok {
		return &e.places[n]
	}
	return nil
}

// read reads a row back from the file.
func (e *earlier) read(p *place) (i *results.Image, id *image.Identity, err error) {
	text := make([]byte, p.length)
	if _, err = e.in.ReadAt(text, p.offset); err == nil {
		i, id, err = e.decode(results.Line{Number: p.line, Text: text})
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, nil, e.unusable(fmt.Errorf("line %d: %w", p.line, err))
	}
	return i, id, nil
}

// known returns the row of an unchanged file and the identity of the file. This run may reuse the row if nothing else
// has changed.
func (e *earlier) known(x *found) (*results.Image, *image.Identity, error) {
	p := e.find(x.shown)
	if p == nil {
		return nil, nil, nil
	}
	i, id, err := e.read(p)
	if err != nil || id == nil || !x.Unchanged(i.Files[0]) {
		return nil, nil, err
	}
	return i, id, nil
}

// compare records a row of this run and returns its difference from the earlier row, empty without an earlier scan. A
// reused row is Same already.
func (e *earlier) compare(i *results.Image) (results.Change, error) {
	if e == nil {
		return "", nil
	}
	p := e.find(i.ExactPath())
	if p == nil {
		return results.New, nil
	}
	p.row = true
	if i.Change == results.Same {
		return results.Same, nil
	}
	was, _, err := e.read(p)
	if err == nil && bytes.Equal(results.Digest(i), results.Digest(was)) {
		return results.Same, nil
	}
	return results.Changed, err
}

// noImage records that a file exists but is not an image of its own.
func (e *earlier) noImage(x *found) {
	if p := e.find(x.shown); p != nil && x.wanted {
		p.noImage = true
	}
}

// removed returns rows for the images below the paths that only the earlier scan has, in path order. An image that
// still exists was only left out, unless it is no longer an image of its own. has selects paths.
func (e *earlier) removed(paths []string, has func(path string) bool) (out []*results.Image, err error) {
	var there []string
	for _, p := range paths {
		if _, _, err := resolve(p); err == nil {
			there = append(there, filepath.ToSlash(e.absolute(p)))
		}
	}
	roots := results.NewRoots(there)
	for _, n := range e.at {
		p := &e.places[n]
		if p.row {
			continue
		}
		was, _, err := e.read(p)
		if err != nil {
			return nil, err
		}
		path := e.absolute(was.ExactPath())
		if !roots.Has(filepath.ToSlash(path)) || !has(path) || !p.noImage && !gone(path) {
			e.left++
			continue
		}
		i := results.NewImage("")
		i.SetPath(was.ExactPath())
		i.State, i.Change = results.Gone, results.Removed
		i.Format, i.Subformat, i.Size, i.Stored, i.Labels = was.Format, was.Subformat, was.Size, was.Stored, was.Labels
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b *results.Image) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// gone reports whether a path does not exist.
func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) || err != nil && sys.NotFolder(err)
}

// reusable returns the conditions under which a later scan may reuse a row, or nil if it must not.
func (r *search) reusable(x *found, i *results.Image, beside string) *results.Reuse {
	if r.settings == "" || !x.regular || i.Fleeting || len(i.Files) == 0 || !x.Unchanged(i.Files[0]) ||
		slices.ContainsFunc(i.Files, func(f results.File) bool { return !settled(f, r.start) }) {
		return nil
	}
	id, err := json.Marshal(x.id)
	if err != nil {
		return nil // a later scan judges the image anew
	}
	return &results.Reuse{Settings: r.settings, Identity: id, Beside: beside}
}

// settled reports whether the time stamp of a file is old enough to prove that the file is unchanged. Time stamps
// advance in steps, so a file may change twice under one stamp: a stamp counts only if it is older than the run by more
// than a step. A step is at most 10 ms on Linux (one tick at 100 Hz), and 2 s for stamps in whole seconds.
func settled(f results.File, started time.Time) bool {
	step := 20 * time.Millisecond
	if f.Changed%int64(time.Second) == 0 {
		step = 2 * time.Second
	}
	return time.Unix(0, f.Changed).Add(step).Before(started)
}

// unchanged reports whether all files of an image are unchanged since it was judged. It returns false for an image with
// a parent in another folder, whose name is a path: the row does not cover the files around that parent.
func unchanged(dir string, i *results.Image) bool {
	for _, f := range i.Files {
		if filepath.IsAbs(f.Name) {
			return false
		}
		if now, err := stat(filepath.Join(dir, f.Name), f.Name); err != nil || !now.Unchanged(f) {
			return false
		}
	}
	return true
}
