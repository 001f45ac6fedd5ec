// Package identify identifies the content of a partition: it runs all probers, and chooses between their results.
package identify

import (
	"cmp"
	_ "embed" // magic numbers
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Probe runs all probers. Two matches are an issue, never a silent first winner. Without a match, the magic number
// decides, or the volume is Unknown. The error is a read error. at is the byte offset of whole on the disk, since
// messages report offsets on the disk.
func Probe(whole disk.Disk, at int64) (*volume.Volume, error) { return withContent(whole, at, probeAt) }

// probeAt is Probe without the content of a container.
func probeAt(whole disk.Disk, at int64) (*volume.Volume, error) {
	d, done := withHead(whole, headSize)
	defer done()
	v, err := d.probe(at, d.mayBe)
	if err != nil || v.Kind != volume.Unknown {
		return v, err
	}
	return byMagic(d)
}

// Glance identifies a volume with fewer reads than Probe: it accepts a sound volume with a mark in its first 4 KiB.
// Without such a mark it also looks for the superblock of an array at the end, and for remains of an earlier use.
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
	return d.probe(at, func(p volume.Prober) bool { return len(p.Marks) > 0 && d.mayBe(p) })
}

// probe runs the probers that may match, and chooses between their results.
func (h headed) probe(at int64, may func(p volume.Prober) bool) (*volume.Volume, error) {
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
		checkSize(v, d.Size())
		found = append(found, v)
	}
	if len(found) == 0 {
		return &volume.Volume{Kind: volume.Unknown}, nil
	}
	return choose(dropStale(dropSliced(unwrap(found)))), nil
}

// checkSize adds an issue if a volume of any kind is larger than its partition. A volume that lacks a whole block is
// malformed, except swap, which holds no data that a move could cut off.
func checkSize(v *volume.Volume, size int64) {
	if v.Size <= size {
		return
	}
	text := fmt.Sprintf("the %s has %d bytes by its own structures, but the partition has %d", v.Kind, v.Size, size)
	const check = "check it in the guest (fsck, pvck, mdadm --examine) for missing data"
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
	headSize  = volume.HeadSize // contains most superblocks
	frontSize = 4 << 10         // contains the superblocks of the common file systems
)

// headed is a disk whose first bytes are in memory.
type headed struct {
	disk.Disk
	head []byte
}

// heads is a pool of buffers: a table can list thousands of volumes.
var heads = sync.Pool{New: func() any { return new([headSize]byte) }}

// withHead reads the first size bytes of d. If this read fails, each prober reads for itself. done returns the buffer,
// and nothing may read after it.
func withHead(d disk.Disk, size int64) (h headed, done func()) {
	buf, _ := heads.Get().(*[headSize]byte)
	done = func() { heads.Put(buf) }
	head := buf[:min(size, d.Size())]
	if err := ondisk.ReadFull(d, head, 0); err != nil {
		return headed{Disk: d}, done
	}
	return headed{d, head}, done
}

// mayBe reports whether the head contains a mark of a prober. Without a head every prober may match.
func (h headed) mayBe(p volume.Prober) bool {
	if h.head == nil || len(p.Marks) == 0 {
		return true
	}
	return slices.ContainsFunc(p.Marks, func(m volume.Mark) bool {
		return m.Off <= len(h.head)-len(m.Bytes) && string(h.head[m.Off:m.Off+len(m.Bytes)]) == m.Bytes
	})
}

// ReadAt reads from the head if it covers the range.
func (h headed) ReadAt(p []byte, off int64) (int, error) {
	if off >= 0 && off <= int64(len(h.head)-len(p)) {
		return copy(p, h.head[off:]), nil
	}
	return h.Disk.ReadAt(p, off)
}

// prober identifies the volume on a whole disk, which begins at byte at of another disk.
type prober = func(whole disk.Disk, at int64) (*volume.Volume, error)

