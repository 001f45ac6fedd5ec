package vdi

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// Expected sizes and offsets are those of VDICore.h.
func TestStructSize(t *testing.T) {
	require.Equal(t, 0x48+400, atMagic+binary.Size(header{}))
	b := ondisk.Encode(binary.LittleEndian, &header{
		Type: 1, Table: 2, Data: 3, Geometry: geometry{SectorBytes: 4}, Size: 5, Block: 6, Extra: 7, Blocks: 8,
		Allocated: 9, Created: ondisk.GUID{10}, Parent: ondisk.GUID{11}, Logical: geometry{Heads: 12},
	})
	for at, want := range map[int]byte{
		0x4c: 1, 0x154: 2, 0x158: 3, 0x168: 4, 0x170: 5, 0x178: 6, 0x17c: 7, 0x180: 8, 0x184: 9, 0x188: 10, 0x1a8: 11,
		0x1cc: 12,
	} {
		require.Equal(t, want, b[at-atMagic], "%#x", at)
	}
}

// forged makes a VDI of three blocks of 4 KiB, with the first and the third stored in reverse order.
func forged() forge.Bytes {
	f := make(forge.Bytes, 0x400+2*4096)
	f.U32(0x40, 0xbeda107f)
	f.U32(0x44, 0x10001)
	f.U32(0x48, 400)
	f.U32(0x4c, 1)
	f.Text(0x54, "a comment")
	f.U32(0x154, 0x200)
	f.U32(0x158, 0x400)
	f.U32(0x168, 512)
	f.U64(0x170, 3*4096-512)
	f.U32(0x178, 4096)
	f.U32(0x180, 3)
	f.U32(0x184, 2)
	f.U32(0x1cc, 16) // heads and sectors of the second geometry
	f.U32(0x1c8, 5)
	f.U32(0x1d0, 63)
	f.U32(0x200, 1)
	f.U32(0x204, 0xffffffff)
	f.U32(0x208, 0)
	f.Text(0x400, "third")
	f.Text(0x400+4096, "first")
	return f
}

func openBytes(b []byte) (*driver.Image, error) {
	return open(&driver.Source{File: disktest.NewMemFile("disk.vdi", b, int64(len(b)))})
}

// TestForged reads a disk with blocks in any order, which ends inside its last block.
func TestForged(t *testing.T) {
	f := forged()
	img, err := openBytes(f)
	require.NoError(t, err)
	want := make([]byte, 3*4096-512)
	copy(want, "first")
	copy(want[2*4096:], "third")
	disktest.CheckBytes(t, img.Disk, want)
	require.Equal(t, []int{16, 63}, []int{img.Heads, img.Sectors})
	require.Contains(t, img.Details, driver.Detail{Name: "comment", Value: `"a comment"`})
	issues, err := img.Check()
	require.NoError(t, err)
	require.Empty(t, issues)

	for count, want := range map[uint32]string{
		3: "1 block of the file (4 KiB) not used by the disk",
		1: "the header counts 1 block, but the table has 2: the next write of VirtualBox would overwrite " +
			"a block in use",
	} {
		f.U32(0x184, count)
		img, err = openBytes(f)
		require.NoError(t, err)
		issues, err = img.Check()
		require.NoError(t, err)
		require.Len(t, issues, 1)
		require.Equal(t, want, issues[0].Text)
	}

	// VirtualBox and QEMU treat a partial last sector as a whole one.
	f.U64(0x170, 3*4096-1000)
	img, err = openBytes(f)
	require.NoError(t, err)
	require.Equal(t, int64(3*4096-512), img.Disk.Size())
}

