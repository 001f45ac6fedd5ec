package table

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// A GPT is found with each sector size, whatever size the disk is read with, by either copy. Spec: UEFI 2.10, 5.3.2:
// the header is in LBA 1, the backup in the last one.
func TestGPTOfEachSectorSize(t *testing.T) {
	const size = 4 << 20
	for _, sector := range disk.SectorSizes {
		for _, shown := range disk.SectorSizes {
			f := tableforge.NewGPT(sector, size/sector, 128, tableforge.GPTEntry{First: 63, Last: 99})
			for _, lost := range []int64{0, sector, size - sector} {
				if lost > 0 {
					clear(f[lost:][:sector])
				}
				g, err := Read(disk.InSectors(disktest.Memory(f), shown))
				require.NoError(t, err, "%d shown with %d", sector, shown)
				require.Equal(t, GPT, g.Scheme)
				require.Equal(t, sector, g.SectorSize)
				require.Equal(t, disk.Range{Off: 63 * sector, Len: 37 * sector}, g.Partitions[0].Range)
				require.NotContains(t, disktest.Codes(g.Issues), "gpt-sector-sizes")
				f = tableforge.NewGPT(sector, size/sector, 128, tableforge.GPTEntry{First: 63, Last: 99})
			}
		}
	}
}

// A sound table of one size outweighs a broken one of the disk's size; of two sound ones, that of the disk's size is
// read, and nothing is moved.
func TestGPTsOfTwoSectorSizes(t *testing.T) {
	const size = 4 << 20
	both := func() forge.Bytes {
		a := tableforge.NewGPT(512, size/512, 8, tableforge.GPTEntry{First: 2000, Last: 3000})
		b := tableforge.NewGPT(4096, size/4096, 128, tableforge.GPTEntry{First: 300, Last: 400})
		a.Put(4096, b[4096:8*4096]) // header and entries; the backups would overlap
		return a
	}
	f := both()
	for shown, want := range map[int64]int64{512: 512, 4096: 4096, 1024: 512} {
		g, err := Read(disk.InSectors(disktest.Memory(f), shown))
		require.NoError(t, err)
		require.Equal(t, want, g.SectorSize)
		require.Contains(t, disktest.Codes(g.Issues), "gpt-sector-sizes")
		i := g.Issues[len(g.Issues)-1]
		require.Equal(t, ondisk.Refuse, i.Effect)
		require.True(t, i.OnMove)
	}
	f[512+tableforge.GPTHeaderCRC]++
	clear(f[size-512:])
	g := readTable(t, f)
	require.EqualValues(t, 4096, g.SectorSize)
	require.NotContains(t, disktest.Codes(g.Issues), "gpt-sector-sizes")

	f[4096+tableforge.GPTHeaderCRC]++
	_, err := Read(disktest.Memory(f))
	require.ErrorIs(t, err, ondisk.ErrFormat, "both are broken")
}

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, entrySize, binary.Size(mbrEntry{}), "MBR entry")
	assert.Equal(t, 16, entrySize, "MBR entry")
	assert.Equal(t, 512, binary.Size(mbrSector{}), "sector 0")
	assert.Equal(t, 92, binary.Size(gptHeader{}), "GPT header, UEFI 2.10 table 5-5")
	assert.Equal(t, 128, binary.Size(gptEntry{}), "GPT entry, UEFI 2.10 table 5-6")
}

