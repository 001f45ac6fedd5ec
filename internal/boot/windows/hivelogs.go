package windows

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of one hive with its logs.
const (
	maxSealed = 16 << 20 // bytes of log entries that are kept for their hashes
	maxPlaces = 1 << 15  // of positions
)

// recovered is what a hive and its logs are together.
type recovered struct {
	recovery *hive.Recovery
	files    []*guestfile.File // the hive, then its logs; nil where absent
	unsure   error             // why the references must stay, beside the reasons of the recovery itself
	at       map[int64][]int   // references by their first place on the disk
	seals    map[sealed]*boot.Seal
	bytes    int64 // of them
}

// sealed is an entry of a log.
type sealed struct {
	file  int
	entry disk.Range
}

// open reads the hive and the logs beside it.
func (h *guestHive) open() error {
	h.recovered = recovered{files: []*guestfile.File{h.file}, at: map[int64][]int{}, seals: map[sealed]*boot.Seal{}}
	var logs []hive.Log
	for _, suffix := range []string{".LOG", ".LOG1", ".LOG2"} {
		file, err := windowsFile(h.g, h.p, h.file.Path+suffix)
		switch {
		case err == nil:
			logs = append(logs, hive.Log{Name: shown(file.Path), Source: file})
			h.files, h.beside = append(h.files, file), append(h.beside, file.Path)
		case boot.Understood(err):
			h.unsure = err
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	r, err := memoryOf(h.g).hives.Recover(h.file, logs...)
	h.recovery = r
	return err
}

// certain returns nil if it is known what Windows makes of the hive and its logs.
func (h *guestHive) certain() error {
	if h.unsure != nil {
		return h.unsure
	}
	return h.recovery.Certain()
}

// eachState lets find look at each state that Windows can make of the hive and its logs. It returns the
// findings of the last one, with which the guest starts; the references are those of all.
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

// sign reports whether the hive was closed, and by which logs Windows brings one up to date that was not.
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
		f.Sign(boot.Running, h.p, "a position in it that changes is rewritten, in its logs too",
			"%s is open, and Windows brings it up to date from %s (entries that it applies: %d)", name,
			strings.Join(logs, " and "), h.recovery.Applied)
	case err != nil:
		f.Sign(boot.NotKnown, h.p, "", "%s is closed, and yet %v", name, err)
	default:
		f.Sign(boot.ShutDown, h.p, "", "%s is closed", name)
	}
}

// noteHot reports that the logs of a hive count.
func (h *guestHive) noteHot(f *boot.Found) {
	if !h.recovery.Open || !slices.ContainsFunc(h.refs, boot.Ref.Follows) {
		return
	}
	f.Issues = append(f.Issues, ondisk.Issue{
		Code: "hive-open", Effect: ondisk.Note, OnMove: true,
		Text: fmt.Sprintf("%s of partition %d was copied while Windows ran: positions are rewritten in it and in "+
			"its logs (entries that Windows applies: %d)", shown(h.file.Path), h.p.Number, h.recovery.Applied),
	})
}

// add keeps a reference of a state with its places in the files, if no state before had it.
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

// movable reports whether a move of this disk or of another can rewrite a reference.
func movable(r *boot.Ref) bool { return r.Target != 0 || r.Disk != 0 }

// sealsOf returns the entries of logs whose hashes cover places.
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

// claim is the reference that a byte on the disk belongs to, and which of its bytes it is.
type claim struct{ ref, i int }

// union makes the references of all states share no byte. The later states come first: in one of them the guest starts.
func (h *guestHive) union() {
	claims := map[int64]claim{}
	for n := range slices.Backward(h.refs) {
		h.claim(claims, n)
	}
	h.refs = slices.DeleteFunc(h.refs, func(r boot.Ref) bool { return len(r.At) == 0 })
}

// claim leaves reference n the bytes that no other has. A byte that means two positions cannot be rewritten for both.
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
					"byte %d of the disk means two positions in two states of its logs", off)
			}
			i++
		}
	}
	if len(free) < i {
		r.Only(free)
	}
}
