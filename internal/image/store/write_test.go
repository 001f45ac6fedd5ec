package store_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/units"
)

// What is written reads back, before and after it has its name, and qemu-img reads the same.
func TestWrittenImagesReadBack(t *testing.T) {
	for _, size := range []int{3*mib + 5*sector, 128 * kib, sector} {
		data := imagetest.Noise(uint64(size), size)
		if size > 2*mib {
			clear(data[mib : 2*mib+777])
		}
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
		for _, o := range imagetest.Kinds {
			t.Run(fmt.Sprintf("%s %s of %d bytes", o.Format, o.Subformat, size), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk.vmdk")
				out := imagetest.Fill(t, src, path, o, 4)
				img := imagetest.ReadsBack(t, out, path, data)
				require.Equal(t, o.Format, img.Format)
				require.Equal(t, o.Subformat, img.Subformat)
				if img.Check != nil {
					imagetest.NoDamage(t, img)
				}
				disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", o.Format, src.Path, path)
			})
		}
	}
}

// Zeros take no space: neither those of holes nor those that the source stores.
func TestZerosTakeNoSpace(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 64*mib)
	copy(data[40*mib:], "the only data")
	src := imagetest.Open(t, imagetest.Write(t, dir, "src.img", data))
	for i, o := range imagetest.Kinds {
		path := filepath.Join(t.TempDir(), "copy.vmdk")
		imagetest.Copy(t, src, path, o)
		img := imagetest.Open(t, path)
		stored := int64(0)
		for _, f := range img.Files() {
			stored += f.Allocated
		}
		require.Less(t, stored, int64(256*kib), "%s %s", imagetest.Kinds[i].Format, o.Subformat)
	}
}

// The digests of an output are those of its files, the named one first. What is not wanted any more has none.
func TestSumsOfAnOutput(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	img, err := image.Open(imagetest.Write(t, dir, "src.img", make([]byte, units.MiB)), image.Options{})
	require.NoError(t, err)
	defer img.Close()
	path := filepath.Join(dir, "out.vmdk")
	out, err := store.Create(path, img.Disk.Size(), img, flat)
	require.NoError(t, err)
	_, err = out.WriteAt([]byte("some data"), 5*units.SectorSize)
	require.NoError(t, err)
	require.NoError(t, out.Finish())
	var total, read int64
	sums, err := out.Sums(t.Context(), func(n int64) { total += n }, func(n int64) { read += n })
	require.NoError(t, err)
	require.Equal(t, total, read)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	quiet := func(int64) {}
	_, err = out.Sums(ended, quiet, quiet)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, []string{sums[0].File, sums[1].File}, out.Files())
	require.NoError(t, out.Publish())
	require.NoError(t, out.Discard())
	for _, s := range sums {
		b := disktest.ReadFile(t, filepath.Join(dir, s.File))
		require.Equal(t, sha256.Sum256(b), s.SHA256, s.File)
	}
}

// crash is a folder as a killed run left it.
type crash struct {
	t        *testing.T
	dir      string
	old, new *image.Image
}

func (c crash) link(from, to string) {
	require.NoError(c.t, os.Link(filepath.Join(c.dir, from), filepath.Join(c.dir, to)))
}

func (c crash) rename(from, to string) {
	require.NoError(c.t, os.Rename(filepath.Join(c.dir, from), filepath.Join(c.dir, to)))
}

func (c crash) copy(src *image.Image, name string, o store.CreateOptions) {
	imagetest.Copy(c.t, src, filepath.Join(c.dir, name), o)
}

// States of a folder after a kill -9 between two steps of Publish. The next run cleans up and succeeds.
func TestCrashesBetweenTheStepsOfPublish(t *testing.T) {
	old, oldData := source(t, 1)
	src, data := source(t, 2)
	for _, tc := range []struct {
		name   string
		state  func(c crash)
		before []byte // what DEST shows then; nil: absent
		o      store.CreateOptions
		want   []string
	}{
		{"nothing linked, dest absent", func(c crash) {
			imagetest.Write(c.t, c.dir, ".out.vmdk.partial", []byte("half a descriptor"))
			imagetest.Write(c.t, c.dir, ".out-flat.vmdk.partial", make([]byte, mib))
		}, nil, flat, []string{"out-flat.vmdk", "out.vmdk"}},
		{"second file linked, dest absent", func(c crash) {
			imagetest.Write(c.t, c.dir, ".out.vmdk.partial",
				[]byte(vmdkforge.Descriptor("monolithicFlat", `RW 1 FLAT "out-flat.vmdk" 0`)))
			imagetest.Write(c.t, c.dir, ".out-flat.vmdk.partial", make([]byte, 512))
			c.link(".out-flat.vmdk.partial", "out-flat.vmdk")
		}, nil, flat, []string{"out-flat.vmdk", "out.vmdk"}},
		{"dest named, the second link still there", func(c crash) {
			c.copy(c.old, "out.vmdk", flat)
			c.link("out-flat.vmdk", ".out-flat.vmdk.partial")
		}, oldData, forced(flat), []string{"out-1-flat.vmdk", "out.vmdk"}},
		{"force: new second file linked, dest still the old", func(c crash) {
			c.copy(c.old, "out.vmdk", flat)
			imagetest.Write(c.t, c.dir, ".out.vmdk.partial", nil)
			imagetest.Write(c.t, c.dir, ".out-1-flat.vmdk.partial", make([]byte, 512))
			c.link(".out-1-flat.vmdk.partial", "out-1-flat.vmdk")
		}, oldData, forced(flat), []string{"out-1-flat.vmdk", "out.vmdk"}},
		{"force: dest exchanged, the old second file still there", func(c crash) {
			// Two runs make the state: the first one's flat file is kept, marked as the run marks it.
			c.copy(c.new, "out.vmdk", flat)
			c.link("out-flat.vmdk", "kept")
			c.copy(c.old, "out.vmdk", forced(flat))
			c.rename("kept", "out-flat.vmdk")
			c.link("out-flat.vmdk", ".out-flat.vmdk.replaced")
			c.link("out-1-flat.vmdk", ".out-1-flat.vmdk.partial")
		}, oldData, forced(flat), []string{"out-flat.vmdk", "out.vmdk"}},
		{"force: a sparse dest exchanged, the old second file still there", func(c crash) {
			c.copy(c.new, "out.vmdk", flat)
			c.copy(c.old, "new.vmdk", imagetest.Kinds[1])
			c.rename("new.vmdk", "out.vmdk")
			c.link("out-flat.vmdk", ".out-flat.vmdk.replaced")
		}, oldData, forced(imagetest.Kinds[1]), []string{"out.vmdk"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "out.vmdk")
			tc.state(crash{t, dir, old, src})
			if tc.before == nil {
				require.NoFileExists(t, path)
			} else {
				imagetest.Shows(t, path, tc.before)
			}
			out := imagetest.Fill(t, src, path, tc.o, 2)
			if tc.before != nil {
				imagetest.Shows(t, path, tc.before)
			}
			require.NoError(t, out.Publish())
			imagetest.Shows(t, path, data)
			require.Equal(t, tc.want, disktest.Names(t, dir))
		})
	}
}
