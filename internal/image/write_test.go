package image_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
)

// filled starts a copy of src and writes all of its disk; it is not published.
func filled(t *testing.T, src *image.Image, path string, o store.CreateOptions, jobs int) *store.Output {
	t.Helper()
	out, err := store.Create(path, src.Disk.Size(), src, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, out.Discard()) })
	_, err = diskcopy.Run(t.Context(), src.Disk, out, diskcopy.Options{Jobs: jobs, Pack: out.Pack()})
	require.NoError(t, err)
	require.NoError(t, out.Finish())
	return out
}

func copied(t *testing.T, src *image.Image, path string, o store.CreateOptions) {
	t.Helper()
	require.NoError(t, filled(t, src, path, o, 4).Publish())
}

// kinds are all that is written.
var kinds = []store.CreateOptions{
	{Format: "raw"},
	{Format: "vmdk", Subformat: "monolithicSparse"},
	{Format: "vmdk", Subformat: "monolithicFlat"},
	{Format: "vmdk", Subformat: "vmfs"},
	{Format: "vmdk", Subformat: "twoGbMaxExtentSparse"},
	{Format: "vmdk", Subformat: "twoGbMaxExtentFlat"},
	{Format: "vmdk", Subformat: "streamOptimized"},
}

// What is written reads back, before and after it has its name, and qemu-img reads the same.
func TestWrittenImagesReadBack(t *testing.T) {
	for _, size := range []int{3*mib + 5*sector, 128 * kib, sector} {
		data := noise(uint64(size), size)
		if size > 2*mib {
			clear(data[mib : 2*mib+777])
		}
		src := opened(t, write(t, t.TempDir(), "src.img", data))
		for _, o := range kinds {
			t.Run(fmt.Sprintf("%s %s of %d bytes", o.Format, o.Subformat, size), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk.vmdk")
				out := filled(t, src, path, o, 4)
				again, err := out.Reopen()
				require.NoError(t, err)
				defer func() { require.NoError(t, again.Close()) }()
				disktest.CheckBytes(t, again.Disk, data)
				require.NoFileExists(t, path)

				require.NoError(t, out.Publish())
				img := opened(t, path)
				require.Equal(t, o.Format, img.Format)
				require.Equal(t, o.Subformat, img.Subformat)
				disktest.CheckBytes(t, img.Disk, data)
				if img.Check != nil {
					issues, err := img.Check()
					require.NoError(t, err)
					require.Empty(t, issues)
				}
				disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", o.Format, src.Path, path)
			})
		}
	}
}

// A copy keeps the grain size of its source, down to the grains of 4 KiB that linked clones have.
func TestSparseCopiesKeepTheGrain(t *testing.T) {
	for _, grain := range []int64{8, 128, 2048} {
		data := noise(uint64(grain), 5*mib+3*sector)
		clear(data[2*mib : 4*mib+100])
		src := opened(t, write(t, t.TempDir(), "src.vmdk", sparseImage{grain: grain, redundant: true}.forge(data)))
		path := filepath.Join(t.TempDir(), "copy.vmdk")
		copied(t, src, path, store.CreateOptions{})
		head, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, uint64(grain), binary.LittleEndian.Uint64(head[disktest.VMDKGrainSize:]))
		img := opened(t, path)
		disktest.CheckBytes(t, img.Disk, data)
		issues, err := img.Check()
		require.NoError(t, err)
		require.Empty(t, issues)
		disktest.Run(t, "qemu-img", "check", path)
		disktest.Run(t, "qemu-img", "compare", "-f", "vmdk", "-F", "vmdk", src.Path, path)
	}
}

// PRODUCT, promise 5: the same job gives the same bytes, on any number of processors.
func TestTheSameJobGivesTheSameBytes(t *testing.T) {
	data := noise(9, 6*mib)
	src := opened(t, write(t, t.TempDir(), "src.vmdk", sparseImage{grain: 128}.forge(data)))
	for _, o := range kinds {
		o.Seed = []byte("job")
		var first []byte
		for jobs := 1; jobs <= 8; jobs += 3 {
			dir := t.TempDir()
			require.NoError(t, filled(t, src, filepath.Join(dir, "copy.vmdk"), o, jobs).Publish())
			all := allFiles(t, dir)
			if first == nil {
				first = all
			}
			require.Equal(t, string(first), string(all), "%s %s with %d jobs", o.Format, o.Subformat, jobs)
		}
	}
}

// allFiles is names and contents of a folder.
func allFiles(t *testing.T, dir string) []byte {
	t.Helper()
	var all []byte
	for _, name := range names(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		all = append(append(all, name...), b...)
	}
	return all
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Zeros take no space: neither those of holes nor those that the source stores.
func TestZerosTakeNoSpace(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 64*mib)
	copy(data[40*mib:], "the only data")
	src := opened(t, write(t, dir, "src.img", data))
	for i, o := range kinds {
		path := filepath.Join(t.TempDir(), "copy.vmdk")
		copied(t, src, path, o)
		img := opened(t, path)
		stored := int64(0)
		for _, f := range img.Files() {
			stored += f.Allocated
		}
		require.Less(t, stored, int64(256*kib), "%s %s", kinds[i].Format, o.Subformat)
	}
}

// The descriptor of a copy is that of its source, but for what a copy must change.
func TestCopiesKeepTheDescriptor(t *testing.T) {
	dir := t.TempDir()
	data := noise(4, 64*sector)
	write(t, dir, "old-flat.vmdk", data)
	text := disktest.VMDKDescriptor("monolithicFlat", `RW 64 FLAT "old-flat.vmdk" 0`) + "ddb.thinProvisioned = \"1\"\nddb.unheardOf = \"x\"\n"
	src := opened(t, write(t, dir, "old.vmdk", []byte(text)))
	for _, sub := range []string{"", "monolithicSparse"} {
		path := filepath.Join(t.TempDir(), "new.vmdk")
		copied(t, src, path, store.CreateOptions{Subformat: sub})
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, keep := range []string{`ddb.adapterType = "ide"`, `ddb.geometry.heads = "16"`, `ddb.virtualHWVersion = "4"`, `ddb.unheardOf = "x"`} {
			require.Contains(t, string(b), keep)
		}
		require.NotContains(t, string(b), "CID=4a5b6c7d")
		require.NotContains(t, string(b), "old-flat.vmdk")
		require.Equal(t, sub == "", strings.Contains(string(b), `RW 64 FLAT "new-flat.vmdk" 0`))
		disktest.CheckBytes(t, opened(t, path).Disk, data)
	}
}

// A file that is not complete is no VMDK: a run that is killed leaves nothing that a reader would open.
func TestUnfinishedFileIsNoImage(t *testing.T) {
	src := opened(t, write(t, t.TempDir(), "src.img", noise(5, mib)))
	dir := t.TempDir()
	out, err := store.Create(filepath.Join(dir, "x.vmdk"), src.Disk.Size(), src, kinds[1])
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Discard()) }()
	_, err = diskcopy.Run(t.Context(), src.Disk, out, diskcopy.Options{})
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(dir, ".x.vmdk.partial"))
	require.NoError(t, err)
	require.NotEmpty(t, b)
	require.NotEqual(t, "KDMV", string(b[:4]))
	require.NotContains(t, string(b), "# Disk DescriptorFile")
}
