package volume

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Of several segments the first of the device counts, and not what an encryption that is under way has kept.
func TestSegmentsOfLUKS2(t *testing.T) {
	const area = `{"segments":{"0":{"offset":"4096","flags":["backup-final"]},` +
		`"1":{"offset":"65536"},"2":{"offset":"32768","size":"dynamic","flags":["x"]}}}`
	first, err := payloadOf([]byte(area))
	require.NoError(t, err)
	require.Equal(t, disk.Range{Off: 32768}, first)
}

// A segment can have a size. Spec: LUKS2 On-Disk Format Specification 1.1.1, table 4: a number of bytes, or "dynamic".
func TestSegmentOfAFixedSize(t *testing.T) {
	for size, want := range map[string]int64{
		"4096": 4096, "dynamic": 0, "-1": 0, "9223372036854775807": 0, "9223372036854775808": 0, "": 0,
	} {
		first, err := payloadOf([]byte(`{"segments":{"0":{"offset":"32768","size":"` + size + `"}}}`))
		require.NoError(t, err)
		require.Equal(t, disk.Range{Off: 32768, Len: want}, first, size)
	}
}

// clevisToken is a token as clevis luks bind writes it, for a protected header.
func clevisToken(header string) string {
	return `{"type":"clevis","keyslots":["1"],"jwe":{"ciphertext":"x","encrypted_key":"","iv":"x","protected":"` +
		base64.RawURLEncoding.EncodeToString([]byte(header)) + `","tag":"x"}}`
}

// A key that a TPM gives only while the partition table is as it was is told by its token. PCR 5 measures the table.
// Spec: TCG PC Client Platform Firmware Profile, "PCR[5]"; systemd-cryptenroll(1), "TPM2 PCRs and policies"; clevis,
// "clevis-encrypt-tpm2", pcr_ids.
func TestKeysThatThePartitionTableOpens(t *testing.T) {
	const tpm2 = `{"alg":"dir","clevis":{"pin":"tpm2","tpm2":{"hash":"sha256","pcr_bank":"sha256","pcr_ids":"%s"}},` +
		`"enc":"A256GCM"}`
	inside := base64.RawURLEncoding.EncodeToString([]byte(fmt.Sprintf(tpm2, "0,5"))) + ".x.x.x.x"
	for name, tc := range map[string]struct {
		tokens string
		says   string // empty: nothing
	}{
		"systemd, with 5": {
			`{"0":{"type":"systemd-tpm2","keyslots":["1"],"tpm2-pcrs":[5,7],"tpm2-pcr-bank":"sha256"}}`,
			"0 (systemd-tpm2)",
		},
		"systemd, without": {
			`{"0":{"type":"systemd-tpm2","keyslots":["1"],"tpm2-pcrs":[0,2,7]}}`,
			"",
		},
		"systemd, none": {
			`{"0":{"type":"systemd-tpm2","keyslots":["1"],"tpm2-pcrs":[]}}`,
			"",
		},
		"systemd-pcrlock": {
			`{"3":{"type":"systemd-tpm2","keyslots":["1"],"tpm2-pcrs":[],"tpm2_pcrlock":true}}`,
			"can be bound",
		},
		"clevis, with 5":  {`{"1":` + clevisToken(fmt.Sprintf(tpm2, "1, 5,7")) + `}`, "1 (clevis)"},
		"clevis, without": {`{"1":` + clevisToken(fmt.Sprintf(tpm2, "1,7,15")) + `}`, ""},
		"clevis, shares": {
			`{"0":{"type":"luks2-keyring"},"1":` +
				clevisToken(`{"clevis":{"pin":"sss","sss":{"t":1,"jwe":["x","`+inside+`"]}}}`) + `}`,
			"1 (clevis)",
		},
		"clevis, a server": {`{"1":` + clevisToken(`{"clevis":{"pin":"tang","tang":{"url":"http://x"}}}`) + `}`, ""},
		"another type":     {`{"0":{"type":"x","tpm2-pcrs":[5]}}`, ""},
		"no tokens":        {`{}`, ""},
		"no object":        {`[5]`, ""},
		"broken":           {`{"0":{"type":5}}`, ""},
		"behind a broken one": {
			`{"0":{"type":"systemd-tpm2","tpm2-pcrs":[5]},"1":7}`,
			"0 (systemd-tpm2)",
		},
		"a key in itself": {
			`{"1":` + clevisToken(`{"clevis":{"sss":{"jwe":[`+strings.Repeat(`"e30",`, 500)+`"e30"]}}}`) + `}`,
			"",
		},
	} {
		area, err := readLUKS2Area([]byte(`{"keyslots":{},"tokens":` + tc.tokens + `,"segments":{}}`))
		i, ok := area.tableKeys()
		ok = ok && err == nil
		require.Equal(t, tc.says != "", ok, name)
		if ok {
			require.Contains(t, i.Text, tc.says, name)
			require.True(t, i.OnMove && i.DiskWide, name)
			require.Equal(t, ondisk.Warn, i.Effect, name)
		}
	}
}

// The header of cryptsetup, with a token that it was given.
func TestTokenOfCryptsetup(t *testing.T) {
	dir := t.TempDir()
	img, token, key := filepath.Join(dir, "luks"), filepath.Join(dir, "token"), filepath.Join(dir, "key")
	disktest.MakeBlank(t, img, 20*units.MiB)
	require.NoError(t, os.WriteFile(key, []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(token, []byte(`{"type":"systemd-tpm2","keyslots":["0"],"tpm2-blob":"eA==",`+
		`"tpm2-pcrs":[4,5],"tpm2-pcr-bank":"sha256","tpm2-primary-alg":"ecc",`+
		`"tpm2-policy-hash":"00","tpm2-pin":false}`), 0o600))
	disktest.Run(t, "cryptsetup", "luksFormat", "-q", "--type", "luks2", "--pbkdf", "pbkdf2",
		"--pbkdf-force-iterations", "1000", "--key-file", key, img)
	read := func() []ondisk.Issue {
		v, err := luks.probe(disktest.ShortDisk(disktest.ReadFile(t, img), 20*units.MiB))
		require.NoError(t, err)
		return v.Issues
	}
	require.Empty(t, read())
	disktest.Run(t, "cryptsetup", "token", "import", "--disable-external-tokens", "--json-file", token, img)
	require.Len(t, read(), 1)
	require.Contains(t, read()[0].Text, "PCR 5")
}

// payloadOf returns the first data segment of a JSON area.
func payloadOf(text []byte) (disk.Range, error) {
	area, err := readLUKS2Area(text)
	if err != nil {
		return disk.Range{}, err
	}
	return area.payload()
}

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 16, binary.Size(lvmArea{}), "LVM2 disk location")
	assert.Equal(t, 24, binary.Size(lvmText{}), "LVM2 raw location")
	assert.Equal(t, 512, binary.Size(lvmMetadata{}), "LVM2 metadata area header")
	assert.Equal(t, 44, binary.Size(swapHeader{}), "swap header up to the label")
	assert.Equal(t, 512, binary.Size(fveHeader{}), "BitLocker volume header")
	assert.Equal(t, fveBlockSize, binary.Size(fveBlock{}),
		"BitLocker metadata block header and metadata header, 64 and 48 bytes")
	assert.Equal(t, 8, binary.Size(fveEntry{}), "BitLocker metadata entry header")
}
