package scan

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"os"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan/results"
)

// table holds a record of each row. The rows themselves stay in the files.
type table struct {
	ctx   context.Context //nolint:containedctx // of the run
	files []*os.File
	err   error // the first error of rows

	records []record // in the order of the input
	paths   []byte   // of all records
	kept    []kept   // one of each image, in the order of first rows; sort puts them in report order

	ended   []string         // end time of each scan, empty without a summary
	labels  []results.Labels // shared by records, never modified
	labelAt map[string]int32
	line    []byte       // buffer of the last line read
	seed    maphash.Seed // of record.text
}

// record describes a row. It has no pointers, so that a million records cost the garbage collector nothing.
type record struct {
	key                sum    // of the identity of the image; zero if unidentified
	main               uint64 // hash of size and times of the main file; 0 without files
	text               uint64 // hash of the line
	offset, path       int64  // of the line in its file, and of the path in table.paths
	length, pathLength int32  // bytes of the line and of the path
	file               int32  // index in table.files
	labels, scan       int32  // indexes in table.labels and table.ended
	by                 int8   // index in identities
}

// kept describes the rows of one image.
type kept struct {
	order         results.Order
	record, first int32 // indexes of records: the latest row, which counts, and the first row
	labels, rows  int32 // index of the merged labels, and number of rows
}

// maxPaths bounds the paths of all rows, in bytes.
const maxPaths = 1 << 30

// runError marks an error that ends the run, as opposed to an error of one row.
type runError struct{ error }

func (e runError) Unwrap() error { return e.error }

