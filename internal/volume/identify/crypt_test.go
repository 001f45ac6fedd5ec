package identify

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/volume"
)

// luksFile formats a file with cryptsetup. The least work for a key is enough: it is not derived again.
func luksFile(t *testing.T, kind string, args ...string) string {
	t.Helper()
	path, key := blank(t, 32<<20), filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("a pass phrase"), 0o600))
	args = append([]string{
		"luksFormat", "--batch-mode", "--type", kind, "--pbkdf", "pbkdf2", "--pbkdf-force-iterations",
		"1000",
	}, args...)
	disktest.Run(t, "cryptsetup", append(args, path, key)...)
	return path
}

func TestLUKS(t *testing.T) {
	for _, tc := range []struct {
		name, kind string
		args       []string
	}{
		{"LUKS1", "luks1", nil},
		{"LUKS1, data off 64 KiB", "luks1", []string{"--align-payload", "8"}},
		{"LUKS2", "luks2", []string{"--label", "a label", "--subsystem", "mine"}},
		{"LUKS2, small header, small sectors", "luks2", []string{"--luks2-metadata-size", "32k", "--luks2-keyslots-size", "1m", "--sector-size", "512", "--cipher", "aes-cbc-essiv:sha256"}},
		{"LUKS2, data off 64 KiB", "luks2", []string{"--offset", "32776"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := luksFile(t, tc.kind, tc.args...)
			v, found := probe(t, path), blkid(t, path)
			says := columns(disktest.Output(t, "cryptsetup", "luksDump", path))
			require.Equal(t, volume.LUKS, v.Kind)
			require.Equal(t, found["UUID"], v.UUID)
			require.Equal(t, found["LABEL"], v.Label)
			require.Equal(t, found["VERSION"], detail(v, "version"))
			require.Equal(t, says["UUID"], v.UUID)
			if tc.kind == "luks1" {
				require.Equal(t, says["Payload offset"], strconv.FormatInt(v.DataStart/512, 10))
			} else {
				require.Equal(t, says["offset"], strconv.FormatInt(v.DataStart, 10)+" [bytes]")
			}
			require.Empty(t, v.Issues)
		})
	}
}

// A header of its own says that the data are on another device.
func TestDetachedLUKSHeader(t *testing.T) {
	for _, kind := range []string{"luks1", "luks2"} {
		header := blank(t, 16<<20)
		luksFile(t, kind, "--header", header)
		v := probe(t, header)
		require.Zero(t, v.DataStart)
		require.Contains(t, detail(v, "data"), "detached")
	}
}

// A LUKS2 whose first header is broken is not believed, although cryptsetup would take the second.
func TestBrokenLUKS2(t *testing.T) {
	f, err := os.ReadFile(luksFile(t, "luks2"))
	require.NoError(t, err)
	f[4096+5] ^= 1
	v := probeBytes(t, f)
	require.Equal(t, volume.LUKS, v.Kind)
	require.Equal(t, "volume", v.Issues[0].Code)
	require.Contains(t, v.Issues[0].Text, "luks2 header at 0x1c0: checksum")
}

// libblkid knows BitLocker, but says neither label nor cipher; those are as the test put them by libbde's
// documentation.
func TestBitLocker(t *testing.T) {
	f := make(forge.Bytes, 4<<20)
	poolforge.PutBitLocker(f, "PC C: 01/02/2020")
	found := blkid(t, written(t, f))
	v := probeBytes(t, f)
	require.Equal(t, "BitLocker", found["TYPE"])
	require.Equal(t, "2", found["VERSION"])
	require.Equal(t, "Windows 7 or later", detail(v, "version"))
	require.Equal(t, "PC C: 01/02/2020", v.Label)
	require.Equal(t, "AES-XTS 128", detail(v, "encryption"))
	require.Equal(t, "00112233-4455-6677-8899-aabbccddeeff", v.UUID)
	require.Len(t, v.Issues, 1)
}

// BitLocker To Go is a FAT at first sight.
func TestBitLockerToGo(t *testing.T) {
	f := make(forge.Bytes, 40<<20)
	path := written(t, f)
	disktest.Run(t, "mkfs.fat", "-F", "32", path)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, volume.FAT32, probeBytes(t, b).Kind)
	f = b
	f.Text(0, "\xeb\x58\x90MSWIN4.1")
	f.Put(424, []byte{0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01})
	f.U64(440, poolforge.FVEBlock)
	f.Text(poolforge.FVEBlock, "-FVE-FS-")
	f.U16(poolforge.FVEBlock+10, 2)
	require.Equal(t, "BitLocker", blkid(t, written(t, f))["TYPE"])
	v := probeBytes(t, f)
	require.Equal(t, volume.BitLocker, v.Kind)
	require.Equal(t, "fat32", detail(v, "content"))
	require.Len(t, v.Issues, 1)
}
