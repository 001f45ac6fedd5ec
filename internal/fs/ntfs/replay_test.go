package ntfs

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
)

// replayed is a volume whose log is set back to an older checkpoint, with records of the MFT from that time.
type replayed struct {
	raw     forge.Bytes
	allowed []disk.Range // where a mount may write
	back    []disk.Range // records that were restored
	folders []disk.Range // records of folders
	log     *Log
	patched []disk.Range
}

// setBack makes the volume of a row of rewound. A record is restored if the log has all of its old value.
func setBack(t *testing.T, v *realVolume, to uint64) *replayed {
	t.Helper()
	r := &replayed{raw: make(forge.Bytes, v.Size())}
	require.NoError(t, ondisk.ReadFull(v, r.raw, 0))
	log := rewind(t, v.log, to)
	put := func(places []disk.Range, b []byte) {
		for _, p := range places {
			b = b[copy(r.raw[p.Off:p.End()], b):]
		}
	}
	logPlaces, _ := v.places(v.recordOf(2))
	put(logPlaces, log)
	mft, _ := v.places(v.recordOf(0))
	l := v.replay(t, log)
	named := map[int64]bool{}
	for _, w := range l.Writes {
		named[w.Record] = true
	}
	for n, list := range changesOf(t, v, log, l.Since) {
		if first := list[0]; !named[n] && first.Op == residentValue && first.Length == first.otherLength {
			b := forge.Bytes(v.recordOf(n))
			copy(b[first.recordOffset+first.attrOffset:], first.other)
			b.U64(recordLSN, first.LSN-1)
			at, end := int64(binary.LittleEndian.Uint16(b[4:])), int64(binary.LittleEndian.Uint16(b[6:]))
			for i := int64(1); i < end; i++ { // puts the fix-ups back
				copy(b[at+2*i:at+2*i+2], b[i*512-2:i*512])
				copy(b[i*512-2:i*512], b[at:at+2])
			}
			copy(v.mft[n*v.record:], b)
			r.back = append(r.back, placeOf(mft, n*v.record, v.record))
		}
	}
	put(mft, v.mft)
	for n := range int64(len(v.mft)) / v.record {
		if raw := v.recordOf(n); raw != nil && raw[0x16]&2 != 0 {
			r.folders = append(r.folders, placeOf(mft, n*v.record, v.record))
		}
	}
	r.log = v.replay(t, log)
	for _, w := range r.log.Writes {
		r.allowed = append(r.allowed, w.Places...)
	}
	// Any mount writes the log, the volume's flags and the folders of ntfs3 itself, and their copies.
	for _, n := range []int64{3, 5, 11} {
		r.allowed = append(r.allowed, placeOf(mft, n*v.record, v.record))
	}
	mirror, _ := v.places(v.recordOf(1))
	r.allowed = disk.Merge(slices.Concat(r.allowed, logPlaces, mirror))
	return r
}

// placeOf returns the position of bytes of a file, which must be contiguous.
func placeOf(places []disk.Range, off, n int64) disk.Range {
	for _, p := range places {
		if off < p.Len {
			return disk.Range{Off: p.Off + off, Len: n}
		}
		off -= p.Len
	}
	panic("outside of the file")
}

// onlyMarked reports whether a sector belongs to a folder of which only the flag changed that ntfs3 sets in each folder
// that it reads, without any replay: the flag of a folder in the attributes of $STANDARD_INFORMATION.
func (r *replayed) onlyMarked(after []byte, sector disk.Range) bool {
	const fixUps = 0x28
	i := slices.IndexFunc(r.folders, sector.Overlaps)
	if i < 0 {
		return false
	}
	was, is := bytes.Clone(r.raw[r.folders[i].Off:r.folders[i].End()]),
		bytes.Clone(after[r.folders[i].Off:r.folders[i].End()])
	if !UndoFixups(was, fixUps) || !UndoFixups(is, fixUps) {
		return false
	}
	info := was[binary.LittleEndian.Uint16(was[0x14:]):]                              // the first attribute
	was[binary.LittleEndian.Uint16(was[4:])] = is[binary.LittleEndian.Uint16(is[4:])] // number of the fix-ups
	info[binary.LittleEndian.Uint16(info[0x14:])+0x23] |= 0x10
	return bytes.Equal(was, is)
}

