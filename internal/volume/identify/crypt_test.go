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
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// luksFile formats a file with cryptsetup. The least work for a key is enough: it is not derived again.
func luksFile(t *testing.T, kind string, args ...string) string {
	t.Helper()
	path, key := blank(t, 32<<20), filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("a pass phrase"), 0o600))
	args = append([]string{
		"luksFormat", "--batch-mode", "--type", kind, "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000",
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
		{"LUKS2, small header, small sectors", "luks2", []string{
			"--luks2-metadata-size", "32k",
			"--luks2-keyslots-size", "1m", "--sector-size", "512", "--cipher", "aes-cbc-essiv:sha256",
		}},
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
	f := disktest.ReadFile(t, luksFile(t, "luks2"))
	f[4096+5] ^= 1
	v := probeForged(t, f)
	require.Equal(t, volume.LUKS, v.Kind)
	require.Equal(t, "volume", v.Issues[0].Code)
	require.Contains(t, v.Issues[0].Text, "luks2 header at 0x1c0: checksum")
}

// libblkid knows BitLocker, but says neither label nor cipher; those are as the test put them by libbde's
// documentation.
func TestBitLocker(t *testing.T) {
	f := make(forge.Bytes, 4<<20)
	poolforge.PutBitLocker(f, "PC C: 01/02/2020", 0x2000, 0x0800)
	found := blkid(t, written(t, f))
	v := probeForged(t, f)
	require.Equal(t, "BitLocker", found["TYPE"])
	require.Equal(t, "2", found["VERSION"])
	require.Equal(t, "Windows 7 or later", detail(v, "version"))
	require.Equal(t, "PC C: 01/02/2020", v.Label)
	require.Equal(t, "AES-XTS 128", detail(v, "encryption"))
	require.Equal(t, "00112233-4455-6677-8899-aabbccddeeff", v.UUID)
	require.Equal(t, "password, recovery password", detail(v, "opened by"))
	require.Len(t, v.Issues, 1)
	require.Contains(t, v.Issues[0].Text, "drive C:")
}

// What is known of protectors is from libbde's documentation and cryptsetup's sources.
func TestBitLockerOfASystem(t *testing.T) {
	const block = poolforge.FVEBlock
	reseal := func(change func(b forge.Bytes)) func(forge.Bytes) {
		return func(f forge.Bytes) {
			for i := range int64(3) {
				b := f[block+i*poolforge.FVEApart:]
				change(b)
				poolforge.SealFVE(b)
			}
		}
	}
	for name, c := range map[string]struct {
		protectors []uint16
		change     func(forge.Bytes)
		says       string // empty: a volume of data
	}{
		"recovery password":    {protectors: []uint16{0x0800}},
		"password, smart card": {protectors: []uint16{0x2000, 0x0800, 0x1000}},
		"suspended":            {protectors: []uint16{0x0000, 0x0800}},
		"TPM":                  {protectors: []uint16{0x0800, 0x0100}, says: "like a system volume (TPM)"},
		"TPM, suspended":       {protectors: []uint16{0x0000, 0x0100}, says: "unless BitLocker is still suspended"},
		"TPM and PIN":          {protectors: []uint16{0x0500}, says: "TPM and PIN"},
		"TPM and startup key":  {protectors: []uint16{0x0200, 0x0100}, says: "TPM"},
		"startup key":          {protectors: []uint16{0x0200, 0x0800}},
		"unknown protector":    {protectors: []uint16{0x0700}, says: "an unknown protector (0x0700)"},
		"no protector":         {protectors: []uint16{}, says: "no known protector of its key"},
		"Vista's metadata":     {change: reseal(func(b forge.Bytes) { b.U16(10, 1) }), says: "has version 1"},
		"while it is encrypted": {
			change: reseal(func(b forge.Bytes) { b.U16(12, 5) }),
			says:   "being encrypted or decrypted (state 5",
		},
		"while it is switched": {change: reseal(func(b forge.Bytes) { b.U16(14, 1) }), says: "state 4, next 1"},
		"places from elsewhere": {
			change: reseal(func(b forge.Bytes) { b.U64(32, block+63*512) }),
			says:   "give bytes [1080832",
		},
		"an entry that is cut": {change: reseal(func(b forge.Bytes) { b.U16(112, 0xffff) }), says: "has 65535 bytes"},
		"an entry of no size":  {change: reseal(func(b forge.Bytes) { b.U16(112, 7) }), says: "has 7 bytes"},
		"a key of another value": {
			change: reseal(func(b forge.Bytes) { b.U16(112+2, 2); b.U16(112+4, 9) }),
			says:   "value type 0x0009",
		},
		"another identifier": {change: func(f forge.Bytes) { f.U8(poolforge.FVEID, 1) }, says: "identifier"},
		"one damaged block":  {change: func(f forge.Bytes) { f.U8(block+100, 1) }},
		"only damaged blocks": {
			change: func(f forge.Bytes) { clear(f[block : block+3*poolforge.FVEApart]) },
			says:   "no intact metadata block",
		},
		"a damaged block, TPM": {
			protectors: []uint16{0x0100}, change: func(f forge.Bytes) { f.U8(block+100, 1) }, says: "TPM",
		},
		"metadata beyond a block": {
			change: reseal(func(b forge.Bytes) { b.U32(64, 1<<20) }),
			says:   "no intact metadata block",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := make(forge.Bytes, 4<<20)
			poolforge.PutBitLocker(f, "PC D: 01/02/2020", c.protectors...)
			if c.change != nil {
				c.change(f)
			}
			v := probeForged(t, f)
			require.Equal(t, volume.BitLocker, v.Kind)
			if c.says == "" {
				require.Empty(t, v.Issues)
				return
			}
			require.Len(t, v.Issues, 1)
			require.Equal(t, ondisk.Unbootable, v.Issues[0].Effect)
			require.Contains(t, v.Issues[0].Text, c.says)
		})
	}
}

// BitLocker To Go is a FAT at first sight.
func TestBitLockerToGo(t *testing.T) {
	f := make(forge.Bytes, 40<<20)
	path := written(t, f)
	disktest.Run(t, "mkfs.fat", "-F", "32", path)
	b := disktest.ReadFile(t, path)
	require.Equal(t, volume.FAT32, probeForged(t, b).Kind)
	f = b
	f.Text(0, "\xeb\x58\x90MSWIN4.1")
	f.Put(poolforge.FVEToGoID, poolforge.FVEIdentifier)
	key := make(forge.Bytes, 28)
	key.U16(26, 0x2000)
	poolforge.PutFVEBlocks(f, poolforge.FVEToGoID+16, poolforge.FVEEntry(2, 8, key))
	require.Equal(t, "BitLocker", blkid(t, written(t, f))["TYPE"])
	v := probeForged(t, f)
	require.Equal(t, volume.BitLocker, v.Kind)
	require.Equal(t, "fat32", detail(v, "content"))
	require.Empty(t, v.Issues)
}