// maxNested limits nested containers, such as a cache on a mirror.
const maxNested = 4

// withContent identifies a volume and, for a container, the volume at the start of its data.
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
			if err != nil || sound(found) == nil {
				return outer, err
			}
			v.Content = found
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
		if !Sliced(found.Kind) { // a slice at the start of the partition begins with the table itself
			v.Parts[i].Content = sound(found)
		}
	}
	return nil
}

// Probers lists all probers. All of them run on every partition.
var Probers = append([]volume.Prober{ntfs.Prober, fat.Prober, ext.Prober}, volume.Probers...)

// Kinds yields all kinds: kinds of probers, kinds with only a magic number, and kinds not visible in the content. It
// yields a kind of several probers several times.
func Kinds(yield func(*volume.Traits) bool) {
	for _, p := range Probers {
		for i := range p.Kinds {
			if !yield(&p.Kinds[i]) {
				return
			}
		}
	}
	for i := range magics() {
		if !yield(&magics()[i].Traits) {
			return
		}
	}
	_ = yield(&dynamicPartition) && yield(&unknown)
}

// Kinds not visible in the content.
var (
	unknown = volume.Traits{Kind: volume.Unknown}
	// dynamicPartition is a partition of a Windows dynamic disk, detected by its type in the partition table.
	dynamicPartition = volume.Traits{Kind: volume.LDM, Title: "dynamic disk (LDM)", Data: "first volume"}
)

// Traits returns the traits of a kind, with the defaults filled in.
func Traits(k volume.Kind) volume.Traits {
	if t, ok := traits.Load(k); ok {
		return t.(volume.Traits)
	}
	for known := range Kinds {
		if known.Kind == k {
			t := filled(*known)
			traits.Store(k, t)
			return t
		}
	}
	return filled(volume.Traits{Kind: k})
}

// traits caches the traits by kind, since each partition and row looks them up.
var traits sync.Map

// filled returns traits with their defaults.
func filled(t volume.Traits) volume.Traits {
	t.Title = cmp.Or(t.Title, t.Slices, string(t.Kind))
	t.Unit = cmp.Or(t.Unit, "block")
	t.Data = cmp.Or(t.Data, "first block of the data of "+string(t.Kind))
	t.Realign = cmp.Or(t.Realign, "to align its data, recreate the volume and copy the data")
	return t
}

// Sliced reports whether a kind is a table inside of a partition, or the table of a machine other than a PC over the
// whole disk.
func Sliced(k volume.Kind) bool { return Traits(k).Slices != "" }

// unwrap resolves matches without a contradiction: a container, and the volume visible at its own start. Examples are a
// Linux RAID with its superblock at the end, and BitLocker To Go, which begins with a FAT.
func unwrap(found []*volume.Volume) []*volume.Volume {
	for i, outer := range found {
		shows := outer.AtEnd && outer.DataStart == 0 || Traits(outer.Kind).ShowsContent
		if len(found) == 1 || !shows {
			continue
		}
		var content []string
		inside := slices.Delete(slices.Clone(found), i, i+1)
		for _, inner := range inside {
			content = append(content, describe(inner))
			outer.Share(inner)
		}
		outer.Add("content", strings.Join(content, ", "))
		if outer.Holds {
			outer.Content = sound(foremost(inside))
		}
		return []*volume.Volume{outer}
	}
	return found
}

// dropStale drops broken superblocks if another volume is sound. A new file system seldom covers all of an old one.
func dropStale(found []*volume.Volume) []*volume.Volume {
	if !slices.ContainsFunc(found, func(v *volume.Volume) bool { return !broken(v) }) {
		return found
	}
	var left []*volume.Volume
	var stale []ondisk.Issue
	for _, v := range found {
		if broken(v) && !Traits(v.Kind).NeverStale {
			stale = append(stale, v.Issues...)
		} else {
			left = append(left, v)
		}
	}
	for _, r := range stale {
		left[0].Note("leftover", ondisk.Note, "a broken superblock, probably a leftover: "+r.Text, "")
	}
	return left
}

