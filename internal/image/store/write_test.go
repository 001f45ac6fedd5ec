package store_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
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
