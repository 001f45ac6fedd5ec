package ntfs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// smallFiles is a volume with clusters of 512 bytes and many small files.
func smallFiles(t testing.TB, n int) string {
	t.Helper()
	vol := mkntfs(t, 4<<20, "-c", "512")
	for i := range n {
		ntfscp(t, vol, fmt.Sprint("small", i), filetest.Noise(uint64(i), 300+i))
	}
	return vol
}

// scatterMFT moves each cluster of the MFT after record 23 to a random free cluster, and returns all runs of the MFT.
func (m *ntfsForge) scatterMFT(t testing.TB) []extent {
	t.Helper()
	c := m.fs.cluster
	require.Len(t, filetest.RunsOf(t, m.fs.mft), 1, "as mkntfs makes it")
	start, head, all := filetest.RunsOf(t, m.fs.mft)[0].At/c, 24*m.fs.record/c, m.fs.mft.Size()/c

	// Clusters of zeros in the second half of the volume, in a random order.
	var free []int64
	for i := m.fs.clusters / 2; i < m.fs.clusters; i++ {
		if ondisk.IsZero(m.Bytes[i*c : (i+1)*c]) {
			free = append(free, i)
		}
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(free), func(i, j int) { free[i], free[j] = free[j], free[i] })

	out := []extent{{length: head, start: start}}
	for i := head; i < all; i++ {
		to := free[i]
		copy(m.Bytes[to*c:], m.Bytes[(start+i)*c:(start+i+1)*c])
		clear(m.Bytes[(start+i)*c : (start+i+1)*c])
		out = append(out, extent{length: 1, start: to})
	}
	return out
}

// splitMFT spreads the runs of the MFT over several records: record 16, as Windows does, and others that only the
// preceding runs lead to.
func (m *ntfsForge) splitMFT(t testing.TB, runs []extent) {
	t.Helper()
	zero, err := m.fs.load(ref{})
	require.NoError(t, err)
	const first = 0x30 // number of the attributes
	list := bytes.Join([][]byte{listEntry(0x10, 0, 0, 0, 1), listEntry(attrFileName, 3, 0, 0, 1)}, nil)
	var base []byte
	vcn := int64(0)
	for i, record := range []int64{0, 16, 40, 50, 51, 52} {
		n := min([]int{21, 60, 80, 80, 80, 80}[i], len(runs))
		a := runsAttr(attrData, first+uint16(i), vcn, m.fs.cluster, m.fs.mft.Size(), runs[:n])
		list = append(list, listEntry(attrData, first+uint16(i), vcn, record, 1)...)
		if record == 0 {
			base = a
		} else {
			raw := withAttrs(t, m.raw(t, record), a)
			raw.U16(0x10, 1)
			raw.U16(0x16, recordInUse)
			raw.U64(0x20, 1<<48)
			m.put(t, record, raw)
		}
		for _, e := range runs[:n] {
			vcn += e.length
		}
		if runs = runs[n:]; len(runs) == 0 {
			break
		}
	}
	require.Empty(t, runs)
	bitmap := attrBytes(zero, 0xb0)
	list = append(list, listEntry(0xb0, 0x20, 0, 0, 1)...)
	bitmap[0x0e] = 0x20
	std, name := attrBytes(zero, 0x10), attrBytes(zero, attrFileName)
	std[0x0e], name[0x0e] = 0, 3
	m.put(t, 0, withAttrs(t, m.raw(t, 0), std, residentAttr(attrList, 0x21, list), name, base, bitmap))
}