// patch makes the changes of a move: hidden sectors, and bytes of a file that the log does not touch.
func (r *replayed) patch(t *testing.T, v *realVolume) {
	t.Helper()
	r.patched = []disk.Range{{Off: 0x1c, Len: 4}}
	for n := int64(24); n*v.record < int64(len(v.mft)); n++ {
		raw := v.recordOf(n)
		if raw == nil || raw[0x16] != 1 {
			continue
		}
		if places, size := v.places(raw); len(places) > 0 && size > 512 {
			bytes := disk.Range{Off: places[0].Off + 100, Len: 8}
			if r.log.Conflict(Patched{Records: []int64{n}, Folders: nil, Bytes: []disk.Range{bytes}}) == nil {
				r.patched = append(r.patched, bytes)
				break
			}
		}
	}
	for _, p := range r.patched {
		for i := p.Off; i < p.End(); i++ {
			r.raw[i] ^= 0xa5
		}
	}
}

// changedSectors returns the sectors in which two volumes differ.
func changedSectors(a, b []byte) (out []disk.Range) {
	for off := 0; off < len(a); off += 512 {
		if !bytes.Equal(a[off:off+512], b[off:off+512]) {
			out = append(out, disk.Range{Off: int64(off), Len: 512})
		}
	}
	return out
}

// TestReplayByNTFS3 replays logs of Windows with Linux, which must write only where expected, and leave patched bytes
// unchanged. It shows where a replay writes, not what: it redoes some operations on records that are newer.
func TestReplayByNTFS3(t *testing.T) {
	t.Parallel()
	var volumes []*replayed
	var paths []string
	files := 0
	add := func(r *replayed) {
		path := filepath.Join(t.TempDir(), "volume")
		// Linux needs one more sector
		require.NoError(t, os.WriteFile(path, append(slices.Clone(r.raw), make([]byte, 1<<20)...), 0o600))
		volumes, paths = append(volumes, r), append(paths, path)
	}
	for _, row := range rewound {
		w := windows[row.volume]
		v := real(t, w.rel, w.start, w.size)
		if v.Size() > 32<<20 {
			continue
		}
		r := setBack(t, v, row.to)
		add(r)
		moved := *r
		moved.raw = slices.Clone(r.raw)
		moved.patch(t, v)
		files += len(moved.patched) - 1
		add(&moved)
	}
	require.Positive(t, files, "the volume of XP has no file left")
	said := disktest.MountNTFS3(t, paths...)
	back, trees := 0, 0
	for i := 0; i < len(volumes); i += 2 {
		before, moved := volumes[i], volumes[i+1]
		require.Equal(t, said[i], said[i+1], "trees")
		if strings.Contains(said[i], "names") { // ntfs3 refuses others after its writes
			trees++
		}
		var after [2]forge.Bytes
		for k, path := range paths[i : i+2] {
			raw := disktest.ReadFile(t, path)
			after[k] = raw[:len(before.raw)]
		}
		for _, s := range changedSectors(before.raw, after[0]) {
			hit := disk.Behind(before.allowed, s.Off)
			expected := hit < len(before.allowed) && before.allowed[hit].Overlaps(s)
			require.True(t, expected || before.onlyMarked(after[0], s), "volume %d: sector at %#x", i/2, s.Off)
			if slices.ContainsFunc(before.back, s.Overlaps) {
				back++
			}
		}
		for _, p := range moved.patched {
			require.Equal(t, moved.raw[p.Off:p.End()], after[1][p.Off:p.End()], "volume %d: a patch at %#x", i/2, p.Off)
			copy(after[1][p.Off:p.End()], after[0][p.Off:p.End()])
		}
		t.Logf("volume %d: %d writes expected, %d sectors written, %s", i/2, len(before.log.Writes),
			len(changedSectors(before.raw, after[0])), said[i])
		require.Empty(t, changedSectors(after[0], after[1]), "volume %d: the copies differ by patches alone", i/2)
	}
	require.Positive(t, back, "records that were put back were written")
	require.Positive(t, trees)
}

func TestStructSizes(t *testing.T) {
	require.Equal(t, 0x20, binary.Size(restartHead{}))
	require.Equal(t, 0x28, binary.Size(restartArea{}))
	require.Equal(t, 0x28, binary.Size(logClient{}))
	require.Equal(t, headerSize, binary.Size(recordHeader{}))
	require.Equal(t, actionSize, binary.Size(actionHeader{}))
	require.Equal(t, 0x68, binary.Size(clientData{}))
	require.Len(t, ops, 0x26)
}

