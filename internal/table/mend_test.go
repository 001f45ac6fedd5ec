package table_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

const (
	mendSectors = 4096
	mendPrimary = 512
	mendBackup  = (mendSectors - 1) * 512
	mendArrays  = 32 * 512
)

func mendable() forge.Bytes {
	return tableforge.NewGPT(512, mendSectors, 128, tableforge.GPTEntry{First: 63, Last: 2000, Name: "one"},
		tableforge.GPTEntry{First: 2001, Last: 4000, Name: "two"})
}

// patched returns a disk with patches, whose old values must match.
func patched(t *testing.T, f forge.Bytes, patches []disk.Patch) forge.Bytes {
	t.Helper()
	out := slices.Clone(f)
	for _, p := range patches {
		require.Equal(t, []byte(f[p.Off:p.Off+int64(len(p.Old))]), p.Old, "%s at %#x", p.Reason, p.Off)
		copy(out[p.Off:], p.New)
	}
	return out
}

// checkSound reads both copies of a GPT according to UEFI 2.10, 5.3.2.
func checkSound(t *testing.T, f forge.Bytes) {
	t.Helper()
	var arrays [][]byte
	for _, at := range []int{mendPrimary, mendBackup} {
		h := slices.Clone(f[at : at+512])
		require.Equal(t, "EFI PART", string(h[:8]))
		size := binary.LittleEndian.Uint32(h[tableforge.GPTHeaderSize:])
		sum := binary.LittleEndian.Uint32(h[tableforge.GPTHeaderCRC:])
		clear(h[tableforge.GPTHeaderCRC : tableforge.GPTHeaderCRC+4])
		require.Equal(t, crc32.ChecksumIEEE(h[:size]), sum)
		array := int(binary.LittleEndian.Uint64(h[tableforge.GPTEntriesLBA:])) * 512
		arrays = append(arrays, f[array:array+128*128])
		require.Equal(t, crc32.ChecksumIEEE(arrays[len(arrays)-1]),
			binary.LittleEndian.Uint32(h[tableforge.GPTEntriesCRC:]))
		require.Equal(t, uint64(at/512), binary.LittleEndian.Uint64(h[tableforge.GPTMyLBA:]))
	}
	require.True(t, bytes.Equal(arrays[0], arrays[1]))
}