// An MFT whose records of 1024 bytes are in clusters of 512 bytes that are not adjacent, and whose own runs are in
// several records.
func TestNTFSScatteredMFT(t *testing.T) {
	m := forgeNTFS(t, smallFiles(t, 60))
	runs := forgeNTFS(t, m.save(t)).scatterMFT(t)
	m.splitMFT(t, runs)
	require.Equal(t, runs, m.scatterMFT(t))
	vol := m.save(t)
	v := requireLikeTools(t, vol)
	require.NotEmpty(t, v.at(t, "$MFT").list)
	require.Len(t, filetest.RunsOf(t, v.mft), len(runs))
	for i := range 60 {
		f := v.file(t, fmt.Sprint("small", i))
		require.Greater(t, len(filetest.RunsOf(t, f)), 1)
		ntfsRewrite(t, vol, f, 0, f.Size())
		require.Equal(t, inverted(filetest.Noise(uint64(i), 300+i)), ntfscat(t, vol, f.Path))
	}
	disktest.Run(t, "ntfsfix", "-n", vol)
}

// Before version 3.1, a record has no number, and its fix-ups are in the place of the number.
func TestNTFSOfOldVersions(t *testing.T) {
	for _, version := range [][2]byte{{1, 2}, {3, 0}} {
		m := forgeNTFS(t, smallFiles(t, 20))
		m.change(t, 3, func(r forge.Bytes) {
			at := m.attrAt(t, 3, 0x70) + 0x18
			r.Put(at+8, version[:])
		})
		for i := range m.fs.mft.Size() / m.fs.record {
			r := m.raw(t, i)
			r.U16(4, recordHeadSize)
			m.put(t, i, r)
		}
		vol := m.save(t)
		require.Contains(t, disktest.Output(t, "ntfsinfo", "-m", vol),
			fmt.Sprintf("Volume Version: %d.%d", version[0], version[1]))
		v := requireLikeTools(t, vol)
		for i := range 20 {
			f := v.file(t, fmt.Sprint("SMALL", i))
			ntfsRewrite(t, vol, f, 0, f.Size())
			require.Equal(t, inverted(filetest.Noise(uint64(i), 300+i)), ntfscat(t, vol, f.Path))
		}
	}
}

// Bytes beyond the initialized size read as zeros, regardless of their clusters, and cannot be rewritten.
func TestNTFSInitialisedSize(t *testing.T) {
	vol := mkntfs(t, 4<<20)
	ntfscp(t, vol, "file", filetest.Noise(1, 50000))
	m := forgeNTFS(t, vol)
	number := m.number(t, "file")
	at := m.attrAt(t, number, attrData)
	m.change(t, number, func(r forge.Bytes) { r.U64(at+0x38, 20001) })
	vol = m.save(t)
	v := openNTFS(t, vol)
	f := requireLikeNTFSCat(t, vol, v, "file")
	require.Equal(t, append(filetest.Noise(1, 50000)[:20001], make([]byte, 29999)...), filetest.ReadAll(t, f))
	_, err := f.Where(20000, 2)
	require.ErrorIs(t, err, guestfile.ErrHole)
	places, err := f.Where(20000, 1)
	require.NoError(t, err)
	require.Equal(t, filetest.Noise(1, 50000)[20000], m.Bytes[places[0].Off])
}

// A short name leads to the file, and is not a name of its own in the folder.
func TestNTFSShortName(t *testing.T) {
	vol := mkntfs(t, 4<<20)
	ntfscp(t, vol, "LONGNA~1.TXT", filetest.Noise(1, 5000))
	m := forgeNTFS(t, vol)
	name := []byte(utf16le("LONGNA~1.TXT"))
	for at := 0; ; {
		i := bytes.Index(m.Bytes[at:], name)
		if i < 0 {
			break
		}
		at += i
		m.U8(int64(at)-1, spaceDOS)
		at++
	}
	vol = m.save(t)
	v := requireLikeTools(t, vol)
	f := requireLikeNTFSCat(t, vol, v, "LONGNA~1.TXT")
	require.Equal(t, filetest.Noise(1, 5000), filetest.ReadAll(t, f))
	require.NotContains(t, listTree(t, v, ""), "LONGNA~1.TXT")
}