func (t *table) close() (err error) {
	for _, f := range t.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// Keys that identify the image of a row.
const (
	byDatastore  = "datastore"   // the label datastore, and the path below the only folder scanned
	byFileSystem = "file_system" // the UUID of the file system, inode, size and times of the main file
)

// identities are the values of record.by.
var identities = []string{"", byDatastore, byFileSystem}

// put adds a row of the last file.
func (t *table) put(i *results.Image, l results.Line) error {
	path := i.ExactPath()
	if len(t.records) == maxRows || len(t.paths)+len(path) > maxPaths {
		return runError{fmt.Errorf("%w of %d rows and %d bytes of their paths in one report", ondisk.ErrLimit, maxRows,
			maxPaths)}
	}
	r := record{
		offset: l.Offset, length: small(len(l.Text)), file: small(len(t.files) - 1),
		path: int64(len(t.paths)), pathLength: small(len(path)), labels: t.labelIndex(i.Labels),
		scan: small(len(t.ended)), text: maphash.Bytes(t.seed, l.Text),
	}
	if len(i.Files) > 0 {
		f := i.Files[0]
		main := sumOf(fmt.Sprint(f.Size, f.Modified, f.Changed))
		r.main = binary.BigEndian.Uint64(main[:]) | 1
		if i.FileSystem != "" {
			r.identify(byFileSystem,
				fmt.Sprintf("%q %d %d %d %d", i.FileSystem, f.Inode, f.Size, f.Modified, f.Changed))
		}
	}
	t.records, t.paths = append(t.records, r), append(t.paths, path...)
	return nil
}

// identify sets the key that identifies the image of a row.
func (r *record) identify(by, key string) {
	r.key = sumOf(by + "\x00" + key)
	r.by = int8(slices.Index(identities, by)) //nolint:gosec // there are three
}

// end ends the rows of a scan. It identifies rows by their datastore, relative to the PATHs of the summary. s is nil
// for a scan without a summary.
func (t *table) end(s *results.Summary) {
	scan := small(len(t.ended))
	if s == nil {
		t.ended = append(t.ended, "")
		return
	}
	t.ended = append(t.ended, s.Finished)
	roots := results.NewRoots(s.Paths)
	for n := len(t.records) - 1; n >= 0 && t.records[n].scan == scan; n-- {
		r := &t.records[n]
		if store := t.labels[r.labels][byDatastore]; len(store) == 1 {
			if name := below(roots, string(t.pathOf(small(n)))); name != "" {
				r.identify(byDatastore, fmt.Sprintf("%q %q", store[0], name))
			}
		}
	}
}

// small converts a number that maxRows or results.MaxLine bounds.
func small(n int) int32 { return int32(n) } //nolint:gosec // see above

// labelIndex returns the index of labels in t.labels. It adds labels that are new.
func (t *table) labelIndex(l results.Labels) int32 {
	key := fmt.Sprintf("%q", map[string][]string(l)) // fmt sorts the keys
	n, ok := t.labelAt[key]
	if !ok {
		n = small(len(t.labels))
		t.labelAt[key], t.labels = n, append(t.labels, l)
	}
	return n
}

func (t *table) pathOf(n int32) []byte {
	r := &t.records[n]
	return t.paths[r.path : r.path+int64(r.pathLength)]
}

// join merges the rows about one image. The row of the last run counts; of runs with the same end time, the first row.
func (t *table) join() {
	all := make([]int32, len(t.records))
	for n := range all {
		all[n] = small(n)
	}
	slices.SortFunc(all, func(a, b int32) int {
		return cmp.Or(bytes.Compare(t.records[a].key[:], t.records[b].key[:]), cmp.Compare(a, b))
	})
	t.kept = make([]kept, 0, len(all))
	last := -1 // index in kept of the current key
	for _, n := range all {
		r := &t.records[n]
		if r.key == (sum{}) || last < 0 || t.records[t.kept[last].record].key != r.key {
			last = len(t.kept)
			t.kept = append(t.kept, kept{record: n, first: n, labels: r.labels, rows: 1})
			continue
		}
		k := &t.kept[last]
		if !t.sameImage(k.record, n) {
			r.key = sum{}
			t.kept = append(t.kept, kept{record: n, first: n, labels: r.labels, rows: 1})
			continue
		}
		k.rows++
		if t.ended[r.scan] > t.ended[t.records[k.record].scan] {
			k.record = n
		}
		if k.labels != r.labels {
			k.labels = t.labelIndex(t.labels[k.labels].Merge(t.labels[r.labels]))
		}
	}
	slices.SortFunc(t.kept, func(a, b kept) int { return cmp.Compare(a.first, b.first) })
}

// sameImage reports whether two rows with the same key are about the same image. A datastore can be scanned from
// several folders, in which different images have the same relative path. Such rows match if their absolute paths are
// equal, or their main files.
func (t *table) sameImage(k, n int32) bool {
	a, b := &t.records[k], &t.records[n]
	path := t.pathOf(n)
	return identities[b.by] == byFileSystem || bytes.HasPrefix(path, []byte("/")) && bytes.Equal(path, t.pathOf(k)) ||
		a.main != 0 && a.main == b.main
}

// read reads the row that counts of an image back from its file. It has the labels of all rows of the image.
func (t *table) read(k *kept) (*results.Image, error) {
	r := &t.records[k.record]
	t.line = slices.Grow(t.line[:0], int(r.length))[:r.length]
	if _, err := t.files[r.file].ReadAt(t.line, r.offset); err != nil {
		return nil, err
	}
	if maphash.Bytes(t.seed, t.line) != r.text {
		return nil, fmt.Errorf("%s was changed while it was read", t.files[r.file].Name())
	}
	i, err := results.Line{Text: t.line}.Image(jsontext.AllowDuplicateNames(true)) // checked before
	if err != nil {
		return nil, err
	}
	i.Reuse, i.Joined, i.Labels = nil, nil, t.labels[k.labels] // the first two are valid for one scan only
	i.SetPath(i.ExactPath())
	if k.rows > 1 {
		i.Joined = &results.Joined{By: identities[r.by], Rows: int(k.rows)}
	}
	return i, nil
}

// rows yields the row of each image, in the order of t.kept. The first error ends them.
func (t *table) rows(yield func(*kept, *results.Image) bool) {
	for n := range t.kept {
		if t.err = cmp.Or(t.err, t.ctx.Err()); t.err != nil {
			return
		}
		k := &t.kept[n]
		var i *results.Image
		if i, t.err = t.read(k); t.err != nil || !yield(k, i) {
			return
		}
	}
}

// sort puts the rows into report order, like results.Compare.
func (t *table) sort() {
	slices.SortFunc(t.kept, func(a, b kept) int {
		return cmp.Or(a.order.Compare(b.order), bytes.Compare(t.pathOf(a.record), t.pathOf(b.record)),
			cmp.Compare(a.first, b.first))
	})
}

// sorted yields the numbered rows in report order. The first error ends them.
func (t *table) sorted(complete func(*results.Image)) iter.Seq[*results.Image] {
	return func(yield func(*results.Image) bool) {
		number := results.Numbers()
		for _, i := range t.rows {
			complete(i)
			number(i)
			if !yield(i) {
				return
			}
		}
	}
}
