// Package identify finds the content of a partition: it asks all probers, and chooses between their answers.
package identify

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Probe asks all probers. Two that match are an issue, never a silent first winner. A volume that no prober knows is
// named by its magic number, or is Unknown. The error is one of reading. at is the byte offset of whole on the disk,
// since messages name places on the disk.
func Probe(whole disk.Disk, at int64) (*volume.Volume, error) { return withContent(whole, at, probeAt) }

// probeAt is Probe without the content of a container.
func probeAt(whole disk.Disk, at int64) (*volume.Volume, error) {
	d, done := withHead(whole, headSize)
	defer done()
	v, err := d.ask(at, d.mayBe)
	if err != nil || v.Kind != volume.Unknown {
		return v, err
	}
	return byMagic(d)
}

// Glance identifies a volume with fewer reads than Probe: a sound one with a mark in its first 4 KiB is believed. Only
// without such a mark does it look farther: for the superblock of an array at the end, and for the remains of an
// earlier use.
func Glance(whole disk.Disk, at int64) (*volume.Volume, error) { return withContent(whole, at, glance) }

// glance is Glance without the content of a container.
func glance(whole disk.Disk, at int64) (*volume.Volume, error) {
	v, err := Front(whole, at)
	if err != nil || (v.Kind != volume.Unknown && !broken(v)) {
		return v, err
	}
	return probeAt(whole, at)
}

// Front identifies a volume by the marks in its first 4 KiB alone.
func Front(whole disk.Disk, at int64) (*volume.Volume, error) {
	d, done := withHead(whole, frontSize)
	defer done()
	if d.head == nil {
		return probeAt(whole, at)
	}
	return d.ask(at, func(p volume.Prober) bool { return len(p.Marks) > 0 && d.mayBe(p) })
}

// ask asks the probers that may know the volume, and chooses between their answers.
func (h headed) ask(at int64, may func(p volume.Prober) bool) (*volume.Volume, error) {
	var found []*volume.Volume
	var d disk.Disk = h // once: each conversion allocates
	for _, p := range Probers {
		if !may(p) {
			continue
		}
		v, err := p.Probe(d)
		switch {
		case errors.Is(err, ondisk.ErrNoMatch):
			continue
		case errors.Is(err, ondisk.ErrFormat):
			err = ondisk.Shift(err, at)
			if v == nil {
				v = &volume.Volume{Kind: p.Kinds[0].Kind}
			}
			v.Issues = append(v.Issues, ondisk.Issue{
				Code: "volume", Effect: ondisk.BadVolume, OnMove: true, Text: err.Error(), Err: err,
				Remedy: "run the guest's own file-system check, or move the partition as opaque bytes with " +
					"--allow-unbootable",
			})
		case err != nil:
			return nil, err
		}
		outgrown(v, d.Size())
		found = append(found, v)
	}
	if len(found) == 0 {
		return &volume.Volume{Kind: volume.Unknown}, nil
	}
	return choose(dropStale(dropSliced(unwrap(found)))), nil
}

// outgrown reports a volume that is larger than its partition, whatever it is. One that lacks a whole block is
// malformed, but for swap, which holds nothing that a move could cut off.
func outgrown(v *volume.Volume, size int64) {
	if v.Size <= size {
		return
	}
	text := fmt.Sprintf("the %s has %d bytes by its own structures, but the partition has %d", v.Kind, v.Size, size)
	const check = "run its check in the guest (fsck, pvck, mdadm --examine), and see whether data are missing"
	switch {
	case v.Kind == volume.Swap:
		v.Note(volume.CodeSize, ondisk.Warn, text, check)
		return
	case v.End() > size:
		v.Issues = append(v.Issues, ondisk.Issue{
			Code: volume.CodeSize, Effect: ondisk.BadVolume, OnMove: true, Text: text, Remedy: check,
			Err: ondisk.In(ondisk.ErrFormat, "%s", text),
		})
		return
	}
	v.Note(volume.CodeSize, ondisk.Warn, text, check)
	v.Note(volume.CodeSize, ondisk.Refuse, text, "correct the partition table or the volume in the guest first")
}

// Sizes of the head that is read once for all probers, in bytes.
const (
	headSize  = volume.HeadSize // most superblocks lie in it
	frontSize = 4 << 10         // those of the common file systems do in this
)

// headed is a disk whose first bytes are in memory.
type headed struct {
	disk.Disk
	head []byte
}

// heads keeps buffers for reuse: a table can name thousands of volumes.
var heads = sync.Pool{New: func() any { return new([headSize]byte) }}

// withHead reads the first size bytes of d. If they cannot be read as a whole, the probers read what they need. done
// returns the buffer, and nothing may read after it.
func withHead(d disk.Disk, size int64) (h headed, done func()) {
	buf, _ := heads.Get().(*[headSize]byte)
	done = func() { heads.Put(buf) }
	head := buf[:min(size, d.Size())]
	if err := ondisk.ReadFull(d, head, 0); err != nil {
		return headed{Disk: d}, done
	}
	return headed{d, head}, done
}