// typesOf returns the types that sfdisk lists for a label.
func typesOf(t *testing.T, label string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ *([0-9A-Fa-f-]+)  (.+)$`).FindAllStringSubmatch(disktest.Output(t,
		"sfdisk", "--label", label, "--list-types"), -1) {
		out[strings.ToLower(m[1])] = strings.TrimSpace(m[2])
	}
	return out
}

// ownNames are names that describe partitions of Windows and Linux better than those of sfdisk.
var ownNames = map[string]string{
	"7": "HPFS/NTFS/exFAT", "b": "W95 FAT32", "c": "W95 FAT32 (LBA)", "e": "W95 FAT16 (LBA)", "f": "W95 Ext'd (LBA)",
	"12": "Compaq diagnostics", "17": "Hidden HPFS/NTFS", "1b": "Hidden W95 FAT32", "1c": "Hidden W95 FAT32 (LBA)",
	"1e": "Hidden W95 FAT16 (LBA)", "27": "Hidden NTFS WinRE", "42": "SFS", "63": "GNU HURD or SysV",
	"82": "Linux swap / Solaris", "84": "OS/2 hidden or Intel hibernation", "af": "HFS / HFS+", "de": "Dell Utility",
	"ee": "GPT", "ef": "EFI (FAT-12/16/32)", "fb": "VMware VMFS", "fc": "VMware VMKCORE", "fd": "Linux raid autodetect",
	"c12a7328-f81f-11d2-ba4b-00a0c93ec93b": "EFI System",
	"5808c8aa-7e8f-42e0-85d2-e1e90434cfb3": "Microsoft LDM metadata",
	"af9b60a0-1431-4f62-bc68-3311714a69ad": "Microsoft LDM data",
	"de94bba4-06d1-4d40-a16a-bfd50179d6ac": "Windows recovery environment",
	"0fc63daf-8483-4772-8e79-3d69d8477de4": "Linux filesystem",
}

func checkType(t *testing.T, id, theirs, ours string) {
	t.Helper()
	if own, ok := ownNames[id]; ok {
		assert.Equal(t, own, theirs, id)
		assert.NotEmpty(t, ours, id)
		return
	}
	assert.Equal(t, theirs, ours, id)
}

func TestTypes(t *testing.T) {
	theirs := typesOf(t, "dos")
	require.NotEmpty(t, theirs)
	delete(theirs, "0")
	for id, name := range theirs {
		n, err := strconv.ParseUint(id, 16, 8)
		require.NoError(t, err)
		checkType(t, id, name, Partition{Kind: Primary, Type: byte(n)}.TypeName())
	}
	gpt := typesOf(t, "gpt")
	require.NotEmpty(t, gpt)
	for id, name := range gpt {
		checkType(t, id, name, Partition{Kind: Entry, TypeGUID: id}.TypeName())
	}
	require.Len(t, types(), len(theirs)+len(gpt))
}

// The boot sector of a volume has code or text in place of MBR entries. Spec: Linux, block/partitions/msdos.c, does not
// accept a sector with an invalid boot flag as a table.
func TestCodeInPlaceOfEntries(t *testing.T) {
	code := bytes.Repeat([]byte{0xf6, 0x8b, 0x5e, 0xeb}, 16)
	wrongFlag := []byte{0x7f, 0, 1, 0, 0x83, 0, 1, 0, 63, 0, 0, 0, 100, 0, 0, 0}
	elsewhere := []byte{0x7f, 0, 1, 0, 0x83, 0, 1, 0, 63, 0, 0, 0, 100, 0, 0, 1}
	sound := append([]byte{0x80}, wrongFlag[1:]...)
	legal := bytes.Clone(code) // by chance, in entries with positions after the disk
	legal[0], legal[32] = 0, 0x80
	one := append(bytes.Clone(legal[:16]), code[:16]...)
	cut := append([]byte{0x80, 0, 1, 0, 0x83, 0, 1, 0, 63, 0, 0, 0, 100, 0, 1, 0}, wrongFlag...)
	for name, tc := range map[string]struct {
		entries []byte
		none    bool
	}{
		"code":                               {code, true},
		"code in the first entry alone":      {code[:16], true},
		"four illegal flags":                 {bytes.Repeat(wrongFlag, 4), true},
		"a flag that is wrong":               {wrongFlag, false},
		"a flag that is wrong, and no place": {elsewhere, true},
		"code behind a sound entry":          {append(bytes.Clone(sound), code[:48]...), false},
		"code with flags that are legal":     {legal, true},
		"code with one such flag":            {one, true},
		"one flag, on a disk cut short":      {cut, false},
		"no entry":                           {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 1000*512)
			f.Put(atEntries, tc.entries)
			f.Put(atMagic, []byte{0x55, 0xaa})
			_, err := Read(disktest.ShortDisk(f, int64(len(f))))
			if tc.none {
				require.ErrorIs(t, err, ondisk.ErrNoMatch)
				return
			}
			require.NoError(t, err)
		})
	}
}
