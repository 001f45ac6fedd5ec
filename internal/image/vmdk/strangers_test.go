package vmdk_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
)

func TestHostileVMDK(t *testing.T) { hostile.Check(t, hostile.VMDK(), imagetest.Issues) }

// The hostile images differ from a good one in nothing but what they change.
func TestForgedSparseIsValid(t *testing.T) {
	large := make([]byte, 33*mib) // two grain tables
	copy(large, hostile.Disk())
	copy(large[32*mib:], "in the second table")
	for _, disk := range [][]byte{hostile.Disk(), large} {
		path := filepath.Join(t.TempDir(), "disk.vmdk")
		vmdkforge.NewSparse(disk).Write(t, path)
		require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "vmdk", path), "No errors were found")
		agrees(t, path, disk)
	}
}

// What looks odd in a descriptor and is legal is read. qemu-img 7.2 skips some lines, so that what follows is shifted.
func TestOddDescriptors(t *testing.T) {
	disk := []byte(hostile.Disk())
	const line = `RW 4096 FLAT "x-flat.vmdk" 0`
	good := vmdkforge.Descriptor("monolithicFlat", line)
	room := 1<<20 - len(good)
	filler := strings.Repeat("#", room%1024) + strings.Repeat("\n#"+strings.Repeat("x", 1022), room/1024)
	for name, c := range map[string]struct {
		text string
		want []byte
	}{
		"lower case":               {strings.Replace(good, "RW 4096 FLAT", "rw 4096 flat", 1), disk},
		"byte order mark of UTF-8": {"\xef\xbb\xbf" + good, disk},
		"lines that end with CRLF": {strings.ReplaceAll(good, "\n", "\r\n"), disk},
		"another encoding":         {strings.Replace(good, "UTF-8", "windows-1252", 1), disk},
		"a line of 4096 bytes":     {good + "#" + strings.Repeat("x", 4095), disk},
		"a text of 1 MiB":          {good + filler, disk},
		"4096 extents, most of zeros": {
			strings.Replace(good, line, strings.Repeat("RW 1 ZERO\n", 4095)+line, 1),
			append(make([]byte, 4095*sector), disk...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			imagetest.Write(t, dir, "x-flat.vmdk", disk)
			img := imagetest.Open(t, imagetest.Write(t, dir, "disk.vmdk", []byte(c.text)))
			got := disktest.Head(t, img.Disk, img.Disk.Size())
			require.True(t, bytes.Equal(c.want, got))
		})
	}
}

// An extent of ESX or ESXi that is cut anywhere is not read as if it were whole.
func TestTruncatedExtents(t *testing.T) {
	cowd, se := vmdkforge.NewCOWD(hostile.Disk(), 1, nil), vmdkforge.NewSESparse(hostile.Disk(), 0, nil)
	for _, c := range []struct {
		kind, word string
		file       []byte
		borders    []int64
	}{
		{"vmfsSparse", "VMFSSPARSE", cowd.Bytes, []int64{
			4, 512, 2048, cowd.GD, cowd.Tables[0], cowd.Tables[0] + vmdkforge.COWDTable, int64(len(cowd.Bytes)) - 8192,
		}},
		{"seSparse", "SESPARSE", se.Bytes, []int64{
			8, 512, se.Volatile, se.Volatile + 512, se.GD, se.GT, se.Grains, se.Grains + 4096,
			int64(len(se.Bytes)) - 8192,
		}},
	} {
		imagetest.CutShort(t, c.file, c.borders, func(dir string, cut []byte) string {
			imagetest.Write(t, dir, "x.vmdk", cut)
			return imagetest.Write(t, dir, "disk.vmdk",
				[]byte(vmdkforge.Descriptor(c.kind, fmt.Sprintf(`RW %d %s "x.vmdk"`, hostile.Sectors, c.word))))
		})
	}
}