// A nonresident attribute list, and data whose first part is in an extension record.
func TestNTFSListInClusters(t *testing.T) {
	m := hostileBase(t)
	number := m.number(t, "large")
	rec, err := m.fs.load(ref{number: number})
	require.NoError(t, err)
	data := attrBytes(rec, attrData)
	const extension = 40
	var list, attrs []byte
	for i := range rec.attrs {
		a := &rec.attrs[i]
		in := number
		if a.Type == attrData {
			in = extension
		} else {
			attrs = append(attrs, attrBytes(rec, a.Type)...)
		}
		if a.Type == 0x10 {
			attrs = append(attrs, runsAttr(attrList, 77, 0, 512, int64(0x20*len(rec.attrs)), []extent{{1, 3000}})...)
		}
		list = append(list, listEntry(a.Type, a.ID, 0, in, 1)...)
	}
	m.Put(3000*512, list)
	m.put(t, number, withAttrs(t, m.raw(t, number), attrs))
	raw := withAttrs(t, m.raw(t, extension), data)
	raw.U16(0x10, 1)
	raw.U16(0x16, recordInUse)
	raw.U64(0x20, uint64(number)|1<<48)
	m.put(t, extension, raw)
	vol := m.save(t)
	v := openNTFS(t, vol)
	f := requireLikeNTFSCat(t, vol, v, "large")
	require.Equal(t, filetest.Noise(2, 5000), filetest.ReadAll(t, f))
	requireRunsOfNTFSInfo(t, vol, v, f)
}

// Records of all sizes, with a value across all sector ends: it is read correctly, and writing a byte at the position
// from Where changes only this byte and keeps the fix-ups valid.
func TestNTFSRecordSizes(t *testing.T) {
	for size := 512; size <= maxRecord; size *= 2 {
		for _, pieces := range []int{1, size / 512} {
			attrs := (recordHeadSize + 2*(size/512+1) + 7) &^ 7
			data := filetest.Noise(uint64(size), (size-attrs-0x18-8)&^7)
			raw := make(forge.Bytes, size)
			raw.Text(0, "FILE")
			raw.U16(4, recordHeadSize)
			raw.U16(6, uint16(size/512+1))
			raw.U16(0x10, 1)
			raw.U16(0x14, uint16(attrs))
			raw.U16(0x16, recordInUse)
			raw.U32(0x1c, uint32(size))
			raw = sealNTFS(withAttrs(t, raw, residentAttr(attrData, 0, data)))
			// The pieces of the record are in reverse order, with an empty piece between two.
			volume := make([]byte, 2*size)
			n := newFileSystem(guestfile.NewBudget(), disktest.ShortDisk(volume, int64(2*size)))
			n.cluster, n.clusters, n.record = 512, int64(2*size/512), int64(size)
			var runs []guestfile.Run
			for i := range pieces {
				part := size / pieces
				at := 2*size - (2*i+1)*part
				copy(volume[at:], raw[i*part:(i+1)*part])
				runs = append(runs, guestfile.Run{Off: int64(i * part), Len: int64(part), At: int64(at)})
			}
			var err error
			n.mft, err = guestfile.NewFile(n.volume, "$MFT", n.record, runs)
			require.NoError(t, err)
			load := func() *guestfile.File {
				node, err := n.node(ref{}, "file")
				require.NoError(t, err)
				v := value{fs: n}
				require.NoError(t, node.read(attrData, "", &v))
				f, err := v.file("file")
				require.NoError(t, err)
				return f
			}
			f := load()
			require.Equal(t, data, filetest.ReadAll(t, f))
			step := int64(1)
			if size > 4096 {
				step = 255 // of the two displaced bytes of a stride it meets many
			}
			for off := int64(0); off < f.Size(); off += step {
				places, err := f.Where(off, 1)
				require.NoError(t, err)
				require.Len(t, places, 1)
				volume[places[0].Off] ^= 0xff
				data[off] ^= 0xff
				require.True(t, bytes.Equal(data, filetest.ReadAll(t, load())))
			}
		}
	}
}
