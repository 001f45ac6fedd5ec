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

// Recovery is a hive with its logs, which Windows applies if the hive was not closed. Windows stops at a torn entry,
// and its boot loader may choose another log than its kernel. So the hive has several possible states, and a value has
// a place in each.
//
// Spec: "Windows registry file format specification", "Transaction log files".
type Recovery struct {
	// Open reports whether the hive was not closed, so that Windows applies its logs.
	Open bool
	// Applied is the number of log entries that Windows applies; an old log counts as one. It is 0 for a closed hive.
	Applied int

	*Budget
	files  []ondisk.Source // the hive, then the logs in the caller's order
	base   baseBlock
	unsure error // why Windows' handling of the files is unknown
	chains []chain
}

// chain is a sequence of logs from which Windows may apply a prefix of the entries, or all.
type chain struct {
	logs []*logFile
	must bool // Windows applies it if all files are readable, so its final state must be readable
}

// Log is a log of a hive.
type Log struct {
	ondisk.Source

	Name string // for errors
}

// Recover reads the base block of a hive, and its logs, which can be empty or stale. It supports hives of Windows NT 4
// to 11 (version 1.3 to 1.6). It returns an unrecoverable hive too, for display: check Certain before changing a byte
// of it.
func (b *Budget) Recover(src ondisk.Source, logs ...Log) (*Recovery, error) {
	if src.Size() > maxFile {
		return nil, fmt.Errorf("registry hive of %d bytes: %w of %d bytes", src.Size(), ondisk.ErrLimit, maxFile)
	}
	r := &Recovery{Budget: b, files: []ondisk.Source{src}}
	for _, l := range logs {
		r.files = append(r.files, l)
	}
	raw, err := ondisk.Decode(src, 0, &r.base)
	if err != nil {
		return nil, fmt.Errorf("base block of a registry hive: %w", err)
	}
	if sum := checksum(raw); r.base.Checksum == sum && r.base.Sequence1 == r.base.Sequence2 {
		err = r.closed(logs)
	} else {
		r.Open = true
		err = r.choose(logs, sum)
	}
	if err != nil {
		if !ondisk.Understood(err) {
			return nil, err
		}
		r.unsure, r.chains, r.Applied = err, nil, 0
	}
	return r, r.base.check()
}

// closed checks a hive that Windows uses without its logs.
func (r *Recovery) closed(logs []Log) error {
	if size, end := r.files[0].Size(), baseSize+int64(r.base.BinsSize); end > size {
		return ondisk.In(ondisk.ErrUnsupported, "the file has %d bytes, and its hive bins end at byte %d: "+
			"it was cut off", size, end)
	}
	for _, log := range logs {
		is, err := newer(log, r.base.Sequence1)
		if err != nil {
			return err
		}
		if is {
			return ondisk.In(ondisk.ErrUnsupported, "its log %s is newer than the hive: they are not from the same "+
				"time", log.Name)
		}
	}
	return nil
}

// Certain returns nil if Windows' handling of the hive and its logs is known. Otherwise the error wraps ErrUnsupported,
// ErrFormat or ErrLimit.
func (r *Recovery) Certain() error { return r.unsure }

// Logs returns the numbers of the logs that Windows applies, in their order; Recover's first log is 1.
func (r *Recovery) Logs() (numbers []int) {
	if len(r.chains) == 0 {
		return nil
	}
	for _, l := range r.chains[len(r.chains)-1].logs { // the last one is the usual one
		numbers = append(numbers, l.number)
	}
	return numbers
}

