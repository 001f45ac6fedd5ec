package ovf

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/trueup/trueup/internal/ondisk"
)

// edit is a value that gets another text.
type edit struct {
	value
	text string
}

func (e *Envelope) set(v value, text string) { e.edits[v.from] = edit{v, text} }

// SetHref changes the name of a file.
func (e *Envelope) SetHref(id, href string) {
	var text bytes.Buffer
	_ = xml.EscapeText(&text, []byte(href)) // a buffer takes everything
	e.set(e.File(id).href, text.String())
}

// SetFileSize changes the size of a file where the envelope states one.
func (e *Envelope) SetFileSize(id string, n int64) {
	if f := e.File(id); f != nil && f.size.there() {
		e.set(f.size, strconv.FormatInt(n, 10))
	}
}

// SetCapacity changes the capacity of a disk, in bytes. A unit that cannot express it exactly becomes "byte".
func (e *Envelope) SetCapacity(diskID string, n int64) error {
	d := e.disk(diskID)
	if d.Capacity < 0 {
		return fmt.Errorf("capacity of the disk %.256q in the ovf: %w when it is a property or missing; write the "+
			"number of bytes there", d.ID, ondisk.ErrUnsupported)
	}
	unit := d.Unit
	if n%unit != 0 {
		unit = 1
		e.set(d.units, "byte")
	}
	e.set(d.capacity, strconv.FormatInt(n/unit, 10))
	return nil
}

// SetPopulatedSize changes the estimate of what a disk holds, in bytes, where the envelope states one.
func (e *Envelope) SetPopulatedSize(diskID string, n int64) {
	if d := e.disk(diskID); d.populated.there() {
		e.set(d.populated, strconv.FormatInt(n, 10))
	}
}

func (e *Envelope) disk(id string) *Disk {
	return &e.Disks[slices.IndexFunc(e.Disks, func(d Disk) bool { return d.ID == id })]
}

// Fork returns the envelope with no edits, for edits that are not those of e.
func (e *Envelope) Fork() *Envelope {
	f := *e
	f.edits = map[int]edit{}
	return &f
}

// Bytes returns the text with all edits.
func (e *Envelope) Bytes() []byte {
	var out bytes.Buffer
	done := 0
	for _, from := range slices.Sorted(maps.Keys(e.edits)) {
		out.Write(e.text[done:from])
		out.WriteString(e.edits[from].text)
		done = e.edits[from].to
	}
	out.Write(e.text[done:])
	return out.Bytes()
}

// Shape returns the text without the values that copies change, and without white space at its end: what a copy must
// keep.
func (e *Envelope) Shape() []byte {
	f := e.Fork()
	var values []value
	for _, x := range e.Files {
		values = append(values, x.size)
	}
	for _, d := range e.Disks {
		values = append(values, d.capacity, d.units, d.populated)
	}
	for _, v := range values {
		if v.there() {
			f.set(v, "")
		}
	}
	return bytes.TrimSpace(f.Bytes())
}
