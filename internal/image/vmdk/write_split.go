package vmdk

import (
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	// splitSize is what VMware puts into one extent of a split disk, in bytes: 4192256 sectors, which is 2 GB less 1
	// MiB, so that the tables of a sparse extent have room below 2 GB too. qemu-img takes a whole 2 GB. Every unit
	// divides it.
	splitSize = 4192256 * units.SectorSize
	// maxWritten is how many extents are written: the files are open all at once.
	maxWritten = 512
)

// splitTarget writes a disk as extents of splitSize, and the descriptor when all of them are complete.
type splitTarget struct {
	extents    []driver.Target
	descriptor driver.WriteFile
	text       []byte
}

// newSplitTarget creates the extents of a disk.
func newSplitTarget(
	f driver.WriteFile, kind string, size, grain int64, from *descriptor, o driver.Options,
) (*splitTarget, error) {
	if most := maxWritten * splitSize; size > most {
		return nil, fmt.Errorf("%s of %d bytes: %w of %d bytes in %d files; choose --to vmdk:%s", kind, size,
			ondisk.ErrLimit, most, maxWritten, monolithicSparse)
	}
	t := &splitTarget{descriptor: f}
	var lines []string
	for off := int64(0); off < size; off += splitSize {
		line, err := t.add(kind, min(splitSize, size-off), grain, o)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	t.text = from.copyFor(kind, size, lines, o.Seed, o.BIOS)
	return t, nil
}

// add creates the next extent and gives its line.
func (t *splitTarget) add(kind string, size, grain int64, o driver.Options) (string, error) {
	number := len(t.extents) + 1
	if kind == splitFlat {
		f, name, err := o.Beside(fmt.Sprintf("-f%03d", number))
		if err != nil {
			return "", err
		}
		x, err := driver.NewFlat(f, size)
		t.extents = append(t.extents, x)
		return fmt.Sprintf("RW %d FLAT \"%s\" 0", size/units.SectorSize, name), err
	}
	f, name, err := o.Beside(fmt.Sprintf("-s%03d", number))
	if err != nil {
		return "", err
	}
	x, err := newSparseTarget(f, size, grain, nil)
	t.extents = append(t.extents, x)
	return fmt.Sprintf("RW %d SPARSE \"%s\"", size/units.SectorSize, name), err
}

// Unit returns the unit of every extent.
func (t *splitTarget) Unit() int64 { return t.extents[0].Unit() }

// Reserve places the parts of a range in their extents.
func (t *splitTarget) Reserve(off, n int64) error {
	return cut(off, n, func(i int, into, _, n int64) error { return t.extents[i].Reserve(into, n) })
}

// WriteAt writes the parts of a range to their extents.
func (t *splitTarget) WriteAt(p []byte, off int64) (int, error) {
	done := 0
	err := cut(off, int64(len(p)), func(i int, into, at, n int64) error {
		m, err := t.extents[i].WriteAt(p[at:at+n], into)
		done += m
		return err
	})
	return done, err
}

// cut cuts a range of the disk where extents meet. part gets the number of the extent, the offsets of the piece in
// the extent and in the range, and its length.
func cut(off, n int64, part func(i int, into, at, n int64) error) error {
	for at := int64(0); at < n; {
		i, into := (off+at)/splitSize, (off+at)%splitSize
		m := min(splitSize-into, n-at)
		if err := part(int(i), into, at, m); err != nil {
			return err
		}
		at += m
	}
	return nil
}

// Finish completes the extents, and then writes the descriptor, without which they are no disk.
func (t *splitTarget) Finish() error {
	for _, x := range t.extents {
		if err := x.Finish(); err != nil {
			return err
		}
	}
	if _, err := t.descriptor.WriteAt(t.text, 0); err != nil {
		return err
	}
	return t.descriptor.Sync()
}