// idle is an open log without activity since its checkpoint.
func idle(major uint16, client uint32) *forged {
	f := newLog(major, client, 64)
	f.checkpoint(tables{})
	return f
}

// both changes a field of both restart pages.
func both(f *forged, change func(p forge.Bytes)) *forged {
	for off := int64(0); off < 2*pageSize; off += pageSize {
		change(f.Bytes[off : off+pageSize])
	}
	return f
}

func TestStates(t *testing.T) {
	const area = 0x30
	clean := func(f *forged) *forged {
		return both(f, func(p forge.Bytes) { p.U16(area+0x0e, markedClean|1) })
	}
	second := idle(1, 0)
	second.U64(pageSize+area, second.Last+1) // newer
	second.U16(pageSize+area+0x0c, noClient)
	for name, tc := range map[string]struct {
		log  *forged
		want State
	}{
		"new": {both(idle(1, 0), func(p forge.Bytes) { copy(p, bytes.Repeat([]byte{0xff}, pageSize)) }), Empty},
		"of chkdsk": {both(idle(1, 0), func(p forge.Bytes) {
			p.Text(0, "CHKD")
			p.U64(8, 1)
		}), Checked},
		"closed": {both(idle(1, 0), func(p forge.Bytes) { p.U16(area+0x0c, noClient) }), Closed},
		"closed, of 1.0": {both(idle(1, 0), func(p forge.Bytes) {
			p.U16(area+0x0c, noClient)
			p.U16(0x1a, 0)
		}), Closed},
		"clean, client 0":     {clean(idle(1, 0)), Clean},
		"clean, client 1":     {clean(idle(1, 1)), Clean},
		"open, client 0":      {idle(1, 0), OpenLog},
		"open, client 1":      {idle(1, 1), OpenLog},
		"open, version 2.0":   {idle(2, 1), OpenLog},
		"second page decides": {second, Closed},
	} {
		t.Run(name, func(t *testing.T) {
			l := tc.log.read(t, newDisk())
			require.Equal(t, tc.want, l.State, "%s", l.State)
			require.Empty(t, l.Writes)
		})
	}
}

