package windows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// Limits for one disk. It usually has one BCD store and at most two Windows installations.
const (
	maxHives = 8    // of one kind, on a disk
	maxRefs  = 1024 // of one file
	maxOther = 1024 // on other disks, of all files
)

// hives is a kind of hive that holds references.
type hives struct {
	code, remedy string // of an issue
	// paths returns the possible paths of the hive in a partition, and find finds the references in one hive.
	paths func(*boot.Guest, boot.Partition) ([]string, error)
	find  func(*guestHive, *boot.Found) error
}

// guestHive is a registry hive in a guest file, with its logs.
type guestHive struct {
	*hive.Hive // in the examined state
	fileRefs
	recovered
	own      int // positions on this disk in that state
	others   int // positions on other disks in that state
	unlisted int // positions on other disks left out
}

// finder returns the finder for the references in the hives.
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
			// On GPT, Windows names partitions by their GUIDs. It names only partitions of other disks by their places.
			found.Issues = nil
			found.Refs = slices.DeleteFunc(found.Refs, func(r boot.Ref) bool { return r.Disk == 0 })
		}
		return found, err
	}}
}

// read adds the references of one hive. An unreadable hive concerns every partition, because it can name any.
func (k hives) read(f *boot.Found, g *boot.Guest, p boot.Partition, path string, left *int) error {
	what := fmt.Sprintf("%s of partition %d cannot be read, so the positions in it are unknown", shown(path),
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
			f.Unbootable(k.code, 0, fmt.Sprintf("%s: already %d others were read, the maximum", what, maxHives),
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
	// If SYSTEM is open, the loader of NT 4 and 2000 uses its mirror.
	return k.read(f, g, p, path+mirror, left)
}

// unreadHive reports an unreadable hive.
func unreadHive(f *boot.Found, k hives, p boot.Partition, what string, err error) error {
	if ondisk.Understood(err) {
		f.Sign(boot.NotKnown, p, "", "%s", what)
	}
	return f.Unread(k.code, 0, what, err, k.remedy)
}

// mirror is the suffix of the copy of SYSTEM that NT 4 and 2000 write next to it.
const mirror = ".ALT"

// keep adds the references of a hive. They stay as found if Windows' handling of the hive and its logs is uncertain: a
// change could be lost or corrupt the hive.
func (h *guestHive) keep(f *boot.Found) error {
	err := h.certain()
	if err == nil {
		if !h.recovery.Open {
			h.beside = nil // Windows ignores the logs
		}
		err = h.replayed()
	}
	if err != nil && !ondisk.Understood(err) {
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

// ref adds a reference for the 8 bytes at off of a value. It returns the number of the partition they point to, or 0.
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

// other adds a reference for the 8 bytes at off of a value that names a partition of another disk by its signature.
// loss is the cost of a stale reference; an empty loss means the boot. A value that cannot be rewritten is only
// counted: no move of this disk needs it.
func (h *guestHive) other(kind string, v *hive.Value, off int64, signature uint32, loss string) error {
	if signature == 0 {
		return nil // a disk that Windows has not seen
	}
	if memoryOf(h.g).others+h.others == maxOther {
		h.unlisted++
		return nil
	}
	r, places, err := h.position(kind, v, off)
	if err != nil && ondisk.Understood(err) {
		h.unlisted++
		return nil
	}
	if err != nil {
		return err
	}
	r.Disk, r.Stays, r.Loss = signature, "it names another disk", loss
	if loss != "" {
		r.Remedy = "assign the old drive letter after the first boot of the copies"
	}
	h.others++
	return h.add(r, places)
}

// position reads the 8 bytes at off of a value, and returns their places in the files of the hive.
func (h *guestHive) position(kind string, v *hive.Value, off int64) (r boot.Ref, places []hive.Place, err error) {
	ranges, err := v.Where(off, 8)
	if err != nil {
		return r, nil, err
	}
	for _, x := range ranges {
		places = append(places, h.Places(x)...)
	}
	file := h.files[places[0].File]
	r = boot.Ref{Kind: kind, Partition: h.p.Number, File: file.Path, Off: places[0].Off, Encode: boot.EncodeBytes}
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

// aim sets the target of a reference: the partition that starts at its position. These references always point to a
// start.
func aim(g *boot.Guest, r *boot.Ref) {
	if p, ok := g.StartingAt(r.Points); ok && p.Kind != table.Extended {
		r.Target = p.Number
		return
	}
	r.Stays = fmt.Sprintf("no partition starts at byte %d", r.Points)
}

// fileRefs holds the references in a guest file.
type fileRefs struct {
	g    *boot.Guest
	p    boot.Partition
	file *guestfile.File
	code string // of an issue
	refs []boot.Ref

	beside []string // paths of logs in the same folder, which Windows may apply to the file
}

// keep adds the references. They stay as found if Windows will repair the volume around the file first.
func (r *fileRefs) keep(f *boot.Found) error {
	// A move of this disk or of another one can rewrite them.
	if slices.ContainsFunc(r.refs, func(r boot.Ref) bool { return r.Follows() || r.Disk != 0 }) {
		err := r.lasting()
		if err != nil && !ondisk.Understood(err) {
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

// hold makes the references stay as found, and reports the partitions affected.
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

// each walks a list of a hive. A broken element does not hide the others; each returns the first such error at the end.
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

// Limits for one hive with its logs.
const (
	maxSealed = 16 << 20 // bytes of log entries kept for their hashes
	maxPlaces = 1 << 15  // of positions
)

// recovered is the combined state of a hive and its logs.
type recovered struct {
	recovery *hive.Recovery
	files    []*guestfile.File // the hive, then its logs; absent logs are left out
	unsure   error             // reason to leave the references as found, besides the recovery's own
	at       map[int64][]int   // references by their first place on the disk
	seals    map[sealed]*boot.Seal
	bytes    int64 // size of the seals
}

// sealed is an entry of a log.
type sealed struct {
	file  int
	entry disk.Range
}

// open reads the hive and the logs next to it.
func (h *guestHive) open() error {
	h.recovered = recovered{files: []*guestfile.File{h.file}, at: map[int64][]int{}, seals: map[sealed]*boot.Seal{}}
	var logs []hive.Log
	for _, suffix := range []string{".LOG", ".LOG1", ".LOG2"} {
		file, err := windowsFile(h.g, h.p, h.file.Path+suffix)
		switch {
		case err == nil:
			logs = append(logs, hive.Log{Name: shown(file.Path), Source: file})
			h.files, h.beside = append(h.files, file), append(h.beside, file.Path)
		case ondisk.Understood(err):
			h.unsure = err
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	r, err := memoryOf(h.g).hives.Recover(h.file, logs...)
	h.recovery = r
	return err
}

// certain returns nil if Windows' handling of the hive and its logs is known.
func (h *guestHive) certain() error {
	if h.unsure != nil {
		return h.unsure
	}
	return h.recovery.Certain()
}

// eachState calls find for each state that Windows can restore from the hive and its logs. It returns the findings of
// the last state, with which the guest starts; the references come from all states.
func (h *guestHive) eachState(find func(*guestHive, *boot.Found) error) (boot.Found, error) {
	var last boot.Found
	err := h.recovery.Each(func(state *hive.Hive) error {
		h.Hive, h.own, h.others, h.unlisted, last = state, 0, 0, 0, boot.Found{}
		err := find(h, &last)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	last.Unlisted += h.unlisted
	memoryOf(h.g).others += h.others
	h.union()
	return last, err
}

// sign reports whether the hive was closed. For an open hive, it names the logs that Windows applies.
func (h *guestHive) sign(f *boot.Found) {
	name := fmt.Sprintf("the registry hive %s of partition %d", shown(h.file.Path), h.p.Number)
	err := h.certain()
	switch {
	case h.recovery.Open && err != nil:
		const held = "a position in it cannot change, and a move that needs it is refused"
		f.Sign(boot.Running, h.p, held, "%s is open: %v", name, err)
	case h.recovery.Open:
		var logs []string
		for _, n := range h.recovery.Logs() {
			logs = append(logs, shown(h.files[n].Path))
		}
		f.Sign(boot.Running, h.p, "a changed position is rewritten in the hive and in its logs",
			"%s is open, and Windows will update it from %s (pending log entries: %d)", name,
			strings.Join(logs, " and "), h.recovery.Applied)
	case err != nil:
		f.Sign(boot.NotKnown, h.p, "", "%s is closed, but %v", name, err)
	default:
		f.Sign(boot.ShutDown, h.p, "", "%s is closed", name)
	}
}

// noteHot reports that Windows will apply the logs of a hive.
func (h *guestHive) noteHot(f *boot.Found) {
	if !h.recovery.Open || !slices.ContainsFunc(h.refs, boot.Ref.Follows) {
		return
	}
	f.Issues = append(f.Issues, ondisk.Issue{
		Code: "hive-open", Effect: ondisk.Note, OnMove: true,
		Text: fmt.Sprintf("%s of partition %d was copied while Windows ran: positions are rewritten in it and in "+
			"its logs (pending log entries: %d)", shown(h.file.Path), h.p.Number, h.recovery.Applied),
	})
}

// add keeps a reference with its places in the files, unless a previous state had it.
func (h *guestHive) add(r boot.Ref, places []hive.Place) (err error) {
	first := r.At[0].Off
	for _, i := range h.at[first] {
		if old := h.refs[i]; slices.Equal(old.At, r.At) && old.Kind == r.Kind && old.Points == r.Points {
			return nil
		}
	}
	if len(h.refs) == maxPlaces {
		return fmt.Errorf("%w of %d places of positions in a hive and its logs", ondisk.ErrLimit, maxPlaces)
	}
	if movable(&r) {
		if r.Seals, err = h.sealsOf(places); err != nil {
			return err
		}
	}
	h.at[first] = append(h.at[first], len(h.refs))
	h.refs = append(h.refs, r)
	return nil
}

// movable reports whether a move of this disk or of another one can rewrite a reference.
func movable(r *boot.Ref) bool { return r.Target != 0 || r.Disk != 0 }

// sealsOf returns the log entries whose hashes cover places.
func (h *guestHive) sealsOf(places []hive.Place) ([]*boot.Seal, error) {
	var out []*boot.Seal
	for _, p := range places {
		entry, ok := h.recovery.Seal(p)
		if !ok {
			continue
		}
		key := sealed{p.File, entry}
		if h.seals[key] == nil {
			if h.bytes += entry.Len; h.bytes > maxSealed {
				return nil, fmt.Errorf("log entries of a registry hive: %w of %d bytes", ondisk.ErrLimit, maxSealed)
			}
			file := h.files[p.File]
			at, raw, err := h.g.At(h.p, file, entry.Off, entry.Len)
			if err != nil {
				return nil, err
			}
			name := fmt.Sprintf("the entry at byte %d of %q of partition %d", entry.Off, file.Path, h.p.Number)
			h.seals[key] = &boot.Seal{Name: name, At: at, Raw: raw, Make: hive.Reseal}
		}
		out = append(out, h.seals[key])
	}
	return out, nil
}

// claim identifies the reference that owns a byte on the disk, and the index of the byte in it.
type claim struct{ ref, i int }

// union removes shared bytes from the references of all states. Later states have priority: the guest starts with one
// of them.
func (h *guestHive) union() {
	claims := map[int64]claim{}
	for n := range slices.Backward(h.refs) {
		h.claim(claims, n)
	}
	h.refs = slices.DeleteFunc(h.refs, func(r boot.Ref) bool { return len(r.At) == 0 })
}

// claim leaves reference n the bytes that no other reference has. A byte that belongs to two positions cannot be
// rewritten for both.
func (h *guestHive) claim(claims map[int64]claim, n int) {
	r := &h.refs[n]
	var free []int
	i := 0
	for _, at := range r.At {
		for off := at.Off; off < at.End(); off++ {
			c, taken := claims[off]
			switch {
			case !taken:
				claims[off] = claim{n, i}
				free = append(free, i)
			case !movable(r):
			case c.i != i || h.refs[c.ref].Points != r.Points || h.refs[c.ref].Disk != r.Disk:
				h.unsure = ondisk.In(ondisk.ErrUnsupported,
					"byte %d of the disk holds two different positions in two states of its logs", off)
			}
			i++
		}
	}
	if len(free) < i {
		r.Narrow(free)
	}
}
