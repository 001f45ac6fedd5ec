package boot

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
)

// Bytes of a reference that are listed as one patch.
const (
	wholeField = 16 // a reference up to this length is a field: all of it
	joinWithin = 16 // bytes that are equal on both sides of it, and too few to be worth another line
)

// Patches make the reference mean the byte offset to, in a partition that moves by shift bytes. Of a long reference, a region with
// a checksum, only the stretches that differ are listed.
func (r Ref) Patches(shift, to int64) ([]disk.Patch, error) {
	b, err := r.Encode(r.Raw, to)
	if err != nil {
		return nil, err
	}
	at := r.At.Off + shift
	reason := fmt.Sprintf("%s of partition %d: %d -> %d", r.Kind, r.Partition, r.Points, to)
	if len(b) <= wholeField {
		return []disk.Patch{{Off: at, Old: r.Raw, New: b, Reason: reason}}, nil
	}
	var patches []disk.Patch
	for _, d := range differences(r.Raw, b) {
		patches = append(patches, disk.Patch{Off: at + d.Off, Old: r.Raw[d.Off:d.End()], New: b[d.Off:d.End()], Reason: reason})
	}
	return patches, nil
}

// differences are the stretches in which two texts of the same length differ.
func differences(a, b []byte) []disk.Range {
	var out []disk.Range
	for i := range a {
		if a[i] == b[i] {
			continue
		}
		off := int64(i)
		if k := len(out) - 1; k >= 0 && off-out[k].End() <= joinWithin {
			out[k].Len = off + 1 - out[k].Off
			continue
		}
		out = append(out, disk.Range{Off: off, Len: 1})
	}
	return out
}
