package windows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// Limits for one disk. It has one store of the boot manager and seldom more than two Windows.
const (
	maxHives = 8    // of one kind, on a disk
	maxRefs  = 1024 // of one file
	maxOther = 1024 // on other disks, of all files
)

// hives is a kind of hive that holds references.
type hives struct {
	code, remedy string // of an issue
	// paths returns where one can be in a partition, and find finds the references in one.
	paths func(*boot.Guest, boot.Partition) ([]string, error)
	find  func(*guestHive, *boot.Found) error
}

// guestHive is a registry hive in a file of a guest, with its logs.
type guestHive struct {
	*hive.Hive // in the state that is read
	fileRefs
	recovered
	own      int // positions on this disk in the state that is read
	others   int // positions on other disks in it
	unlisted int // those of them that are left out
}

// finder returns the finder of what the hives hold.
func (k hives) finder() boot.Finder {
	return boot.Finder{Name: k.code, Find: func(g *boot.Guest) (boot.Found, error) {
		left := maxHives
		found, err := boot.Everywhere(func(g *boot.Guest, p boot.Partition, f *boot.Found) error {
			paths, err := k.paths(g, p)
			if err != nil {
				return err
			}
			for _, path := range paths {
				if err := k.read(f, g, p, path, &left); err != nil {
					return err
				}
			}
			return nil
		})(g)
		if g.Scheme != table.MBR && !g.Hybrid() {
			// Windows names partitions of a GPT by their GUIDs, and only those of other disks by their places.
			found.Issues = nil
			found.Refs = slices.DeleteFunc(found.Refs, func(r boot.Ref) bool { return r.Disk == 0 })
		}
		return found, err
	}}
}

// read adds what one hive holds. A hive that is not understood matters to every partition: it can name any.
func (k hives) read(f *boot.Found, g *boot.Guest, p boot.Partition, path string, left *int) error {
	what := fmt.Sprintf("%s of partition %d cannot be read, so the positions in it are not known", shown(path),
		p.Number)
	file, err := windowsFile(g, p, path)
	if err != nil {
		return unreadHive(f, k, p, what, err)
	}
	h := &guestHive{fileRefs: fileRefs{g: g, p: p, file: file, code: k.code}}
	if err := h.open(); err != nil {
		return unreadHive(f, k, p, what, err)
	}
	if *left--; *left < 0 {
		if *left == -1 {
			f.Unbootable(k.code, 0, fmt.Sprintf("%s: there are %d others, and no more are read", what, maxHives),
				k.remedy)
		}
		return nil
	}
	found, err := h.eachState(k.find)
	f.Add(found)
	if err != nil && h.recovery.Open {
		h.unsure = err // a state was not read
	}
	if err := f.Unread(k.code, 0, what, err, k.remedy); err != nil {
		return err
	}
	h.sign(f)
	if err := h.keep(f); err != nil || !h.recovery.Open || strings.HasSuffix(path, mirror) {
		return err
	}
	// The loader of NT 4 and 2000 takes the mirror of a SYSTEM that is open.
	return k.read(f, g, p, path+mirror, left)
}

// unreadHive reports a hive that cannot be read.
func unreadHive(f *boot.Found, k hives, p boot.Partition, what string, err error) error {
	if boot.Understood(err) {
		f.Sign(boot.NotKnown, p, "", "%s", what)
	}
	return f.Unread(k.code, 0, what, err, k.remedy)
}

// mirror is the suffix of the copy of SYSTEM that NT 4 and 2000 write behind it.
const mirror = ".ALT"

// keep adds the references of a hive. They stay if it is not certain what Windows makes of the hive and its logs: a
// change made here could be lost or corrupt it.
func (h *guestHive) keep(f *boot.Found) error {
	err := h.certain()
	if err == nil {
		if !h.recovery.Open {
			h.beside = nil // Windows ignores the logs
		}
		err = h.replayed()
	}
	if err != nil && !boot.Understood(err) {
		return err
	}
	if err != nil {
		if !slices.ContainsFunc(h.refs, boot.Ref.Follows) {
			f.Warn(h.code, 0, fmt.Sprintf("%s of partition %d names no partition of this disk, but its log may: %v",
				shown(h.file.Path), h.p.Number, err), shutDown)
		}
		h.hold(f, err)
	}
	if err := h.fileRefs.keep(f); err != nil {
		return err
	}
	h.noteHot(f)
	return nil
}