// choose finds the logs that Windows may apply, and their order. sum is the computed checksum of the base block.
func (r *Recovery) choose(logs []Log, sum uint32) error {
	sealed := r.base.Checksum == sum
	found, err := r.valid(logs, sealed)
	if err != nil {
		return err
	}
	switch {
	case !sealed && len(found) == 1:
		r.base = found[0].base
		r.base.FileType = typePrimary
	case !sealed:
		return ondisk.In(ondisk.ErrUnsupported, "checksum of the base block is %#x, want %#x, and no log fits: "+
			"Windows was not shut down cleanly, or the hive is broken", r.base.Checksum, sum)
	}
	for _, l := range found {
		if err := r.related(l, found[0].old()); err != nil {
			return err
		}
	}
	if len(found) > 0 && found[0].old() {
		r.oldChains(found)
	} else if err := r.newChains(found); err != nil {
		return err
	}
	if !slices.ContainsFunc(found, func(l *logFile) bool { return len(l.entries) > 0 }) {
		return ondisk.In(ondisk.ErrUnsupported,
			"sequence numbers %d and %d differ, and no log fits: Windows was not shut down cleanly",
			r.base.Sequence1, r.base.Sequence2)
	}
	return nil
}

// valid returns the logs with a valid base block, and their entries. If the hive's base block is valid too, it omits
// older logs.
func (r *Recovery) valid(logs []Log, sealed bool) ([]*logFile, error) {
	var found []*logFile
	for i, src := range logs {
		l, err := r.openLog(src, i+1)
		if err != nil {
			return nil, err
		}
		if l != nil && (!sealed || r.fits(l)) {
			found = append(found, l)
		}
	}
	return found, nil
}

// fits reports whether a log comes from the same moment as the hive: an old log has its time, a new one no older
// entries.
func (r *Recovery) fits(l *logFile) bool {
	if l.old() {
		return l.base.LastWritten == r.base.LastWritten
	}
	return !after(r.base.Sequence2, l.base.Sequence1)
}

// related returns an error for a log of another format than the first, or of another hive.
func (r *Recovery) related(l *logFile, old bool) error {
	if l.old() != old {
		return ondisk.In(ondisk.ErrUnsupported, "its logs are of two formats")
	}
	a, b := &l.base, &r.base
	if a.RootCell != b.RootCell || a.Major != b.Major || a.Minor != b.Minor {
		return ondisk.In(ondisk.ErrUnsupported,
			"a log belongs to another hive: version %d.%d with its root at %#x, want %d.%d and %#x",
			a.Major, a.Minor, a.RootCell, b.Major, b.Minor, b.RootCell)
	}
	none, ours, theirs := ondisk.GUID{}, b.ResourceManager, a.ResourceManager
	if ours != theirs && ours != none && theirs != none {
		return ondisk.In(ondisk.ErrUnsupported, "a log belongs to another hive: resource manager %s, must be "+
			"%s", theirs,
			ours)
	}
	return nil
}

// oldChains keeps all old logs. The build of Windows decides between two of them, and the boot loader may choose
// another.
func (r *Recovery) oldChains(found []*logFile) {
	for _, l := range slices.Backward(found) { // most kernels use the first
		r.chains = append(r.chains, chain{[]*logFile{l}, true})
		r.Applied = 1
	}
}

// newChains orders new logs as Windows does: the log with the first entry, then the other if it continues there. If the
// first is torn later, Windows applies only the other.
func (r *Recovery) newChains(found []*logFile) error {
	slices.SortFunc(found, byNumber)
	switch {
	case len(found) == 0:
		return nil
	case len(found) > 2:
		return ondisk.In(ondisk.ErrUnsupported, "%d logs fit, and Windows has two", len(found))
	case len(found) == 2 && byNumber(found[0], found[1]) == 0:
		return ondisk.In(ondisk.ErrUnsupported, "both of its logs begin with entry %d", found[0].base.Sequence1)
	}
	first := chain{found[:1], true}
	r.Applied = len(found[0].entries)
	if len(found) == 2 {
		if found[1].base.Sequence1 == found[0].base.Sequence1+ondisk.U32(int64(r.Applied)) {
			first.logs = found
			r.Applied += len(found[1].entries)
		}
		r.chains = append(r.chains, chain{found[1:], false})
	}
	r.chains = append(r.chains, first)
	return nil
}

