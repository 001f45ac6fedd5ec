package volume

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
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

// A key that a TPM gives only while the partition table is unchanged is told by its token. PCR 5 measures the table.
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

const firmwareSectors = 8192

// fromEnd is the byte at which a sector begins that is so many from the end of the disk.
func fromEnd(n int64) int64 { return (firmwareSectors - n) * 512 }

// seal16 writes a word that makes the words up to it zero.
func seal16(f forge.Bytes, from, at int64) { f.U16(at, -sum16(f[from:at])) }

// firmwareDisks are forged by the specifications, and judged by libblkid.
var firmwareDisks = map[string]func(f forge.Bytes){
	"isw_raid_member":      func(f forge.Bytes) { f.Text(fromEnd(2), "Intel Raid ISM Cfg Sig. 1.1.00") },
	"lsi_mega_raid_member": func(f forge.Bytes) { f.Text(fromEnd(1), "$XIDE$") },
	"ddf_raid_member": func(f forge.Bytes) {
		binary.BigEndian.PutUint32(f[fromEnd(1):], 0xde11de11)
		f.Text(fromEnd(1)+8, "GUID of the disk array..01.02.00")
		for i := range 4 {
			f.U8(fromEnd(1)+4+int64(i), 0xff)
		}
	},
	"via_raid_member": func(f forge.Bytes) {
		f.U16(fromEnd(1), 0xaa55)
		f.U8(fromEnd(1)+2, 1)
		f.U8(fromEnd(1)+50, 0) // of 55, aa and 1
	},
	"silicon_medley_raid_member": func(f forge.Bytes) {
		f.U32(fromEnd(1)+0x60, 0x2f000000)
		f.U16(fromEnd(1)+0x104, 0x3114)
		seal16(f, fromEnd(1), fromEnd(1)+0x13e)
	},
	"nvidia_raid_member": func(f forge.Bytes) {
		const words = 30
		at := fromEnd(2)
		f.Text(at, "NVIDIA")
		f.U32(at+8, words)
		f.U16(at+16, 100)
		sum := uint32(0)
		for i := range int64(words) {
			sum += binary.LittleEndian.Uint32(f[at+4*i:])
		}
		f.U32(at+12, -sum)
	},
	"promise_fasttrack_raid_member": func(f forge.Bytes) { f.Text(fromEnd(63), "Promise Technology, Inc.") },
	"hpt45x_raid_member":            func(f forge.Bytes) { f.U32(fromEnd(11), 0x5a7816f3) },
	"hpt37x_raid_member":            func(f forge.Bytes) { f.U32(9*512+32, 0x5a7816f0) },
	"adaptec_raid_member": func(f forge.Bytes) {
		binary.BigEndian.PutUint32(f[fromEnd(1):], 0x37fc4d1e)
		f.Text(fromEnd(1)+256, "DPTM")
	},
	"jmicron_raid_member": func(f forge.Bytes) {
		f.Text(fromEnd(1), "JM")
		f.U16(fromEnd(1)+2, 0x0100)
		f.U16(fromEnd(1)+4, -sum16(f[fromEnd(1):fromEnd(1)+128]))
	},
}

