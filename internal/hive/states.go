package hive

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Each calls visit for each state in which the hive can be read, but for those that read as the one before. The last is
// the one that the guest starts with. What visit finds in a state counts when it returns nil. A fault of a state that
// Windows only passes on its way is skipped.
func (r *Recovery) Each(visit func(*Hive) error) error {
	w := walker{Recovery: r, visit: visit}
	if len(r.chains) == 0 {
		w.begin()
		return w.look()
	}
	for _, c := range r.chains {
		w.begin()
		err := w.look()
		for _, l := range c.logs {
			for _, e := range l.entries {
				if err != nil && !errors.Is(err, ondisk.ErrFormat) {
					return err
				}
				if err := w.apply(l, e); err != nil {
					return err
				}
				err = w.look()
			}
		}
		if err == nil && c.must {
			err = w.state.whole()
		}
		if err != nil && (c.must || !errors.Is(err, ondisk.ErrFormat)) {
			return err
		}
	}
	return nil
}

// walker goes through the states of one chain after the other.
type walker struct {
	*Recovery
	visit func(*Hive) error
	state *state
	stale bool   // the state reads otherwise than when it was visited
	err   error  // of that visit
	seen  looked // by it
}

// looked is what a visit used of a state.
type looked struct {
	read   []disk.Range // bytes whose values count
	placed []disk.Range // bytes whose places count
}

// state is a hive with some entries applied.
type state struct {
	files []ondisk.Source
	pages map[int64]stored // by their number in the hive bins, those that entries replaced
	bins  uint32           // bytes of them
}

// stored is where a page lies.
type stored struct {
	file int
	off  int64
}

func (w *walker) begin() {
	w.state = &state{files: w.files, pages: map[int64]stored{}, bins: w.base.BinsSize}
	w.stale = true
}

// apply puts the pages of an entry in.
func (w *walker) apply(l *logFile, e logEntry) error {
	w.stale = w.stale || e.binsSize != w.state.bins
	w.state.bins = e.binsSize
	for _, p := range e.pages {
		if err := w.compare(l, p); err != nil {
			return err
		}
		if int64(len(w.state.pages)) > maxLogPages-p.hive.Len/logSector {
			return fmt.Errorf("registry logs: %w of %d pages", ondisk.ErrLimit, maxLogPages)
		}
		for off := int64(0); off < p.hive.Len; off += logSector {
			w.state.pages[(p.hive.Off+off)/logSector] = stored{l.number, p.off + off}
		}
	}
	return nil
}

// compare marks the state as stale when a page changes what the last visit read.
func (w *walker) compare(l *logFile, p logPage) error {
	page := disk.Range{Off: baseSize + p.hive.Off, Len: p.hive.Len}
	w.stale = w.stale || len(disk.Overlapping(w.seen.placed, page)) > 0
	for _, r := range disk.Overlapping(w.seen.read, page) {
		if w.stale {
			break
		}
		end := min(r.End(), page.End())
		r.Off = max(r.Off, page.Off)
		r.Len = end - r.Off
		if err := w.spend(2 * r.Len); err != nil {
			return err
		}
		was, now := make([]byte, r.Len), make([]byte, r.Len)
		if err := ondisk.ReadFull(w.state, was, r.Off); err != nil {
			return err
		}
		if err := ondisk.ReadFull(l, now, p.off+r.Off-page.Off); err != nil {
			return err
		}
		w.stale = !bytes.Equal(was, now)
	}
	return nil
}

// look visits the state when it reads otherwise than before.
func (w *walker) look() error {
	if !w.stale {
		return w.err
	}
	h := w.hive(w.state)
	w.stale, w.seen = false, looked{}
	if len(w.chains) > 0 {
		h.seen = &w.seen
	}
	w.err = w.visit(h)
	w.seen.read, w.seen.placed = disk.Merge(w.seen.read), disk.Merge(w.seen.placed)
	return w.err
}

// Size is where the hive ends, or its file if that is longer.
func (s *state) Size() int64 { return max(s.files[0].Size(), s.end()) }

// end returns where the hive bins end, or where neither the file nor a log has more of them.
func (s *state) end() int64 {
	want := min(baseSize+int64(s.bins), maxFile)
	end := min(s.files[0].Size(), want)
	for end >= baseSize && end < want {
		number := (end - baseSize) / logSector
		if _, ok := s.pages[number]; !ok {
			break
		}
		end = baseSize + (number+1)*logSector
	}
	return end
}

// whole returns an error if the end of the hive bins is nowhere.
func (s *state) whole() error {
	if end := s.end(); end < baseSize+int64(s.bins) {
		return ondisk.In(ondisk.ErrUnsupported,
			"its hive bins end at byte %d, and file and logs at byte %d: it was cut off", baseSize+int64(s.bins), end)
	}
	return nil
}

// ReadAt follows the contract of io.ReaderAt.
func (s *state) ReadAt(b []byte, off int64) (int, error) {
	done, size := 0, s.Size()
	for done < len(b) {
		at := off + int64(done)
		if at >= size {
			return done, io.EOF
		}
		file, n := s.at(at, min(int64(len(b)-done), size-at))
		part := b[done:][:n]
		if err := ondisk.ReadFull(s.files[file.file], part, file.off); err != nil {
			return done, err
		}
		done += len(part)
	}
	return done, nil
}

// at gives where the bytes from off on lie, and how many of at most n lie there in a row.
func (s *state) at(off, n int64) (first stored, run int64) {
	for run = 0; run < n; {
		next := s.page(off + run)
		if run == 0 {
			first = next
		} else if next != (stored{first.file, first.off + run}) {
			break
		}
		run += logSector - (off+run)%logSector
	}
	return first, min(run, n)
}

// page gives where one byte lies.
func (s *state) page(off int64) stored {
	if off >= baseSize {
		if p, ok := s.pages[(off-baseSize)/logSector]; ok {
			return stored{p.file, p.off + off%logSector}
		}
	}
	return stored{0, off}
}

// Place is where bytes of a hive lie: in the hive itself (file 0) or in a log, counted from 1 as they were given.
type Place struct {
	File int
	disk.Range
}

// Places returns where bytes of the hive lie.
func (h *Hive) Places(r disk.Range) []Place {
	var out []Place
	if h.seen != nil {
		h.seen.placed = disk.Append(h.seen.placed, r)
	}
	for r.Len > 0 {
		from, n := h.state.at(r.Off, r.Len)
		out = append(out, Place{from.file, disk.Range{Off: from.off, Len: n}})
		r.Off, r.Len = r.Off+n, r.Len-n
	}
	return out
}

// Seal gives the entry of a log that holds a place, whose hashes cover it; ok is false where none does.
func (r *Recovery) Seal(p Place) (entry disk.Range, ok bool) {
	for _, c := range r.chains {
		for _, l := range c.logs {
			i, found := slices.BinarySearchFunc(l.entries, p.Off,
				func(e logEntry, off int64) int { return cmp.Compare(e.Off, off) })
			if !found {
				i--
			}
			if l.number == p.File && i >= 0 && p.End() <= l.entries[i].End() {
				return l.entries[i].Range, true
			}
		}
	}
	return disk.Range{}, false
}
