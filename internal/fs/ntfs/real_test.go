package ntfs

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// realVolume is a volume of the corpus, read by independent code.
type realVolume struct {
	ondisk.Source
	cluster, record int64
	mft             []byte
	log             []byte
}

// real opens a volume of an image of the corpus.
func real(t testing.TB, rel string, start, size int64) *realVolume {
	t.Helper()
	return openVolume(t, disktest.Corpus(t, rel), start, size)
}

// openVolume opens a volume at a byte of the image at path. Without a size it extends to the end of the image.
func openVolume(t testing.TB, path string, start, size int64) *realVolume {
	t.Helper()
	if filepath.Ext(path) == ".qcow2" || filepath.Ext(path) == ".vmdk" {
		raw := filepath.Join(t.TempDir(), "raw")
		disktest.Run(t, "qemu-img", "convert", "-O", "raw", path, raw)
		path = raw
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	require.NoError(t, err)
	if size == 0 {
		size = info.Size() - start
	}
	v := &realVolume{Source: io.NewSectionReader(f, start, size)}
	boot := v.read(t, 0, 512)
	v.cluster = int64(binary.LittleEndian.Uint16(boot[11:])) * int64(boot[13])
	v.record = 1024
	at := int64(binary.LittleEndian.Uint64(boot[0x30:])) * v.cluster
	first := v.read(t, at, v.record)
	require.True(t, UndoFixups(first, 0x28))
	v.mft = v.data(t, first)
	v.log = v.data(t, v.recordOf(2))
	return v
}

func (v *realVolume) read(t testing.TB, off, n int64) []byte {
	t.Helper()
	b, err := ondisk.Bytes(v, off, n)
	require.NoError(t, err)
	return b
}

// data returns the unnamed nonresident data of a record.
func (v *realVolume) data(t testing.TB, r []byte) []byte {
	t.Helper()
	var out []byte
	places, size := v.places(r)
	for _, p := range places {
		out = append(out, v.read(t, p.Off, p.Len)...)
	}
	return out[:size]
}

// places returns the positions of a record's unnamed data in the volume, and their size, or none if they are resident.
func (v *realVolume) places(r []byte) (out []disk.Range, size int64) {
	for at := int(binary.LittleEndian.Uint16(r[0x14:])); r[at] != 0xff; at += int(
		binary.LittleEndian.Uint32(r[at+4:])) {
		if binary.LittleEndian.Uint32(r[at:]) != 0x80 || r[at+8] == 0 || r[at+9] != 0 {
			continue
		}
		lcn := int64(0)
		for run := r[at+int(binary.LittleEndian.Uint16(r[at+0x20:])):]; run[0] != 0; {
			n, m := int(run[0]&15), int(run[0]>>4)
			count, delta := int64(0), int64(int8(run[n+m]))
			for i := range n {
				count |= int64(run[1+i]) << (8 * i)
			}
			for i := n + m - 1; i > n; i-- {
				delta = delta<<8 | int64(run[i])
			}
			lcn += delta
			if m > 0 {
				out = append(out, disk.Range{Off: lcn * v.cluster, Len: count * v.cluster})
			}
			run = run[1+n+m:]
		}
		return out, int64(binary.LittleEndian.Uint64(r[at+0x30:]))
	}
	return nil, 0
}

// recordOf returns a record of the MFT, or nil if no valid one is stored.
func (v *realVolume) recordOf(n int64) []byte {
	if (n+1)*v.record > int64(len(v.mft)) {
		return nil
	}
	r := bytes.Clone(v.mft[n*v.record:][:v.record])
	if string(r[:4]) != "FILE" || !UndoFixups(r, 0x28) {
		return nil
	}
	return r
}

func (v *realVolume) volume() LogVolume {
	return LogVolume{
		Source: v.Source, Cluster: v.cluster, Record: v.record,
		MFT: func(n int64) ([]byte, error) { return v.recordOf(n), nil },
	}
}

// replay reads a log of the volume.
func (v *realVolume) replay(t testing.TB, log []byte) *Log {
	t.Helper()
	l, err := Read(bytes.NewReader(log), v.volume())
	require.NoError(t, err)
	return l
}

// change returns the write of a log record to a record of the MFT, or nil.
func (v *realVolume) change(t testing.TB, r *reader, rec *logRecord) *Write {
	t.Helper()
	if rec.Type != ordinary {
		return nil
	}
	act, err := decodeAction(rec)
	require.NoError(t, err)
	a := analysis{reader: r, volume: v.volume()}
	require.NoError(t, a.note(act, false))
	if act.Redo.class() != mftClass || len(a.pending) == 0 {
		return nil
	}
	return &a.pending[0].Write
}

// windows lists the volumes of the corpus with logs of Windows: XP, 2003, and twice 7 or later.
var windows = []struct {
	name, rel   string
	start, size int64
	client      uint32
}{
	{"XP", "dftt/7-ntfs-undel.dd.xz", 0, 0, 0},
	{"2003 R2", "libldm/ldm-2003r2-simple-1.img.xz", 63 * 512, 96327 * 512, 0},
	{"with shadow copies", "dfvfs/vsstest.qcow2.xz", 0, 0, 1},
	{"of a VMDK", "vmdk-rs/monolithicFlat-flat.vmdk.xz", 128 * 512, 18304 * 512, 1},
}

// Volumes that Windows unmounted are clean, and a replay of their logs writes nothing.
func TestCleanLogsOfWindows(t *testing.T) {
	for _, w := range windows {
		t.Run(w.name, func(t *testing.T) {
			v := real(t, w.rel, w.start, w.size)
			l := v.replay(t, v.log)
			requireLook(t, l.State, v.log)
			require.Equal(t, Clean, l.State)
			require.Equal(t, []uint16{1, 1}, []uint16{l.Major, l.Minor})
			require.Empty(t, l.Writes)
			require.Zero(t, l.Since)
			require.Equal(t, l.Current, l.End)
			require.Nil(t, l.Conflict(Patched{Records: []int64{0, 3, 5}}))
		})
	}
}

// Volumes of mkntfs, and those that ntfs-3g wrote to, have a new log.
func TestLogsOfNTFS3G(t *testing.T) {
	for rel, start := range map[string]int64{
		"imagemounter/test.ntfs.xz": 0, "osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz": 393216 * 512,
	} {
		v := real(t, rel, start, 0)
		l := v.replay(t, v.log)
		requireLook(t, l.State, v.log)
		require.Equal(t, &Log{State: Empty}, l)
	}
}

// mkntfs writes a new log, and ntfsfix resets any.
func TestLogsOfTools(t *testing.T) {
	for _, cluster := range []string{"512", "4096", "65536"} {
		path := disktest.Blank(t, "volume", 32<<20)
		disktest.Run(t, "mkntfs", "-F", "-q", "-c", cluster, path)
		empty := func() {
			v := openVolume(t, path, 0, 0)
			l := v.replay(t, v.log)
			requireLook(t, l.State, v.log)
			require.Equal(t, &Log{State: Empty}, l)
		}
		empty()
		disktest.Run(t, "ntfsfix", path)
		empty()
	}
}

// allRecords returns all stored records of a log by LSN.
func allRecords(t testing.TB, log []byte) (*reader, map[uint64]*logRecord) {
	t.Helper()
	page, err := newest(bytes.NewReader(log))
	require.NoError(t, err)
	r, err := newReader(bytes.NewReader(log), page)
	require.NoError(t, err)
	all := map[uint64]*logRecord{}
	for n := r.first; n < r.count; n++ {
		p, err := r.load(n)
		require.NoError(t, err)
		if p == nil {
			continue
		}
		for at := int64(pageData); at <= pageSize-headerSize; at += 8 {
			lsn := binary.LittleEndian.Uint64(p[at:])
			if lsn != r.lsn(p.last()>>r.offset, n*pageSize+at) && lsn != r.lsn(p.lastEnd()>>r.offset, n*pageSize+at) {
				continue
			}
			if rec, err := r.record(lsn); err == nil {
				all[lsn] = rec
			}
		}
	}
	return r, all
}

// An MFT record holds the LSN of its last change that stores one, so the numbers in the log are right. Those of a new
// volume's reserved records are 0, and others may have been changed by records that the log no longer has.
func TestRecordsHoldTheirLSN(t *testing.T) {
	exact, all := 0, 0
	for _, w := range windows {
		v := real(t, w.rel, w.start, w.size)
		r, recs := allRecords(t, v.log)
		last := map[int64]uint64{}
		for _, lsn := range slices.Sorted(maps.Keys(recs)) {
			p := v.change(t, r, recs[lsn])
			if p == nil || p.Op == nameInRoot {
				continue
			}
			last[p.Record] = lsn
			stored := v.read(t, p.Places[0].Off, p.Places[0].Len)
			require.True(t, bytes.HasPrefix(v.mft[p.Record*v.record:], stored), "the clusters are those of the MFT")
		}
		for n, lsn := range last {
			got := logMFTRecord(v.recordOf(n)).lsn()
			all++
			if got == lsn {
				exact++
				continue
			}
			require.True(t, got > lsn || n >= 16 && n < 24, "%s: record %d: LSN %d, in the log %d", w.name, n, got, lsn)
		}
	}
	t.Logf("%d of %d records hold their last LSN", exact, all)
	require.Greater(t, exact, all*9/10)
}

// The last sizes of an attribute in the log equal those in its record, if nothing moved it since, which shows that the
// order of the three fields is right. Likewise, the last times are in the range of those of the record.
func TestRecordsHoldTheirSizes(t *testing.T) {
	same := map[Op]int{}
	for _, w := range windows {
		v := real(t, w.rel, w.start, w.size)
		r, recs := allRecords(t, v.log)
		moved, seen := map[int64]bool{}, map[Target]bool{} // of records, and of offsets in them
		for _, lsn := range slices.Backward(slices.Sorted(maps.Keys(recs))) {
			p := v.change(t, r, recs[lsn])
			if p == nil {
				continue
			}
			at := Target{p.Record, uint32(p.recordOffset)}
			switch {
			case p.Op == residentValue && p.recordOffset != 0x38 || p.Op != attributeSizes && p.Op != residentValue:
				moved[p.Record] = true
			case !moved[p.Record] && !seen[at]:
				seen[at] = true
				require.True(t, logMFTRecord(v.recordOf(p.Record)).keepsLayout(p), "%s: %s of record %d", w.name, p.Op,
					p.Record)
				same[p.Op]++
			}
		}
	}
	t.Log(same)
	require.Positive(t, same[attributeSizes])
	require.Positive(t, same[residentValue])
}