// One torn restart page is no loss. requireLook requires that the restart pages alone show the state of the whole log.
func requireLook(t testing.TB, want State, log []byte) {
	t.Helper()
	got, err := ReadState(bytes.NewReader(log))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestTornRestartPage(t *testing.T) {
	for off := 0; off < 2*pageSize; off += pageSize {
		log := idle(1, 0).Sealed()
		log[off+1022]++
		l, err := Read(bytes.NewReader(log), newDisk().volume())
		require.NoError(t, err)
		require.Equal(t, OpenLog, l.State)
	}
}

// set16, set32 and set64 change a field of both restart pages of an idle log.
func set16(at int64, v uint16) *forged {
	return both(idle(1, 0), func(p forge.Bytes) { p.U16(at, v) })
}

func set32(at int64, v uint32) *forged {
	return both(idle(1, 0), func(p forge.Bytes) { p.U32(at, v) })
}

func set64(at int64, v uint64) *forged {
	return both(idle(1, 0), func(p forge.Bytes) { p.U64(at, v) })
}

func TestBrokenRestartPages(t *testing.T) {
	const area, client = 0x30, 0x70
	version3 := both(set16(0x1c, 3), func(p forge.Bytes) { p.U16(0x1a, 0) })
	noRecord := both(set64(client, 0), func(p forge.Bytes) { p.U64(client+8, 8) })
	zeros := both(idle(1, 0), func(p forge.Bytes) { clear(p) })
	versions := idle(1, 0)
	versions.U16(0x1c, 2)
	flags := idle(1, 0)
	flags.U16(area+0x0e, markedClean)
	for name, tc := range map[string]struct {
		log   *forged
		class error
		text  string
	}{
		"none":                      {zeros, ondisk.ErrFormat, "restart pages"},
		"other signature":           {set16(0, 0), ondisk.ErrFormat, "restart pages"},
		"system page":               {set32(0x10, 8192), ondisk.ErrUnsupported, "pages of 8192 and 4096 bytes"},
		"log page":                  {set32(0x14, 512), ondisk.ErrUnsupported, "pages of 4096 and 512"},
		"version 1.0":               {set16(0x1a, 0), ondisk.ErrUnsupported, "version 1.0"},
		"version 2.1":               {set16(0x1c, 2), ondisk.ErrUnsupported, "version 2.1"},
		"version 3.0":               {version3, ondisk.ErrUnsupported, "version 3.0"},
		"two versions":              {versions, ondisk.ErrFormat, `page at 0x30: version "RSTR 2.1", want RSTR 1.1`},
		"two states at one LSN":     {flags, ondisk.ErrFormat, "want open as in the other page"},
		"area behind the page":      {set16(0x18, 4080), ondisk.ErrFormat, "offset of restart area 4080"},
		"area in the header":        {set16(0x18, 8), ondisk.ErrFormat, "offset of restart area 8"},
		"two clients":               {set16(area+8, 2), ondisk.ErrFormat, "clients"},
		"client behind the page":    {set16(area+0x16, 0xffff), ondisk.ErrFormat, "offset of clients"},
		"client of another name":    {set16(client+0x20, 'X'), ondisk.ErrFormat, "client name"},
		"file larger than the log":  {set64(area+0x18, 65*pageSize), ondisk.ErrFormat, "file size"},
		"file without records":      {set64(area+0x18, 4*pageSize), ondisk.ErrFormat, "file size"},
		"file of half a page":       {set64(area+0x18, 63*pageSize+512), ondisk.ErrFormat, "file size"},
		"sequence bits":             {set32(area+0x10, 47), ondisk.ErrFormat, "sequence bits 47, want 48"},
		"record header":             {set16(area+0x24, 0x38), ondisk.ErrUnsupported, "headers of 56"},
		"records at another offset": {set16(area+0x26, 0x48), ondisk.ErrUnsupported, "from byte 72"},
		"restart before oldest":     {set64(client, 1<<60), ondisk.ErrFormat, "LSNs"},
		"restart behind current":    {set64(client+8, 1<<60), ondisk.ErrFormat, "LSNs"},
		"restart is no record":      {noRecord, ondisk.ErrFormat, "LSN"},
		"current is no record":      {set64(area, 1<<60), ondisk.ErrFormat, "record page"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.log.refused(t)
			require.ErrorIs(t, err, tc.class)
			require.ErrorContains(t, err, tc.text)
		})
	}
}

// A log that is marked clean has nothing to write.
func TestCleanMarkContradicted(t *testing.T) {
	f := idle(1, 0)
	f.op(onRecord(30, op{redo: initRecord, undo: noop}))
	f.Restart(f.checkpointed(t), f.checkpointed(t), 0, markedClean)
	require.ErrorContains(t, f.refused(t), `flags "clean", want no mark with 1 writes pending`)
}

// checkpointed returns the LSN of the last checkpoint.
func (f *forged) checkpointed(t *testing.T) uint64 {
	t.Helper()
	return binary.LittleEndian.Uint64(f.Bytes[0x70+8:])
}

type sized struct {
	*strings.Reader
	size int64
}

func (s sized) Size() int64 { return s.size }

func TestSizesOfLog(t *testing.T) {
	_, err := Read(sized{strings.NewReader(""), maxLog + 1}, newDisk().volume())
	require.ErrorIs(t, err, ondisk.ErrLimit)
	for _, n := range []int{0, 1, pageSize - 1, pageSize} {
		_, err := Read(bytes.NewReader(make([]byte, n)), newDisk().volume())
		require.ErrorIs(t, err, ondisk.ErrFormat)
	}
	l, err := Read(strings.NewReader("\xff\xff\xff\xff"), newDisk().volume())
	require.NoError(t, err)
	require.Equal(t, Empty, l.State)
	short := idle(1, 0).Sealed()
	_, err = Read(bytes.NewReader(short[:pageSize+1]), newDisk().volume())
	require.ErrorContains(t, err, "file size", "the one restart page is of a longer file")
}

// An LSN of a log of 2 MiB, with 45 bits of sequence.
func TestPlaceOfLSN(t *testing.T) {
	r := &reader{offset: 64 - 45}
	require.Equal(t, int64(195976), r.place(1073073))
	require.Equal(t, int64(47*pageSize+3464), r.place(1073073))
	require.Equal(t, uint64(1073073), r.lsn(2, 195976))
}

func TestStructSize(t *testing.T) { require.Equal(t, 512, binary.Size(bootSector{})) }