// after reports whether sequence number a follows b; numbers wrap around to 0.
func after(a, b uint32) bool { return a != b && a-b < 1<<31 }

func byNumber(a, b *logFile) int {
	switch {
	case a.base.Sequence1 == b.base.Sequence1:
		return 0
	case after(a.base.Sequence1, b.base.Sequence1):
		return 1
	}
	return -1
}

// Each calls visit for each possible state of the hive, except states that read like the previous one. The last state
// is the guest's at its start. The findings of a visit count if it returns nil. Each skips a format error in a state
// that Windows only passes through.
func (r *Recovery) Each(visit func(*Hive) error) error {
	w := walker{Recovery: r, visit: visit}
	if len(r.chains) == 0 {
		w.begin()
		return w.look()
	}
	for _, c := range r.chains {
		err := w.walk(c)
		if err != nil && (c.must || !errors.Is(err, ondisk.ErrFormat)) {
			return err
		}
	}
	return nil
}

// walker visits the states of all chains in turn.
type walker struct {
	*Recovery
	visit func(*Hive) error
	state *state
	stale bool     // the state differs from the last visit's
	err   error    // of the last visit
	seen  accessed // by the last visit
}

// accessed records the parts of a state that a visit used.
type accessed struct {
	read   []disk.Range // bytes whose values count
	placed []disk.Range // bytes whose places count
}

// state is a hive with some entries applied.
type state struct {
	files []ondisk.Source
	pages map[int64]stored // pages replaced by entries, by their number in the hive bins
	bins  uint32           // bytes of the hive bins
}

// stored is the location of a page.
type stored struct {
	file int
	off  int64
}

// walk visits the states of a chain, and returns the error of the last one.
func (w *walker) walk(c chain) error {
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
	return err
}

func (w *walker) begin() {
	w.state = &state{files: w.files, pages: map[int64]stored{}, bins: w.base.BinsSize}
	w.stale = true
}

// apply adds the pages of a log entry to the state of the hive.
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

// compare marks the state as stale if a page changes bytes read in the last visit.
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

// look visits the state if it is stale, and returns the error of the last visit.
func (w *walker) look() error {
	if !w.stale {
		return w.err
	}
	h := w.hive(w.state)
	w.stale, w.seen = false, accessed{}
	if len(w.chains) > 0 {
		h.seen = &w.seen
	}
	w.err = w.visit(h)
	w.seen.read, w.seen.placed = disk.Merge(w.seen.read), disk.Merge(w.seen.placed)
	return w.err
}

// Size returns the end of the hive, or of its file if that is longer.
func (s *state) Size() int64 { return max(s.files[0].Size(), s.end()) }

// end returns the end of the hive bins, or of the part of them in the file and the logs.
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

// whole returns an error if the end of the hive bins is neither in the file nor in the logs.
func (s *state) whole() error {
	if end := s.end(); end < baseSize+int64(s.bins) {
		return ondisk.In(ondisk.ErrUnsupported,
			"its hive bins end at byte %d, and file and logs at byte %d: it was cut off", baseSize+int64(s.bins), end)
	}
	return nil
}

// ReadAt implements io.ReaderAt.
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

// at returns the location of the bytes from off on, and how many of at most n are contiguous there.
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

// page returns the location of one byte.
func (s *state) page(off int64) stored {
	if off >= baseSize {
		if p, ok := s.pages[(off-baseSize)/logSector]; ok {
			return stored{p.file, p.off + off%logSector}
		}
	}
	return stored{0, off}
}

// Place is the location of bytes of a hive: in the hive itself (file 0) or in a log, counted from 1 in the caller's
// order.
type Place struct {
	File int
	disk.Range
}

// Places returns the locations of bytes of the hive.
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

// Seal returns the log entry whose hashes cover a place, and ok if it exists.
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