// The error of an invalid field names it; an image of another program has a remedy.
func TestHostile(t *testing.T) {
	type change func(f forge.Bytes)
	u8 := func(at int64, v uint8) change { return func(f forge.Bytes) { f.U8(at, v) } }
	u32 := func(at int64, v uint32) change { return func(f forge.Bytes) { f.U32(at, v) } }
	u64 := func(at int64, v uint64) change { return func(f forge.Bytes) { f.U64(at, v) } }
	format, unsupported := ondisk.ErrFormat, ondisk.ErrUnsupported
	for name, c := range map[string]struct {
		change change
		class  error
		says   string
	}{
		"version":              {u32(0x44, 1), unsupported, "version 0.1, want 1.1"},
		"header size":          {u32(0x48, 100), format, "header size 100, want at least 384"},
		"undo":                 {u32(0x4c, 3), unsupported, "type 3 with parent 00000000-"},
		"snapshot":             {u32(0x4c, 4), unsupported, "VBoxManage clonemedium"},
		"parent":               {u8(0x1a8, 1), unsupported, "parent 00000001-"},
		"parent, modified":     {u8(0x1b8, 1), unsupported, "does not name"},
		"sectors of 4096":      {u32(0x168, 4096), format, "sector size 4096, want 512"},
		"extra":                {u32(0x17c, 512), unsupported, "512 bytes in front"},
		"no block size":        {u32(0x178, 0), format, "block size 0, want a power"},
		"block of 256":         {u32(0x178, 256), format, "block size 256, want"},
		"block of 2 GiB":       {u32(0x178, 1<<31), format, "block size 2147483648"},
		"block of 5000":        {u32(0x178, 5000), format, "block size 5000"},
		"more blocks in use":   {u32(0x184, 4), format, "blocks allocated 4, want at most 3"},
		"no blocks":            {u32(0x180, 0), format, "want at most 0, the number of blocks"},
		"too many blocks":      {u32(0x180, 1<<32-1), format, "number of blocks 4294967295"},
		"table past the end":   {u32(0x180, 9000), format, "the file is truncated"},
		"no size":              {u64(0x170, 0), format, "disk size 0"},
		"size past the table":  {u64(0x170, 3*4096+1), format, "want 1 to 12288"},
		"size past 63 bits":    {u64(0x170, 1<<63), format, "disk size 9223372036854775808"},
		"table in the header":  {u32(0x154, 0x1d7), format, "offset of the table 471"},
		"data in the table":    {u32(0x158, 0x20b), format, "offset of the data 523, want at least 524"},
		"table at the 4 GiB":   {u32(0x154, 1<<32-1), format, "from byte 4294967295 on"},
		"a block past the end": {u32(0x200, 2), format, "entry 2, want a block of 4096 bytes"},
		"one far past the end": {u32(0x200, 0xfffffffd), format, "vdi block table at 0x200"},
	} {
		f := forged()
		c.change(f)
		img, err := openBytes(f)
		if err == nil {
			issues, checked := img.Check()
			require.NoError(t, checked, name)
			require.Len(t, issues, 1, name)
			require.Equal(t, "vdi-tables", issues[0].Code, name)
			require.ErrorContains(t, issues[0].Err, c.says, name)
			_, err = img.Disk.ReadAt(make([]byte, 512), 0)
		}
		require.ErrorIs(t, err, c.class, name)
		require.ErrorContains(t, err, c.says, name)
	}
	_, err := openBytes(forged()[:300])
	require.ErrorContains(t, err, "vdi header")
	f := forged()
	f.U32(0x208, 1) // as the first
	img, err := openBytes(f)
	require.NoError(t, err)
	issues, err := img.Check()
	require.NoError(t, err)
	require.ErrorContains(t, issues[0].Err, "block 1 of the file is used twice")
	require.ErrorIs(t, issues[0].Err, ondisk.ErrFormat)
}

// Data in the last addressable block and discarded blocks after it are not adjacent.
func TestLastBlocks(t *testing.T) {
	f := forged()
	f.U32(0x178, 512)
	f.U64(0x170, 3*512)
	for i, entry := range []uint32{0xfffffffd, 0xfffffffe, 0xffffffff} {
		f.U32(0x200+4*int64(i), entry)
	}
	last := int64(0x400) + 0xfffffffd*512
	file := disktest.NewMemPieces("disk.vdi", last+3*512, disktest.MemPiece{Data: f[:0x400]},
		disktest.MemPiece{At: last, Data: bytes.Repeat([]byte("x"), 3*512)})
	img, err := open(&driver.Source{File: file})
	require.NoError(t, err)
	disktest.CheckBytes(t, img.Disk, append(bytes.Repeat([]byte("x"), 512), make([]byte, 2*512)...))
}

// A snapshot has the UUID of what it completes.
func TestNames(t *testing.T) {
	of := func(b []byte) driver.Names {
		n, err := names(disktest.NewMemFile("disk.vdi", b, int64(len(b))))
		require.NoError(t, err)
		return n
	}
	f := forged()
	require.Equal(t, driver.Names{}, of(f))
	f.U8(0x1a8, 7)
	require.Equal(t, driver.Names{Lineage: "00000007-0000-0000-0000-000000000000"}, of(f))
	require.Equal(t, driver.Names{Broken: true}, of(f[:300]))
	require.Equal(t, driver.Names{}, of([]byte("text")))
}

// FuzzVDI reads anything as the front of a file, with a hole after it.
func FuzzVDI(f *testing.F) {
	f.Add([]byte(forged()), uint32(0))
	made := filepath.Join(f.TempDir(), "made.vdi")
	disktest.Run(f, "qemu-img", "create", "-q", "-f", "vdi", made, "9M")
	f.Add(disktest.ReadFile(f, made), uint32(1<<20))
	f.Fuzz(func(t *testing.T, b []byte, hole uint32) {
		spent := disktest.Spent()
		file := disktest.NewMemFile("disk.vdi", b, int64(len(b))+int64(hole%(64<<20)))
		img, err := open(&driver.Source{File: file})
		if err != nil {
			disktest.RequireClass(t, err)
			return
		}
		disktest.ReadSome(t, img.Disk, disktest.RequireClass)
		issues, err := img.Check()
		require.NoError(t, err)
		disktest.ReadSound(t, img.Disk, issues, disktest.NoError)
		require.Less(t, spent(), disktest.Slowest)
	})
}