// mayBe reports whether the head has a mark of a prober. Without a head every prober may match.
func (h headed) mayBe(p volume.Prober) bool {
	if h.head == nil || len(p.Marks) == 0 {
		return true
	}
	return slices.ContainsFunc(p.Marks, func(m volume.Mark) bool {
		return m.Off <= len(h.head)-len(m.Bytes) && string(h.head[m.Off:m.Off+len(m.Bytes)]) == m.Bytes
	})
}

// ReadAt reads from the head where it can.
func (h headed) ReadAt(p []byte, off int64) (int, error) {
	if off >= 0 && off <= int64(len(h.head)-len(p)) {
		return copy(p, h.head[off:]), nil
	}
	return h.Disk.ReadAt(p, off)
}

// prober identifies the volume of a whole disk that begins at a byte offset of another.
type prober = func(whole disk.Disk, at int64) (*volume.Volume, error)

// maxNested bounds containers in one another, such as a cache on a mirror.
const maxNested = 4

// withContent identifies a volume and, where it is a container, the volume at the start of its data.
func withContent(whole disk.Disk, at int64, identify prober) (*volume.Volume, error) {
	v, err := identify(whole, at)
	if err != nil {
		return v, err
	}
	outer := v
	for range maxNested {
		inside := disk.Range{Off: v.DataStart, Len: whole.Size() - v.DataStart}
		if v.Content == nil && (!v.Holds || v.DataStart == 0 || inside.Len <= 0) {
			break
		}
		whole, at = disk.Section(whole, inside), at+inside.Off
		if v.Content == nil {
			found, err := identify(whole, at)
			if err != nil {
				return outer, err
			}
			if v.Content = sound(found); v.Content == nil {
				break
			}
			v.Add("content", describe(found))
			v.Inherit(found)
			if v != outer {
				outer.Inherit(found)
			}
		}
		v = v.Content
	}
	return outer, nil
}

// Slices identifies the volumes in the slices of a table inside of a partition.
func Slices(whole disk.Disk, at int64, v *volume.Volume, identify prober) error {
	if !Sliced(v.Kind) {
		return nil
	}
	for i, p := range v.Parts {
		if p.Start < 0 || p.Start+p.Size > whole.Size() {
			continue
		}
		found, err := identify(disk.Section(whole, disk.Range{Off: p.Start, Len: p.Size}), at+p.Start)
		if err != nil {
			return err
		}
		if !Sliced(found.Kind) { // one at the start of the partition begins with the table itself
			v.Parts[i].Content = sound(found)
		}
	}
	return nil
}

// Probers lists all probers. All of them run on every partition.
var Probers = append([]volume.Prober{ntfs.Prober, fat.Prober, ext.Prober}, volume.Probers...)

// Kinds yields all kinds: those of probers, those that have a magic number only, and those that no content shows. A
// kind of several probers comes for each.
func Kinds(yield func(*volume.Traits) bool) {
	for _, p := range Probers {
		for i := range p.Kinds {
			if !yield(&p.Kinds[i]) {
				return
			}
		}
	}
	for i := range magics {
		if !yield(&magics[i].Traits) {
			return
		}
	}
	_ = yield(&dynamicPartition) && yield(&unknown)
}

// Kinds that no content shows.
var (
	unknown = volume.Traits{Kind: volume.Unknown}
	// dynamicPartition is a partition of a dynamic disk of Windows, known by its type in the partition table.
	dynamicPartition = volume.Traits{Kind: volume.LDM, Title: "dynamic disk (LDM)", Data: "first volume"}
)

// Traits returns the traits of a kind, with the defaults filled in.
func Traits(k volume.Kind) volume.Traits {
	if t, ok := traits()[k]; ok {
		return t
	}
	return filled(volume.Traits{Kind: k})
}

// traits are those of all kinds. Of a kind of several probers, the first has them.
var traits = sync.OnceValue(func() map[volume.Kind]volume.Traits {
	all := map[volume.Kind]volume.Traits{}
	for t := range Kinds {
		if _, ok := all[t.Kind]; !ok {
			all[t.Kind] = filled(*t)
		}
	}
	return all
})

// filled returns traits with their defaults.
func filled(t volume.Traits) volume.Traits {
	t.Title = cmp.Or(t.Title, t.Slices, string(t.Kind))
	t.Unit = cmp.Or(t.Unit, "block")
	if t.Data == "" {
		t.Data = "first block of the data of " + string(t.Kind)
	}
	t.Realign = cmp.Or(t.Realign, "to align its data, make the volume again and copy them")
	return t
}

// Sliced reports whether a kind is a table inside of a partition, or one of another machine than a PC over the whole
// disk.
func Sliced(k volume.Kind) bool { return Traits(k).Slices != "" }
