package align

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/units"
)

// SequentialIO is the size of the I/O with which a guest is taken to read a file from its start to its end, in bytes.
const SequentialIO = 64 * units.KiB

// maxReadSteps bounds the looks into the map for all files of a disk, and maxReadParts the parts of their I/O.
const (
	maxReadSteps = 1 << 19
	maxReadParts = 1 << 26
)

// Reads is what reading a file once costs the storage.
type Reads struct {
	IO     int64   `json:"io"` // of the guest
	Now    Touches `json:"now"`
	Copied Touches `json:"copied"` // in a copy whose partitions are aligned, stored in the order of the disk
}

// Touches counts the requests for contiguous bytes of one file, and the blocks of the storage that they touch.
type Touches struct {
	Requests int64 `json:"requests"`
	Blocks   int64 `json:"blocks"`
}

// Cost computes what reading files of the guest costs.
type Cost struct {
	walk
	block, shift int64
	parts        int64
}

// NewCost returns the costs on a storage with blocks of so many bytes, which begin so many behind a multiple of that.
func NewCost(d disk.Disk, block, offset int64) *Cost {
	return &Cost{walk: walk{disk: d}, block: block, shift: (block - offset%block) % block}
}

// touching is a request that may go on.
type touching struct {
	Touches
	block int64
	file  driver.File
	io    int64 // number of the I/O in the file
	at    int64
	end   int64
}

// add adds bytes of an I/O. They continue the request where they follow it in the same file.
func (t *touching) add(f driver.File, io, at, n int64) {
	if t.Requests == 0 || f != t.file || io != t.io || at != t.end {
		t.finish()
		t.Requests++
		t.file, t.io, t.at = f, io, at
	}
	t.end = at + n
}

// finish counts the blocks of the request.
func (t *touching) finish() {
	if t.end > t.at {
		t.Blocks += (t.end+t.block-1)/t.block - t.at/t.block
	}
}

// Read returns what it costs to read a file of the volume that starts at byte at of the disk; nil where that is not
// known: compressed data have no place, and a map can be too long. What is not stored costs nothing.
func (c *Cost) Read(at int64, runs []guestfile.Run) (*Reads, error) {
	now, copied := touching{block: c.block}, touching{block: c.block}
	var last, ios int64 = -1, 0
	for _, r := range runs {
		for off := int64(0); off < r.Len; {
			if c.steps++; c.steps > maxReadSteps {
				return nil, nil //nolint:nilnil // not known, as the comment promises
			}
			run, depth, err := disk.Leaf(c.disk, at+r.At+off)
			if err != nil {
				return nil, err
			}
			c.steps += depth
			f, plain := run.Src.(driver.File)
			n := min(run.Len, r.Len-off)
			hole := run.Src == nil
			switch {
			case plain:
				run.Len = n
				if n, hole, err = c.held(f, run); err != nil {
					return nil, err
				}
			case !hole:
				return nil, nil //nolint:nilnil // as above
			}
			for done := int64(0); done < n && !hole; {
				pos := r.Off + off + done
				io := pos / SequentialIO
				part := min(n-done, SequentialIO-pos%SequentialIO)
				if c.parts++; c.parts > maxReadParts {
					return nil, nil //nolint:nilnil // as above
				}
				if io != last {
					last, ios = io, ios+1
				}
				now.add(f, io, c.shift+run.Off+done, part)
				copied.add(nil, io, c.shift+r.At+off+done, part)
				done += part
			}
			off += n
		}
	}
	if runs == nil {
		return nil, nil //nolint:nilnil // as above
	}
	now.finish()
	copied.finish()
	return &Reads{IO: ios, Now: now.Touches, Copied: copied.Touches}, nil
}
