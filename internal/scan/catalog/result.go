package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/klauspost/compress/flate"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// maxResult bounds the JSON of one image. An image with a longer one is noted, and read again by the next run.
const maxResult = 32 << 20

// Unchanged reports whether a file is unchanged: the same size, inode and times. The device does not count, since its
// number is another one after a restart for network file systems, Btrfs and LVM; a clone of a whole file system that
// has the same inodes and times has the same files too.
func Unchanged(a, b results.File) bool {
	return a.Size == b.Size && a.Inode == b.Inode && a.Modified == b.Modified && a.Changed == b.Changed
}

// settled reports whether the numbers of a file surely stand for the bytes that were read. Time stamps advance in
// steps, so that a file may change twice under one of them: numbers count only when they are older than the run by more
// than a step. That is 10 ms on Linux at most (one tick at 100 Hz), and 2 s where stamps have whole seconds.
func settled(f results.File, started time.Time) bool {
	step := 20 * time.Millisecond
	if f.Changed%int64(time.Second) == 0 {
		step = 2 * time.Second
	}
	return time.Unix(0, f.Changed).Add(step).Before(started)
}

// stored is an image as the catalogue keeps it. File names are bytes, and JSON is text, so they stand there a second
// time.
type stored struct {
	*results.Image
	Names [][]byte `json:"name_bytes"`
}

// encode returns the whole row of an image, without the fields of a single run.
func encode(i *results.Image) ([]byte, error) {
	row := *i
	row.Change, row.Read, row.Accepted, row.Labels = "", 0, nil, nil
	if i.Priority != nil {
		p := *i.Priority
		p.Rank = 0
		row.Priority = &p
	}
	s := stored{Image: &row}
	for _, f := range i.Files {
		s.Names = append(s.Names, []byte(f.Name))
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if len(raw) > maxResult {
		return nil, nil
	}
	return deflate(raw)
}

// decode returns an image. ok is false for bytes that are no row of an image: the file is untrusted.
func decode(packed []byte) (i *results.Image, ok bool) {
	u := unpackers.Get().(*unpacker) // nothing else is in it
	defer func() {
		if u.raw.Cap() <= 1<<20 { // few results are larger
			unpackers.Put(u)
		}
	}()
	raw, err := u.inflate(packed)
	if err != nil {
		return nil, false
	}
	s := stored{Image: results.NewImage("")}
	if jsonv2.Unmarshal(raw, &s) != nil || len(s.Names) != len(s.Files) {
		return nil, false
	}
	for n, name := range s.Names {
		s.Files[n].Name = string(name)
	}
	return s.Image, true
}

// unpacker unpacks one result after the other.
type unpacker struct {
	io.ReadCloser
	raw bytes.Buffer
}

// unpackers and writers are kept, since new ones need more time than they save.
var unpackers = sync.Pool{New: func() any { return &unpacker{ReadCloser: flate.NewReader(nil)} }}

var writers = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is one of flate's own
	}
	return w
}}

func deflate(raw []byte) ([]byte, error) {
	var out bytes.Buffer
	w := writers.Get().(*flate.Writer)
	defer writers.Put(w)
	w.Reset(&out)
	_, err := w.Write(raw)
	err = errors.Join(err, w.Close())
	return out.Bytes(), err
}

// inflate returns bytes that the next result overwrites.
func (u *unpacker) inflate(packed []byte) ([]byte, error) {
	if err := u.ReadCloser.(flate.Resetter).Reset(bytes.NewReader(packed), nil); err != nil { // as NewReader promises
		return nil, err
	}
	u.raw.Reset()
	_, err := u.raw.ReadFrom(io.LimitReader(u, maxResult+1))
	if err == nil && u.raw.Len() > maxResult {
		err = fmt.Errorf("result: more than %d bytes", maxResult)
	}
	return u.raw.Bytes(), err
}

// Digest returns a hash of the facts of a result that matter to users. Results with the same digest are the same:
// state, verdict, format, sizes, the class of the error, each file (name, size, inode, time of the last write), and
// each disk with the places, kinds, contents and verdicts of its partitions. Findings, plans, costs and texts are not
// in it, since a new version words them anew.
func Digest(i *results.Image) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %q %d %q %q\n", i.State, i.Verdict, i.Content, i.Format, i.Subformat, i.Size,
		code(i.Error), i.Parents)
	for _, f := range i.Files {
		fmt.Fprintf(h, "file %q %d %d %d\n", f.Name, f.Size, f.Inode, f.Modified)
	}
	for _, d := range i.Disks {
		fmt.Fprintf(h, "disk %q %d %q %q %q %q\n", d.Member, d.Size, d.Table.Scheme, d.Verdict, d.Content,
			code(d.Error))
		for _, p := range d.Partitions {
			volume, label := content(p)
			fmt.Fprintf(h, "%d %q %q %d %d %q %q %q\n", p.Number, p.Kind, p.Type, p.Start, p.Size, volume, label,
				p.Verdict)
		}
	}
	return h.Sum(nil)
}

func code(e *report.Error) string {
	if e == nil {
		return ""
	}
	return e.Code
}

// content returns the kind and the label of the volume in a partition.
func content(p report.Partition) (kind, label string) {
	if p.Volume == nil {
		return "", ""
	}
	return p.Volume.Kind, p.Volume.Label
}