// A damaged copy is rewritten with its remaining bytes as old values, and nothing else on the disk changes. Data that
// no part of the GPT explains are not overwritten.
func TestMendingReadsWhatItReplaces(t *testing.T) {
	random := func(n int) []byte {
		var out []byte
		for i := 0; len(out) < n; i++ {
			sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
			out = append(out, sum[:]...)
		}
		return out[:n]
	}
	for name, c := range map[string]struct {
		damage func(f forge.Bytes, header, array int64)
		mends  bool
	}{
		"a wiped header": {func(f forge.Bytes, h, _ int64) { clear(f[h : h+512]) }, true},
		"a wiped copy": {func(f forge.Bytes, h, a int64) {
			clear(f[h : h+512])
			clear(f[a : a+mendArrays])
		}, true},
		"no signature":               {func(f forge.Bytes, h, _ int64) { clear(f[h : h+8]) }, true},
		"another sum":                {func(f forge.Bytes, h, _ int64) { f.U32(h+tableforge.GPTHeaderCRC, 7) }, true},
		"a wrong bit in the GUID":    {func(f forge.Bytes, h, _ int64) { f[h+60] ^= 1 }, false},
		"a wiped entry":              {func(f forge.Bytes, _, a int64) { clear(f[a : a+128]) }, true},
		"a wrong bit in a name":      {func(f forge.Bytes, _, a int64) { f[a+128+60] ^= 4 }, true},
		"an end of before":           {func(f forge.Bytes, _, a int64) { f.U64(a+128+40, 3000) }, true},
		"another header":             {func(f forge.Bytes, h, _ int64) { copy(f[h:h+92], random(92)) }, false},
		"a header of another disk":   {func(f forge.Bytes, h, _ int64) { copy(f[h+24:h+92], random(68)) }, false},
		"one of a disk of this size": {func(f forge.Bytes, h, _ int64) { copy(f[h+56:h+72], random(16)) }, false},
		"a loader over all":          {func(f forge.Bytes, _, a int64) { copy(f[a:], random(mendArrays)) }, false},
		"a loader in unused entries": {func(f forge.Bytes, _, a int64) { copy(f[a+8192:], random(2000)) }, false},
		"a byte in the last entry":   {func(f forge.Bytes, _, a int64) { f[a+mendArrays-1] = 1 }, false},
		"an entry that the other has not": {func(f forge.Bytes, _, a int64) {
			copy(f[a+256:], f[a:a+128])
			f[a+256+16] ^= 0xff
		}, false},
		"the first entry is another": {func(f forge.Bytes, _, a int64) { copy(f[a:a+56], random(56)) }, false},
	} {
		for i, header := range []int64{mendPrimary, mendBackup} {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				f := mendable()
				array := int64(binary.LittleEndian.Uint64(f[header+tableforge.GPTEntriesLBA:])) * 512
				c.damage(f, header, array)
				l := readTable(t, f)
				require.Len(t, l.Partitions, 2)
				require.Equal(t, c.mends, l.Damaged())
				require.Equal(t, !c.mends, l.Blocked())
				require.True(t, l.Torn())
				refused := slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.Refuse })
				require.Equal(t, !c.mends, refused)
				require.Empty(t, l.Relocate(table.Places{}, table.Geometry{}), "nothing moves, nothing was asked for")
				if !c.mends {
					require.Empty(t, l.Relocate(table.Places{Mend: true}, table.Geometry{}))
					return
				}
				mended := patched(t, f, l.Relocate(table.Places{Mend: true}, table.Geometry{}))
				checkSound(t, mended)
				disktest.EqualBytes(t, mendable(), mended)
				moved := patched(t, f, l.Relocate(table.Places{
					Mend: true, Parts: map[int]disk.Range{1: {Off: 64 * 512, Len: 1937 * 512}},
				}, table.Geometry{}))
				checkSound(t, moved)
			})
		}
	}
}

// Bytes of a sector after a header, and after an array that does not fill its last sector, do not belong to the table:
// a rewritten copy leaves them unchanged.
func TestMendingLeavesSlack(t *testing.T) {
	for _, header := range []int64{mendPrimary, mendBackup} {
		f := tableforge.NewGPT(512, mendSectors, 5, tableforge.GPTEntry{First: 63, Last: 2000, Name: "one"})
		array := int64(binary.LittleEndian.Uint64(f[header+tableforge.GPTEntriesLBA:])) * 512
		f.Text(header+200, "behind the header")
		f.Text(array+5*128+3, "behind the array")
		want := slices.Clone(f)
		clear(f[header : header+92])
		clear(f[array : array+128])
		l := readTable(t, f)
		require.True(t, l.Damaged())
		disktest.EqualBytes(t, want, patched(t, f, l.Relocate(table.Places{Mend: true}, table.Geometry{})))
	}
}

// The reserved bytes of an entry and of a header are zero by UEFI 2.10, 5.3.2 and 5.3.3: others, which the good copy
// lacks, are not overwritten.
func TestMendingLeavesReservedBytes(t *testing.T) {
	sound := tableforge.NewGPT(512, mendSectors, 64, tableforge.GPTEntry{First: 63, Last: 2000, Name: "one"})
	for _, h := range []int64{mendPrimary, mendBackup} {
		sound.U32(h+tableforge.GPTHeaderSize, 512)
		sound.U32(h+tableforge.GPTNumEntries, 32)
		sound.U32(h+tableforge.GPTEntrySize, 256)
		tableforge.SealGPT(sound, h, 512)
	}
	for name, c := range map[string]struct {
		damage func(f forge.Bytes, header, array int64)
		mends  bool
	}{
		"a wrong bit": {func(f forge.Bytes, _, a int64) { f[a+40] ^= 1 }, true},
		"behind a damaged entry": {func(f forge.Bytes, _, a int64) {
			f[a+40] ^= 1
			f.Text(a+200, "loader")
		}, false},
		"behind a sound entry":        {func(f forge.Bytes, _, a int64) { f.Text(a+200, "loader") }, false},
		"behind an unused entry":      {func(f forge.Bytes, _, a int64) { f.Text(a+256+200, "loader") }, false},
		"behind the fields of header": {func(f forge.Bytes, h, _ int64) { f.Text(h+200, "loader") }, false},
	} {
		for i, header := range []int64{mendPrimary, mendBackup} {
			t.Run(fmt.Sprint(name, i), func(t *testing.T) {
				f := slices.Clone(sound)
				c.damage(f, header, int64(binary.LittleEndian.Uint64(f[header+tableforge.GPTEntriesLBA:]))*512)
				l := readTable(t, f)
				require.True(t, l.Torn())
				require.Equal(t, c.mends, l.Damaged())
				patches := l.Relocate(table.Places{Mend: true}, table.Geometry{})
				if !c.mends {
					require.Empty(t, patches)
					return
				}
				disktest.EqualBytes(t, sound, patched(t, f, patches))
			})
		}
	}
}