func TestFirmwareRAID(t *testing.T) {
	for want, put := range firmwareDisks {
		t.Run(want, func(t *testing.T) {
			f := make(forge.Bytes, firmwareSectors*512)
			put(f)
			path := filepath.Join(t.TempDir(), "disk")
			f.Write(t, path)
			require.Equal(t, want, strings.TrimSpace(disktest.Output(t, "blkid", "-p", "-o", "value", "-s", "TYPE",
				path)))
			got, _, err := FirmwareRAID(disktest.ShortDisk(f, int64(len(f))))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
	require.Len(t, firmwareDisks, len(firmwareRAIDs))
}

// Stray bytes are not array: what has a sum is held to it.
func TestNoFirmwareRAID(t *testing.T) {
	for name, at := range map[string]int64{
		"via_raid_member": fromEnd(1) + 9, "silicon_medley_raid_member": fromEnd(1) + 7,
		"nvidia_raid_member":  fromEnd(2) + 30,
		"jmicron_raid_member": fromEnd(1) + 77, "ddf_raid_member": fromEnd(1) + 34, "isw_raid_member": fromEnd(2) + 25,
	} {
		f := make(forge.Bytes, firmwareSectors*512)
		firmwareDisks[name](f)
		f[at] ^= 0x40
		got, _, err := FirmwareRAID(disktest.ShortDisk(f, int64(len(f))))
		require.NoError(t, err)
		require.Empty(t, got, name)
	}
	small := make(forge.Bytes, 100*512)
	small.Text(98*512, "Intel Raid ISM Cfg Sig. 1.1.00")
	got, _, err := FirmwareRAID(disktest.ShortDisk(small, int64(len(small))))
	require.NoError(t, err)
	require.Empty(t, got, "no array has disks as small")
}

// FuzzLVMText reads anything as the text of a volume group.
func FuzzLVMText(f *testing.F) {
	f.Add([]byte(poolforge.LVMText))
	f.Add([]byte(`g { extent_size = 1 a = ["x", 2, "y\"z"] # comment`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p := &physicalVolume{
			d: disktest.ShortDisk(nil, 1<<30), uuid: poolforge.LVMID,
			v: &Volume{DataStart: 4096},
		}
		if err := p.describe(text); err != nil {
			require.True(t, isBroken(err), "%v", err)
			return
		}
		for _, part := range p.v.Parts {
			require.GreaterOrEqual(t, part.Size, int64(0))
			require.True(t, part.Start == -1 || (part.Start >= 4096 && part.Start+part.Size <= 1<<30))
		}
	})
}

// FuzzPackedTexts reads anything as the list of a ZFS label, and as the JSON of a LUKS2 header.
func FuzzPackedTexts(f *testing.F) {
	zfs := make(forge.Bytes, 1<<20)
	poolforge.PutZFS(zfs)
	f.Add([]byte(zfs[poolforge.ZFSList:][:512]))
	f.Add([]byte(poolforge.LUKS2Text("16777216", "1000")))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := disktest.ShortDisk(append(make([]byte, poolforge.ZFSList), data...), 1<<30)
		v, err := readZFS(d, 0)
		require.True(t, err == nil && v.DataStart == zfsDataStart || isBroken(err) ||
			errors.Is(err, ondisk.ErrNoMatch), "%v", err)
		first, err := payloadOf(data)
		require.True(t, err == nil || isBroken(err), "%v", err)
		require.GreaterOrEqual(t, first.Off, int64(0))
		require.GreaterOrEqual(t, first.End(), first.Off)
	})
}

// FuzzBitLocker reads anything as the metadata of a BitLocker volume, with a checksum that is right.
func FuzzBitLocker(f *testing.F) {
	const at, size = 4096, 64 << 10
	forged := make(forge.Bytes, 2<<20)
	poolforge.PutBitLocker(forged, "PC D: 01/02/2020", 0x2000, 0x0100)
	forged.U64(poolforge.FVEBlocks, at)
	f.Add([]byte(forged[:512]), []byte(forged[poolforge.FVEBlock:][:400]))
	f.Fuzz(func(t *testing.T, sector, block []byte) {
		v := make(forge.Bytes, size)
		v.Put(0, sector[:min(len(sector), 512)])
		b := v[at:]
		b.Put(0, block)
		if length := 16 * int(binary.LittleEndian.Uint16(b[8:])); length+8 <= len(b) {
			poolforge.SealFVE(b)
		}
		got, err := probeBitLocker(disktest.ShortDisk(v, int64(len(v))))
		if err != nil {
			require.ErrorIs(t, err, ondisk.ErrNoMatch)
			return
		}
		require.LessOrEqual(t, len(got.Label), fveMaxLabel)
		known := slices.ContainsFunc(got.Details, func(d Detail) bool { return d.Name == "opened by" })
		require.True(t, known || len(got.Issues) == 1, "a volume of data without a protector")
	})
}
