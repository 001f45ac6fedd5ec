package align

import (
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// inside is a volume whose data begin behind its own start, such as the clusters of a FAT or the extents of LVM.
type inside struct {
	v        *volume.Volume // whose data begin there: of containers in one another one of the inner ones
	start    int64          // of the data behind off, bytes
	off      int64          // of the outermost volume on the disk, bytes
	boundary int64
	number   int // of the partition, 0: the whole disk
}

// unit returns the boundary for the start of the data, 0 if there is nothing to gain. If clusters are smaller than the
// boundary, it is enough that each lies within one storage block (4 KiB).
func (i inside) unit() int64 {
	switch size := i.v.BlockSize; {
	case i.start == 0 || (size > 0 && size < Block):
		return 0
	case size > 0 && size < i.boundary:
		return Block
	}
	return i.boundary
}

// finding reports data off a boundary that no move of the partition to one mends.
func (i inside) finding() (Finding, bool) {
	unit := i.unit()
	if unit == 0 {
		return Finding{}, false
	}
	data := i.off + i.start
	switch outer, inner := i.off%unit == 0, data%unit == 0; {
	case outer && !inner:
		where := fmt.Sprintf("starts on a multiple of %s, but", units.Format(unit))
		if i.number == 0 {
			where = "is a volume as a whole:"
		}
		return i.misaligned(where, data, unit), true
	case !outer && !inner && i.start%unit != 0:
		return i.misaligned("starts off a boundary and its data do so on their own account:", data, unit), true
	}
	return Finding{}, false
}

// misaligned returns the finding of data off a boundary, which stay so when the volume is on one.
func (i inside) misaligned(where string, data, unit int64) Finding {
	f := i.base("nested-misaligned", Info)
	past := fmt.Sprintf("%s past a multiple of %s", units.Format(data%unit), units.Format(unit))
	if data%Block != 0 {
		f.Severity = Warning
		past = fmt.Sprintf("%d bytes past a 4 KiB boundary", data%Block)
	}
	kind := identify.Traits(i.v.Kind)
	f.Text = fmt.Sprintf("%s the %s lies at byte %d, %s: it was made so", where, kind.Data, data, past)
	if i.number != 0 {
		f.Text += ", and no move of the partition mends it for both"
	}
	f.Remedy = kind.Realign
	return f
}

func (i inside) base(code string, severity Severity) Finding {
	return Finding{Code: code, Severity: severity, Subject: subject(i.number), Partition: i.number, Effect: ondisk.Note}
}

// nested lists the finding of what is inside a partition, or inside the disk where there is no table.
func nested(v *volume.Volume, off int64, number int, boundary int64) []Finding {
	if v == nil {
		return nil
	}
	start, of := v.Data()
	if f, ok := (inside{of, start, off, boundary, number}).finding(); ok {
		return []Finding{f}
	}
	return nil
}
