package identify

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/volume"
)

// What has a magic number and nothing else that is of use here is called by the name that blkid gives it.
func TestKindsByMagic(t *testing.T) {
	t.Parallel()
	for name, pieces := range map[string]map[int64]string{
		"ocfs2":          {4096: "OCFSV2"},
		"gfs2":           {65536: "\x01\x16\x19\x70", 65536 + 24: "\x00\x00\x07\x09\x00\x00\x07\x6c"},
		"oracleasm":      {32: "ORCLDISK"},
		"ceph_bluestore": {0: "bluestore block device\n"},
		"erofs":          {1024: "\xe2\xe1\xf5\xe0", 1024 + 12: "\x0c"},
		"vdo":            {0: "dmvdo001"},
		"nss":            {4096: "SPB5"},
		"reiser4":        {65536: "ReIsEr4"},
		"vxfs":           {1024: "\xf5\xfc\x01\xa5"},
		"sysv":           {1016: "\x20\x7e\x18\xfd"},
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 64<<20)
			for off, b := range pieces {
				disktest.WriteAt(t, path, off, []byte(b))
			}
			v := probe(t, path)
			tags := blkidTags(t, path)
			require.Equal(t, name, string(v.Kind))
			require.Equal(t, name, tags["TYPE"])
			require.Empty(t, v.Issues)
		})
	}
}

// The formatters themselves, and blkid, for those whose numbers are short.
func TestKindsByMagicOfTools(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(t *testing.T, path string){
		"bfs":    func(t *testing.T, path string) { t.Helper(); disktest.Run(t, "mkfs.bfs", path) },
		"cramfs": func(t *testing.T, path string) { t.Helper(); disktest.Run(t, "mkfs.cramfs", folder(t), path) },
		"squashfs": func(t *testing.T, path string) {
			t.Helper()
			disktest.Run(t, "mksquashfs", folder(t), path, "-noappend")
		},
		"udf": func(t *testing.T, path string) {
			t.Helper()
			disktest.Run(t, "genisoimage", "-quiet", "-udf", "-o", path, folder(t))
			// no bridge, which is an ISO 9660
			disktest.WriteAt(t, path, 32769, []byte("BEA01"))
			disktest.WriteAt(t, path, 34817, []byte("NSR02"))
			disktest.WriteAt(t, path, 36865, []byte("TEA01"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 4<<20)
			make(t, path)
			v := probe(t, path)
			require.Equal(t, name, string(v.Kind))
			require.Equal(t, name, blkidTags(t, path)["TYPE"])
			require.Empty(t, v.Issues)
		})
	}
}

// A disk that ends within what a number needs is no volume, and no error.
func TestMagicAtTheEnd(t *testing.T) {
	t.Parallel()
	require.Len(t, magics(), 25)
	for _, m := range magics() {
		require.NotEmpty(t, m.Marks, m.Kind)
		for _, mark := range m.Marks {
			number, err := hex.DecodeString(mark.Hex)
			require.NoError(t, err)
			require.NotEmpty(t, mark.At, m.Kind)
			for _, at := range mark.At {
				b := append(bytes.Repeat([]byte{0}, int(at)), number...)
				for _, end := range []int{len(b) - 1, len(b)} {
					v, err := byMagic(disktest.Memory(b[:end]))
					require.NoError(t, err)
					if end < len(b) {
						require.Equal(t, volume.Unknown, v.Kind, m.Kind)
					} else {
						require.Equal(t, m.Kind, v.Kind)
					}
				}
			}
		}
	}
}
