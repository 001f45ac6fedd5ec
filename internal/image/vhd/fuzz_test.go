package vhd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// source is a gate to a parent that has every name and identity.
func source(f *disktest.MemFile) *driver.Source {
	return &driver.Source{File: f, Parent: func(ref driver.ParentRef) (*driver.Image, error) {
		if len(ref.Names) == 0 {
			return nil, ondisk.In(ondisk.ErrReference, "no name")
		}
		return &driver.Image{Disk: disktest.ShortDisk([]byte("parent"), 1<<20)}, nil
	}}
}

func requireClass(t *testing.T, err error) {
	t.Helper()
	for _, class := range []error{ondisk.ErrFormat, ondisk.ErrLimit, ondisk.ErrUnsupported, ondisk.ErrReference} {
		if errors.Is(err, class) {
			return
		}
	}
	require.NoError(t, err)
}

// FuzzVHD reads anything as the front and the end of a VHD, with a hole of so many bytes between.
func FuzzVHD(f *testing.F) {
	add := func(v *vhdforge.File, n int64) {
		n = min(n, v.Footer)
		f.Add([]byte(v.Bytes[:n]), []byte(v.Bytes[v.Footer:]), uint32(v.Footer-n), true)
	}
	data := bytes.Repeat([]byte("sector of a disk"), 40<<10/16)
	add(vhdforge.NewFixed(data), 512)
	add(vhdforge.New(data, vhdforge.Layout{}), 4096)
	add(vhdforge.New(data, vhdforge.Layout{Block: 4096, Stored: func(s int64) bool { return s%3 > 0 }}), 32<<10)
	parent := &vhdforge.Parent{ID: 1, Relative: `.\base.vhd`, Absolute: `C:\base.vhd`, Name: "base.vhd"}
	add(vhdforge.New(data,
		vhdforge.Layout{Block: 8192, Parent: parent, Stored: func(s int64) bool { return s%5 > 0 }}), 32<<10)
	for _, c := range []struct {
		at int64
		v  uint64
	}{
		{vhdforge.DataOffset, 1 << 63},
		{vhdforge.CurrentSize, 1 << 62},
		{vhdforge.CurrentSize, 1 << 30},
		{512 + vhdforge.TableOffset, 1 << 20},
		{512 + vhdforge.MaxEntries, 1<<63 | 4096},
		{512 + vhdforge.MaxEntries, 3<<32 | 256<<20},
		{vhdforge.Type, 4 << 32},
	} {
		v := vhdforge.New(data, vhdforge.Layout{Block: 4096})
		v.BE64(c.at, c.v)
		add(v, 4096)
	}
	for _, name := range []string{"dfvfs/ext2.vhd.xz", "dfvfs/fat-differential.vhd.xz"} {
		for _, b := range disktest.Seeds(f, 32<<10, name) {
			f.Add(b, b[:512], uint32(2<<20), true)
		}
	}
	f.Fuzz(func(t *testing.T, head, tail []byte, hole uint32, sums bool) {
		head, tail = slices.Clone(head), slices.Clone(tail)
		if sums { // are right where they stand in a file of the usual layout: no mutation would find them
			for _, b := range [][]byte{head, tail} {
				if len(b) >= footerBytes {
					binary.BigEndian.PutUint32(b[atChecksum:], checksum(b[:footerBytes], atChecksum))
				}
			}
			if len(head) >= tablePlace {
				h := head[headerPlace:tablePlace]
				binary.BigEndian.PutUint32(h[atHeaderSum:], checksum(h, atHeaderSum))
			}
		}
		spent := disktest.Spent()
		end := int64(len(head)) + int64(hole%(64<<20))
		readFuzzed(t, disktest.NewMemPieces("disk.vhd", end+int64(len(tail)),
			disktest.MemPiece{Data: head}, disktest.MemPiece{At: end, Data: tail}))
		require.Less(t, spent(), disktest.Slowest)
	})
}

func readFuzzed(t *testing.T, file *disktest.MemFile) {
	t.Helper()
	if _, err := names(file); err != nil {
		requireClass(t, err)
	}
	img, err := open(source(file))
	if err != nil {
		requireClass(t, err)
		return
	}
	require.True(t, hasCookie(file))
	disktest.ReadSome(t, img.Disk, requireClass)
	if img.Check == nil {
		return
	}
	issues, err := img.Check()
	require.NoError(t, err)
	for _, i := range issues {
		if i.Effect == ondisk.Broken {
			require.ErrorIs(t, i.Err, ondisk.ErrFormat)
		}
	}
	if !disktest.ReadSound(t, img.Disk, issues, disktest.NoError) {
		return
	}

	// What was read can be the template of a copy.
	for _, sub := range Format.Subformats {
		f, err := os.CreateTemp(t.TempDir(), "copy")
		require.NoError(t, err)
		o := driver.Options{Subformat: sub, Template: img.Template, SectorSize: 512}
		target, err := create(f, 3<<20, o)
		require.NoError(t, err)
		require.NoError(t, target.Reserve(1<<20, 1<<20))
		_, err = target.WriteAt(bytes.Repeat([]byte("x"), 1<<20), 1<<20)
		require.NoError(t, err)
		require.NoError(t, target.Finish())
		b := disktest.ReadFile(t, f.Name())
		require.NoError(t, f.Close())
		again, err := open(source(disktest.NewMemFile("disk.vhd", b, int64(len(b)))))
		require.NoError(t, err)
		want := make([]byte, 3<<20)
		copy(want[1<<20:], strings.Repeat("x", 1<<20))
		got := make([]byte, len(want))
		require.NoError(t, ondisk.ReadFull(again.Disk, got, 0))
		require.True(t, bytes.Equal(want, got))
	}
}