// The backup of a disk that grew by a few sectors overlaps its new place: then only its own bytes are replaced.
func TestEnlargedDiskKeepsForeignBytes(t *testing.T) {
	const grown = mendSectors + 4
	for name, foreign := range map[string]int64{"none": 0, "behind the header": mendBackup + 200} {
		f := append(mendable(), make([]byte, (grown-mendSectors)*512)...)
		if foreign > 0 {
			f.Text(foreign, "loader")
		}
		l := readTable(t, f)
		require.False(t, l.Torn())
		moved := patched(t, f, l.Relocate(table.Places{
			Parts: map[int]disk.Range{1: {Off: 64 * 512, Len: 1937 * 512}},
		}, table.Geometry{}))
		at := int64((grown - 1) * 512)
		if foreign > 0 {
			at = mendBackup
			require.Equal(t, "loader", string(moved[foreign:foreign+6]), name)
		}
		require.Equal(t, "EFI PART", string(moved[at:at+8]), name)
		require.Equal(t, uint64(at/512), binary.LittleEndian.Uint64(moved[mendPrimary+tableforge.GPTAltLBA:]), name)
	}
}

// A copy whose array exceeds the memory limit is not rewritten.
func TestMendingIsBounded(t *testing.T) {
	const sectors = 20_000
	for size, blocked := range map[uint32]bool{128: false, 256: true} {
		f := tableforge.NewGPT(512, sectors, 16384*int64(size)/128, tableforge.GPTEntry{First: 8400, Last: 10000})
		for _, at := range []int64{512, (sectors - 1) * 512} {
			f.U32(at+tableforge.GPTNumEntries, 16384)
			f.U32(at+tableforge.GPTEntrySize, size)
			tableforge.SealGPT(f, at, 512)
		}
		clear(f[(sectors-1)*512:])
		l := readTable(t, f)
		require.Equal(t, blocked, l.Blocked())
	}
}

// What the remedy for a GPT that was cut off after its last partition says works: the disk that is as long as it was,
// with zeros there, is repaired to the disk that was.
func TestRemedyOfACutGPT(t *testing.T) {
	want := tableforge.NewGPT(512, mendSectors, 128, tableforge.GPTEntry{First: 63, Last: 2000, Name: "one"})
	length := regexp.MustCompile(`truncate -s (\d+) `)
	for _, sectors := range []int64{2001, 2002, 3000, 4062, 4063, 4064, 4080, 4094, 4095} {
		cut := want[:sectors*512]
		l := readTable(t, cut)
		require.False(t, l.Damaged(), "nothing is written over what is left of it: %d", sectors)
		i := slices.IndexFunc(l.Issues, func(i ondisk.Issue) bool { return i.Effect >= ondisk.Refuse })
		require.GreaterOrEqual(t, i, 0)
		found := length.FindStringSubmatch(l.Issues[i].Remedy)
		require.NotNil(t, found, "%d: %+v", sectors, l.Issues[i])
		require.Equal(t, strconv.Itoa(len(want)), found[1])
		again := append(slices.Clone(cut), make([]byte, len(want)-len(cut))...)
		l = readTable(t, again)
		require.True(t, l.Damaged())
		disktest.EqualBytes(t, want, patched(t, again, l.Relocate(table.Places{Mend: true}, table.Geometry{})))
	}
	// Where bytes of a partition are missing, zeros are no remedy.
	cut := want[:1900*512]
	l := readTable(t, cut)
	require.Equal(t, "cut-short", l.Issues[0].Code)
	require.Regexp(t, "^copy the whole image from its source again", l.Issues[0].Remedy)
}

