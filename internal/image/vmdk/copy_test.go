package vmdk_test

import (
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/store"
)

// A copy keeps the grain size of its source, down to the grains of 4 KiB that linked clones have.
func TestSparseCopiesKeepTheGrain(t *testing.T) {
	for _, grain := range []int64{8, 128, 2048} {
		data := imagetest.Noise(uint64(grain), 5*mib+3*sector)
		clear(data[2*mib : 4*mib+100])
		src := imagetest.Open(t,
			imagetest.Write(t, t.TempDir(), "src.vmdk", sparseImage{grain: grain, redundant: true}.forge(data)))
		path := filepath.Join(t.TempDir(), "copy.vmdk")
		imagetest.Copy(t, src, path, store.CreateOptions{})
		head := disktest.ReadFile(t, path)
		require.Equal(t, uint64(grain), binary.LittleEndian.Uint64(head[vmdkforge.GrainSize:]))
		img := imagetest.Open(t, path)
		disktest.CheckBytes(t, img.Disk, data)
		imagetest.NoDamage(t, img)
		disktest.Run(t, "qemu-img", "check", path)
		disktest.Run(t, "qemu-img", "compare", "-f", "vmdk", "-F", "vmdk", src.Path, path)
	}
}

// PRODUCT, promise 5: the same job gives the same bytes, on any number of processors.
func TestTheSameJobGivesTheSameBytes(t *testing.T) {
	data := imagetest.Noise(9, 6*mib)
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.vmdk", sparseImage{grain: 128}.forge(data)))
	kinds := slices.Clone(imagetest.Kinds)
	for i := range kinds {
		kinds[i].Seed = []byte("job")
	}
	imagetest.SameBytes(t, src, "copy.vmdk", kinds...)
}

// The descriptor of a copy is that of its source, but for what a copy must change.
func TestCopiesKeepTheDescriptor(t *testing.T) {
	dir := t.TempDir()
	data := imagetest.Noise(4, 64*sector)
	imagetest.Write(t, dir, "old-flat.vmdk", data)
	text := vmdkforge.Descriptor("monolithicFlat", `RW 64 FLAT "old-flat.vmdk" 0`) +
		"ddb.thinProvisioned = \"1\"\nddb.unheardOf = \"x\"\n"
	src := imagetest.Open(t, imagetest.Write(t, dir, "old.vmdk", []byte(text)))
	for _, sub := range []string{"", "monolithicSparse"} {
		path := filepath.Join(t.TempDir(), "new.vmdk")
		imagetest.Copy(t, src, path, store.CreateOptions{Subformat: sub})
		b := disktest.ReadFile(t, path)
		for _, keep := range []string{
			`ddb.adapterType = "ide"`, `ddb.geometry.heads = "16"`, `ddb.virtualHWVersion = "4"`, `ddb.unheardOf = "x"`,
		} {
			require.Contains(t, string(b), keep)
		}
		require.NotContains(t, string(b), "CID=4a5b6c7d")
		require.NotContains(t, string(b), "old-flat.vmdk")
		require.Equal(t, sub == "", strings.Contains(string(b), `RW 64 FLAT "new-flat.vmdk" 0`))
		disktest.CheckBytes(t, imagetest.Open(t, path).Disk, data)
	}
}

// A file that is not complete is no VMDK: a run that is killed leaves nothing that a reader would open.
func TestUnfinishedFileIsNoImage(t *testing.T) {
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", imagetest.Noise(5, mib)))
	b := imagetest.Unfinished(t, src, t.TempDir(), "x.vmdk", imagetest.Kinds[1])
	require.NotEmpty(t, b)
	require.NotEqual(t, "KDMV", string(b[:4]))
	require.NotContains(t, string(b), "# Disk DescriptorFile")
}
