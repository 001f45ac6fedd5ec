package identify

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/volume"
)

func TestAPFSOfMkapfs(t *testing.T) {
	path := blank(t, 700<<20)
	disktest.Run(t, "mkapfs", "-L", "ap", path)
	v := probe(t, path)
	require.Equal(t, requireBlkid(t, path, v)["BLOCK_SIZE"], fmt.Sprint(v.BlockSize))
	require.Equal(t, int64(700<<20), v.Size)
	require.Empty(t, v.Issues)
}

func TestHFSOfHformat(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // hformat remembers its volumes there
	path := blank(t, 8<<20)
	disktest.Run(t, "hformat", "-l", "An HFS", path)
	v := probe(t, path)
	requireBlkid(t, path, v)
	require.Equal(t, int64(8<<20), v.Size)
	require.Zero(t, v.DataStart%512)
	require.Empty(t, v.Issues)
}

// hfsPlusVolume is the HFS+ that xorriso puts in its image, cut out by the Apple partition map.
func hfsPlusVolume(t testing.TB, label string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "iso")
	disktest.Run(t, "xorriso", "-as", "mkisofs", "-quiet", "-V", label, "-hfsplus", "-hfsplus-serial-no",
		"0123456789abcdef", "-o", path, folder(t))
	iso := disktest.ReadFile(t, path)
	require.Equal(t, "ER", string(iso[:2]))
	block := int(binary.BigEndian.Uint16(iso[2:]))
	for at := block; string(iso[at:at+2]) == "PM"; at += block { // Inside Macintosh: Devices, "Partition Map"
		if strings.HasPrefix(string(iso[at+48:]), "Apple_HFS\x00") {
			start, n := int(binary.BigEndian.Uint32(iso[at+8:]))*block, int(binary.BigEndian.Uint32(iso[at+12:]))*block
			return iso[start : start+n]
		}
	}
	t.Fatal("no HFS+ in the image of xorriso")
	return nil
}

func TestHFSPlusOfXorriso(t *testing.T) {
	b := hfsPlusVolume(t, "HFSPLUS")
	path := filepath.Join(t.TempDir(), "volume")
	require.NoError(t, os.WriteFile(path, b, 0o644))
	v := probe(t, path)
	requireBlkid(t, path, v)
	require.NotEmpty(t, v.UUID)
	require.Equal(t, int64(len(b)), v.Size)
	require.Empty(t, v.Issues)
}

// TestISO9660OfTools has isoinfo judge, since blkid calls a bridge by its UDF.
func TestISO9660OfTools(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		udf  bool
	}{
		"plain":      {[]string{"xorriso", "-as", "mkisofs", "-V", "PLAIN"}, false},
		"Joliet":     {[]string{"xorriso", "-as", "mkisofs", "-J", "-V", "a label in small letters"}, false},
		"UDF bridge": {[]string{"genisoimage", "-udf", "-J", "-V", "BRIDGE"}, true},
		"hybrid":     {[]string{"xorriso", "-as", "mkisofs", "-hfsplus", "-V", "HYBRID"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "iso")
			disktest.Run(t, tc.args[0], append(append([]string{}, tc.args[1:]...), "-quiet", "-o", path, folder(t))...)
			v := probe(t, path)
			require.Equal(t, volume.ISO9660, v.Kind)
			if !tc.udf {
				requireBlkid(t, path, v)
			}
			out := disktest.Output(t, "isoinfo", "-d", "-i", path)
			require.Contains(t, out, "Volume id: "+v.Label)
			require.Equal(t, number(t, out, `Logical block size is: (\d+)`), v.BlockSize)
			require.Equal(t, number(t, out, `Volume size is: (\d+)`)*2048, v.Size)
			require.Empty(t, v.Issues)
		})
	}
}

func TestExFATOfMkfs(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8") // in which the label is written
	for name, args := range map[string][]string{
		"label":             {"-L", "Bilder ü"},
		"clusters of 512":   {"-c", "512", "-L", "small"},
		"clusters of 1 MiB": {"-c", "1M", "-L", "large"},
		"no label":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 64<<20)
			disktest.Run(t, "mkfs.exfat", append(append([]string{}, args...), path)...)
			v := probe(t, path)
			requireBlkid(t, path, v)
			out := disktest.Output(t, "dump.exfat", path)
			require.Equal(t, number(t, out, `Volume Length\(sectors\):\s+(\d+)`)*512, v.Size)
			require.Equal(t, number(t, out, `Cluster Heap Offset \(sector offset\):\s+(\d+)`)*512, v.DataStart)
			require.Equal(t, number(t, out, `Cluster size:\s+(\d+)`), v.BlockSize)
			require.Empty(t, v.Issues)
		})
	}
}