// requireSgdisk requires that sgdisk finds no fault in a GPT.
func requireSgdisk(t *testing.T, f forge.Bytes) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.raw")
	f.Write(t, path)
	require.Contains(t, disktest.Run(t, "sgdisk", "-v", path), "No problems found")
}

// A GPT with one broken header becomes the sound one.
func TestMendingOfBrokenHeaders(t *testing.T) {
	want := tableforge.NewGPT(512, hostile.Sectors, 128, tableforge.GPTEntry{First: 63, Last: 1062, Name: "data"})
	requireSgdisk(t, want)
	for _, r := range hostile.OneGoodGPT() {
		t.Run(r.Name, func(t *testing.T) {
			f := forge.Bytes(disktest.ReadFile(t, r.Write(t, t.TempDir())))
			l := readTable(t, f)
			require.True(t, l.Damaged())
			disktest.EqualBytes(t, want, patched(t, f, l.Relocate(table.Places{Mend: true}, table.Geometry{})))
		})
	}
}

// A GPT that is unusual but valid moves, and sgdisk finds no fault in it.
func TestOddGPTsMove(t *testing.T) {
	for _, r := range hostile.OddGPTs() {
		t.Run(r.Name, func(t *testing.T) {
			f := forge.Bytes(disktest.ReadFile(t, r.Write(t, t.TempDir())))
			l := readTable(t, f)
			require.False(t, l.Damaged())
			last := l.Partitions[len(l.Partitions)-1]
			moved := patched(t, f, l.Relocate(table.Places{Parts: map[int]disk.Range{
				last.Number: {Off: last.Off + 4096, Len: last.Len},
			}}, table.Geometry{}))
			again := readTable(t, moved)
			require.False(t, again.Damaged())
			require.Equal(t, last.Off+4096, again.Partitions[len(l.Partitions)-1].Off)
			if r.Name != "T51 entries of 4 KiB" { // sgdisk reads entries of 128 bytes only
				requireSgdisk(t, moved)
			}
		})
	}
}

// What a new copy of a GPT would replace is read before, and what cannot be read is not taken for free.
func TestBadSectorsUnderANewGPT(t *testing.T) {
	const sectors, firstUsable = 4096, 64
	whole := func() forge.Bytes {
		f := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 100, Last: 2000})
		for _, header := range []int64{1, sectors - 1} {
			f.U64(header*512+tableforge.GPTFirstUsable, firstUsable)
			tableforge.SealGPT(f, header*512, 512)
		}
		return f
	}
	for name, tc := range map[string]struct {
		change func(f forge.Bytes)
		bad    int64
	}{
		"the array that was":         {func(f forge.Bytes) { f.Text(512, "gone") }, 30},
		"the place of the array":     {func(f forge.Bytes) { clear(f[:34*512]) }, 10},
		"the header that is damaged": {func(f forge.Bytes) { f.Text(512+tableforge.GPTDiskGUID, "damaged") }, 1},
	} {
		f := whole()
		tc.change(f)
		require.True(t, readTable(t, f).OnlyBackup(), name)
		_, err := table.Read(disktest.NewBadDisk(disktest.Memory(f), tc.bad*512))
		require.ErrorIs(t, err, disktest.ErrFault, name)
	}
}

// A GPT without partitions behind an MBR that does not protect it says nothing.
func TestEmptyGPTBesideAnMBR(t *testing.T) {
	for entries, beside := range map[int]bool{0: false, 1: true} {
		f := tableforge.NewGPT(512, 4096, 128, []tableforge.GPTEntry{{First: 100, Last: 2000}}[:entries]...)
		clear(f[tableforge.MBREntries:tableforge.MBRMagic])
		tableforge.PutSlot(f, 0, 0, slot(7, 63, 2000))
		got := readTable(t, f)
		require.Equal(t, table.MBR, got.Scheme)
		require.Equal(t, beside, got.BesideGPT)
		require.Equal(t, beside, len(got.Issues) > 0)
	}
}