// ref adds a reference of the 8 bytes at off of a value, and returns the partition that it names; 0: none.
func (h *guestHive) ref(kind string, v *hive.Value, off int64) (int, error) {
	if h.own++; h.own > maxRefs {
		return 0, fmt.Errorf("%w of %d positions in one file", ondisk.ErrLimit, maxRefs)
	}
	r, places, err := h.position(kind, v, off)
	if err != nil {
		return 0, err
	}
	aim(h.g, &r)
	return r.Target, h.add(r, places)
}

// other adds a reference of the 8 bytes at off of a value that names a partition of another disk by its signature. loss
// is the cost of a stale one; empty: the boot. A value that cannot be rewritten is only counted: no move of this disk
// needs it.
func (h *guestHive) other(kind string, v *hive.Value, off int64, signature uint32, loss string) error {
	if signature == 0 {
		return nil // a disk that Windows has not seen
	}
	if memoryOf(h.g).others+h.others == maxOther {
		h.unlisted++
		return nil
	}
	r, places, err := h.position(kind, v, off)
	if err != nil && boot.Understood(err) {
		h.unlisted++
		return nil
	}
	if err != nil {
		return err
	}
	r.Disk, r.Stays, r.Loss = signature, "it names another disk", loss
	if loss != "" {
		r.Remedy = "give the drive letter back after the first boot of the copies"
	}
	h.others++
	return h.add(r, places)
}

// position reads the 8 bytes at off of a value, and returns where they lie in the files of the hive.
func (h *guestHive) position(kind string, v *hive.Value, off int64) (r boot.Ref, places []hive.Place, err error) {
	ranges, err := v.Where(off, 8)
	if err != nil {
		return r, nil, err
	}
	for _, x := range ranges {
		places = append(places, h.Places(x)...)
	}
	file := h.files[places[0].File]
	r = boot.Ref{Kind: kind, Partition: h.p.Number, File: file.Path, Off: places[0].Off, Encode: encodeBytes}
	for _, place := range places {
		at, raw, err := h.g.At(h.p, h.files[place.File], place.Off, place.Len)
		if err != nil {
			return r, nil, err
		}
		r.At, r.Raw = append(r.At, at...), append(r.Raw, raw...)
	}
	r.Points = ondisk.I64(min(binary.LittleEndian.Uint64(r.Raw), math.MaxInt64))
	return r, places, nil
}

// aim sets the partition that starts where a reference points. These references always mean a start.
func aim(g *boot.Guest, r *boot.Ref) {
	if p, ok := g.StartingAt(r.Points); ok && p.Kind != table.Extended {
		r.Target = p.Number
		return
	}
	r.Stays = fmt.Sprintf("no partition starts at byte %d", r.Points)
}

// encodeBytes writes a byte offset as 64 bits.
func encodeBytes(_ []byte, to int64) ([]byte, error) {
	return binary.LittleEndian.AppendUint64(nil, ondisk.U64(to)), nil
}

// fileRefs are the references in a file of a guest.
type fileRefs struct {
	g    *boot.Guest
	p    boot.Partition
	file *guestfile.File
	code string // of an issue
	refs []boot.Ref

	beside []string // paths of files in its folder that decide what becomes of it: logs
}

// keep adds the references. They stay if Windows will first repair the volume around the file.
func (r *fileRefs) keep(f *boot.Found) error {
	// A move of this disk or of another can rewrite them.
	if slices.ContainsFunc(r.refs, func(r boot.Ref) bool { return r.Follows() || r.Disk != 0 }) {
		err := r.lasting()
		if err != nil && !boot.Understood(err) {
			return err
		}
		if err != nil {
			r.hold(f, err)
		} else {
			r.noteOpen(f)
		}
	}
	f.Refs = append(f.Refs, r.refs...)
	return nil
}

// hold makes the references stay, and reports the partitions for which that matters.
func (r *fileRefs) hold(f *boot.Found, why error) {
	reported := map[int]bool{}
	for i := range r.refs {
		ref := &r.refs[i]
		moves := ref.Follows()
		if moves || ref.Disk != 0 {
			ref.Encode, ref.Stays = nil, why.Error()
		}
		if !moves || reported[ref.Target] {
			continue
		}
		reported[ref.Target] = true
		const text = "%s of partition %d names the place of partition %d and cannot be changed: %v"
		f.Unbootable(r.code, ref.Target, fmt.Sprintf(text, shown(r.file.Path), r.p.Number, ref.Target, why), shutDown)
	}
}

// each walks a list of a hive. A broken element does not hide the others; the first such error is returned at the end.
func each[T any](list func(func(T, error) bool), do func(T) error) error {
	var broken error
	for v, err := range list {
		if err == nil {
			err = do(v)
		}
		switch {
		case err == nil:
		case !errors.Is(err, ondisk.ErrFormat):
			return err
		case broken == nil:
			broken = err
		}
	}
	return broken
}
