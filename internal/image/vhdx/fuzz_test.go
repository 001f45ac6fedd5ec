package vhdx

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// fuzzed is an image with fuzzed metadata; checksums are updated, since no mutation would hit them.
type fuzzed struct{ header, regions, meta, bat, log []byte }

// file puts the parts where a forged image has them.
func (z fuzzed) file() *disktest.MemFile {
	var all []disktest.MemPiece
	put := func(at int64, b []byte, most int) {
		all = append(all, disktest.MemPiece{At: at, Data: b[:min(len(b), most)]})
	}
	sealed := func(b []byte, n int) []byte {
		out := make([]byte, n)
		copy(out, b)
		seal(out)
		return out
	}
	// In the log, the checksums of complete entries are updated.
	log := make([]byte, (len(z.log)+sectorSize-1)/sectorSize*sectorSize)
	copy(log, z.log)
	for at := 0; at+sectorSize <= len(log); at += sectorSize {
		n := int(binary.LittleEndian.Uint32(log[at+8:]))
		if string(log[at:at+4]) == "loge" && n >= sectorSize && n <= len(log)-at {
			seal(log[at : at+n])
		}
	}
	put(0, []byte(signature), 8)
	put(atHeader1, sealed(z.header, 4096), 4096)
	put(atHeader2, sealed(z.header, 4096), 4096)
	put(atRegions1, sealed(z.regions, regionTableSize), regionTableSize)
	put(atRegions2, sealed(z.regions, regionTableSize), regionTableSize)
	put(mib, log, mib)
	put(2*mib, z.meta, mib)
	put(3*mib, z.bat, mib)
	put(4*mib, bytes.Repeat([]byte("block of a disk "), mib/16), mib)
	return disktest.NewMemPieces("disk.vhdx", 16*mib, all...)
}

// FuzzVHDX reads anything as the structures of a VHDX whose checksums are right.
func FuzzVHDX(f *testing.F) {
	add := func(v *vhdxforge.File) {
		used := func(at, most int64) []byte {
			return bytes.TrimRight(v.Bytes[at:min(at+most, int64(len(v.Bytes)))], "\x00")
		}
		z := fuzzed{
			header:  v.Bytes[vhdxforge.Header2 : vhdxforge.Header2+80],
			regions: used(vhdxforge.Regions1, regionTableSize),
			meta:    used(v.Metadata, mib), bat: used(v.BAT, mib), log: used(v.Log, mib),
		}
		f.Add(z.header, z.regions, z.meta, z.bat, z.log)
	}
	data := bytes.Repeat([]byte("sector of a disk"), 3*mib/16)
	add(vhdxforge.New(vhdxforge.Layout{Size: 3 * mib}).Fill(data))
	add(vhdxforge.New(vhdxforge.Layout{Size: 3 * mib, Logical: 4096, Fixed: true}).Fill(data))
	child := vhdxforge.New(vhdxforge.Layout{
		Size:   3 * mib,
		Parent: map[string]string{"parent_linkage": "{" + vhdxforge.DiskIDGUID + "}", "relative_path": `.\base.vhdx`},
	})
	child.AddBlock(1, vhdxforge.Partial, data[:mib])
	child.AddBitmap(0, func(s int64) bool { return s%3 == 0 })
	add(child)
	dirty := vhdxforge.New(vhdxforge.Layout{Size: 3 * mib}).Fill(data)
	dirty.Dirty(0,
		vhdxforge.Entry{
			Sequence: 1,
			Changes:  []vhdxforge.Change{{Off: dirty.Blocks, Zero: 8192}, dirty.Sector(dirty.Entry(2), 0)},
		},
		vhdxforge.Entry{Sequence: 2, Changes: []vhdxforge.Change{{Off: dirty.Blocks + 4096, Data: data[:4096]}}},
	)
	add(dirty)
	f.Fuzz(func(t *testing.T, header, regions, meta, bat, log []byte) {
		spent := disktest.Spent()
		z := fuzzed{header, regions, meta, bat, log}
		parent := disk.New(2*mib, 512, func(off int64) (disk.Run, error) { return disk.Run{Len: 2*mib - off}, nil })
		img, err := open(&driver.Source{
			File:   z.file(),
			Parent: func(driver.ParentRef) (*driver.Image, error) { return &driver.Image{Disk: parent}, nil },
		})
		if err != nil {
			disktest.RequireClass(t, err)
		} else {
			disktest.ReadSome(t, img.Disk, disktest.RequireClass)
			issues, err := img.Check()
			require.NoError(t, err)
			disktest.ReadSound(t, img.Disk, issues, disktest.NoError)
		}
		_, err = names(z.file())
		require.NoError(t, err, "a neighbour that is damaged is no reason to stop")
		require.Less(t, spent(), disktest.Slowest)
	})
}

// Expected sizes and offsets are those of [MS-VHDX].
func TestStructSizes(t *testing.T) {
	for _, s := range []struct {
		name string
		v    any
		want int
	}{
		{"2.2.1 file identifier", fileIdentifier{}, 520},
		{"2.2.2 header", fileHeader{}, 4096},
		{"2.2.3.1 region table header", regionHeader{}, 16},
		{"2.2.3.2 region table entry", regionEntry{}, 32},
		{"2.3.1.1 log entry header", entryHeader{}, 64},
		{"2.3.1.3 data descriptor", anyDescriptor{}, 32},
		{"2.6.1.1 metadata table header", metadataHeader{}, 32},
		{"2.6.1.2 metadata table entry", metadataEntry{}, 32},
		{"2.6.2.6.1 parent locator header", locatorHeader{}, 20},
		{"2.6.2.6.2 parent locator entry", locatorEntry{}, 12},
	} {
		assert.Equal(t, s.want, binary.Size(s.v), s.name)
	}
	b, err := binary.Append(nil, binary.LittleEndian,
		fileHeader{SequenceNumber: 1, LogGUID: ondisk.GUID{2}, LogVersion: 3, Version: 4, LogLength: 5, LogOffset: 6})
	require.NoError(t, err)
	for at, want := range map[int]byte{
		atSequence: 1, 48: 2, atLogVersion: 3, atVersion: 4, atLogLength: 5,
		atLogOffset: 6,
	} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}

// A disk has whole sectors, one at least, and 64 TiB at most. No file is written for another.
func TestSizesOfDisks(t *testing.T) {
	for size, want := range map[int64]error{
		0: ondisk.ErrUnsupported, -512: ondisk.ErrUnsupported, 513: ondisk.ErrUnsupported,
		maxDisk + 512: ondisk.ErrLimit,
	} {
		_, err := create(nil, size, driver.Options{})
		require.ErrorIs(t, err, want, "%d", size)
	}
	_, err := create(nil, mib+512, driver.Options{SectorSize: 4096})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "want a multiple of its sectors of 4096 bytes")
}