func broken(v *volume.Volume) bool {
	return slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.BadVolume })
}

// foremost returns the sound volume with the highest precedence, or the first volume if none has a precedence.
func foremost(found []*volume.Volume) *volume.Volume {
	first, most := found[0], 0
	for _, v := range found {
		if p := Traits(v.Kind).Precedence; p > most && !broken(v) {
			first, most = v, p
		}
	}
	return first
}

// sound returns v as the content of a container, or nil if v is unknown or broken.
func sound(v *volume.Volume) *volume.Volume {
	if v.Kind == volume.Unknown || broken(v) {
		return nil
	}
	return v
}

// choose selects the volume that counts, and reports the others as an issue: creating a volume does not always wipe the
// old one. Even if the choice is wrong, a sound volume moves with the offset in its boot sector.
func choose(found []*volume.Volume) *volume.Volume {
	if len(found) == 1 {
		return found[0]
	}
	first := foremost(found)
	i := ondisk.Issue{
		Code: "ambiguous-volume", Effect: ondisk.Warn,
		Remedy: "wipe the stale signature inside the guest",
	}
	text := []string{string(first.Kind)}
	for _, v := range found {
		if Sliced(v.Kind) || slices.ContainsFunc(v.Issues,
			func(i ondisk.Issue) bool { return i.Effect >= ondisk.Unbootable }) {
			i.Effect, i.OnMove = ondisk.Unbootable, true
		}
		if v != first {
			text = append(text, string(v.Kind))
			first.Share(v)
		}
	}
	if first.Boot != nil && Traits(first.Kind).Precedence > 0 {
		front := *first.Boot
		front.Backup = 0 // it would lie in the data of the container
		first.Boot = &front
	}
	i.Text = "the volume looks like " + strings.Join(text, " and like ")
	first.Issues = append(first.Issues, i)
	return first
}

// describe formats the kind and label of a volume.
func describe(v *volume.Volume) string {
	if v.Label == "" {
		return string(v.Kind)
	}
	return string(v.Kind) + ` "` + v.Label + `"`
}

// dropSliced drops volumes that lie in the slices of a detected table.
func dropSliced(found []*volume.Volume) []*volume.Volume {
	i := slices.IndexFunc(found, func(v *volume.Volume) bool { return Sliced(v.Kind) && len(v.Parts) > 0 })
	if i < 0 {
		return found
	}
	label := found[i]
	atStart := label.OnDisk || slices.ContainsFunc(label.Parts, func(p volume.Part) bool { return p.Start == 0 })
	return slices.DeleteFunc(found, func(v *volume.Volume) bool { return atStart && Traits(v.Kind).InSlice })
}

// magic is a kind detected by its magic number alone.
type magic struct {
	volume.Traits

	Marks []struct {
		Hex string
		At  []int64 // byte offsets in a volume
	}
	Source string
}

// magics are tried if no prober matches. Kinds and offsets of marks are from libblkid. The last ones are the tables of
// machines other than PCs.
var magics = sync.OnceValue(func() []magic { return ondisk.Embedded[[]magic](magicsText) })

//go:embed magics.json
var magicsText []byte

// byMagic returns the volume by its magic number. Without a match its kind is Unknown.
func byMagic(d disk.Disk) (*volume.Volume, error) {
	for _, m := range magics() {
		for _, mark := range m.Marks {
			for _, at := range mark.At {
				b, err := volume.ReadBlock(d, at, int64(len(mark.Hex)/2))
				switch {
				case errors.Is(err, ondisk.ErrNoMatch):
				case err != nil:
					return nil, err
				case hex.EncodeToString(b) == mark.Hex:
					return &volume.Volume{Kind: m.Kind}, nil
				}
			}
		}
	}
	return &volume.Volume{Kind: volume.Unknown}, nil
}
