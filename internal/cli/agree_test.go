package cli

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/units"
)

// agreeSectors is the size of a volume below, in sectors.
const agreeSectors = 6000

// agreeVolumes make a volume of each kind at a place of a disk.
var agreeVolumes = map[string]func(f forge.Bytes, lba, sectors int64){
	"apfs": volumeforge.PutAPFS, "btrfs": volumeforge.PutBtrfs, "exfat": fsforge.PutExFAT,
	"ext2": fsforge.PutExt, "f2fs": volumeforge.PutF2FS, "fat16": fsforge.PutFAT16,
	"hfs": volumeforge.PutHFS, "hfsplus": volumeforge.PutHFSPlus,
	"hpfs": volumeforge.PutHPFS, "iso9660": volumeforge.PutISO9660, "jfs": volumeforge.PutJFS,
	"ntfs": fsforge.PutNTFS, "refs": volumeforge.PutReFS, "reiserfs": volumeforge.PutReiserFS,
	"ufs1": volumeforge.PutUFS1, "ufs2": volumeforge.PutUFS2, "xfs": volumeforge.PutXFS,
	"lvm":       inside(func(f forge.Bytes) { poolforge.PutLVM(f, poolforge.LVMText, 512) }),
	"md 1.0":    inside(func(f forge.Bytes) { poolforge.PutMD1(f, "1.0", 64) }),
	"md 1.2":    inside(func(f forge.Bytes) { poolforge.PutMD1(f, "1.2", 64) }),
	"bcache":    inside(func(f forge.Bytes) { poolforge.PutBcache(f, 16) }),
	"zfs":       inside(poolforge.PutZFS),
	"bitlocker": inside(func(f forge.Bytes) { poolforge.PutBitLocker(f, "PC C:") }),
	"luks1":     inside(func(f forge.Bytes) { poolforge.PutLUKS1(f, 4096, 1000) }),
	"luks2":     inside(func(f forge.Bytes) { poolforge.PutLUKS2(f, poolforge.LUKS2Text("1048576", "1000"), 16<<10) }),
	"disklabel": inside(func(f forge.Bytes) {
		tableforge.PutDisklabel(f, 512, tableforge.Slice{Start: 16, Sectors: 64, Type: 7})
	}),
	"noise":   inside(func(f forge.Bytes) { f.Text(0, "something that is not known") }),
	"nothing": func(forge.Bytes, int64, int64) {},
}

// inside makes of a function that fills a volume one that fills a part of a disk.
func inside(put func(f forge.Bytes)) func(f forge.Bytes, lba, sectors int64) {
	return func(f forge.Bytes, lba, sectors int64) { put(f[lba*units.SectorSize:][:sectors*units.SectorSize]) }
}

// agreePlaces are disks with a place for a volume.
var agreePlaces = map[string]struct {
	lba  int64
	disk func() forge.Bytes
}{
	"bare":   {0, func() forge.Bytes { return make(forge.Bytes, agreeSectors*units.SectorSize) }},
	"lba 63": {63, func() forge.Bytes { return agreeDisk(63, 7) }},
	"1 MiB":  {2048, func() forge.Bytes { return agreeDisk(2048, 0x83) }},
	"gpt": {40, func() forge.Bytes {
		one := tableforge.GPTEntry{First: 40, Last: 40 + agreeSectors - 1, Name: "one"}
		return tableforge.NewGPT(units.SectorSize, 40+agreeSectors+100, 128, one)
	}},
}

func agreeDisk(lba uint32, typ byte) forge.Bytes {
	one := tableforge.Slot{Type: typ, Start: lba, Sectors: agreeSectors}
	return tableforge.NewMBR(int(lba)+agreeSectors+100, one)
}

// TestCommandsAgree requires of inspect, plan and scan one verdict, one error and one class of exit codes for a file:
// forged volumes of each kind, sound and damaged, on forged tables, in forged containers, and the disks of testdata.
func TestCommandsAgree(t *testing.T) {
	t.Parallel()
	for _, kind := range slices.Sorted(maps.Keys(agreeVolumes)) {
		t.Run(kind, func(t *testing.T) {
			for _, place := range slices.Sorted(maps.Keys(agreePlaces)) {
				p := agreePlaces[place]
				f := p.disk()
				agreeVolumes[kind](f, p.lba, agreeSectors)
				requireAgreement(t, place, f)
				rng := differRand(kind, place)
				at := p.lba*units.SectorSize + rng.Int64N(600)
				if rng.IntN(2) == 0 {
					at += 1024 // the superblock of many
				}
				f[at] ^= 1 << rng.IntN(8)
				requireAgreement(t, fmt.Sprintf("%s, %#x is % x", place, at, f[at]), f)
			}
		})
	}
	t.Run("vmfs", func(t *testing.T) { // whose marks lie far behind its start
		const sectors = 48000
		for _, lba := range []uint32{63, 2048} {
			f := tableforge.NewMBR(int(lba)+sectors, tableforge.Slot{Type: 0xfb, Start: lba, Sectors: sectors})
			poolforge.PutVMFS(f[lba*512:], 5, 14, 61)
			requireAgreement(t, fmt.Sprint("lba ", lba), f)
		}
	})
	t.Run("containers", func(t *testing.T) {
		for _, place := range slices.Sorted(maps.Keys(agreePlaces)) {
			f := agreePlaces[place].disk()
			agreeVolumes["ext2"](f, agreePlaces[place].lba, agreeSectors)
			for name, c := range map[string]forge.Bytes{
				"qcow2":     qcow2forge.New(f, 16).Bytes,
				"vhd":       vhdforge.New(f, vhdforge.Layout{}).Bytes,
				"fixed vhd": vhdforge.NewFixed(f).Bytes,
				"vhdx":      vhdxforge.New(vhdxforge.Layout{Size: int64(len(f))}).Bytes,
				"vmdk":      vmdkforge.NewSparse(f).Bytes,
				"stream":    vmdkforge.NewStream(f, vmdkforge.StreamLayout{}).Bytes,
			} {
				requireAgreement(t, place+" in "+name, c)
			}
		}
	})
	t.Run("disks of texts", func(t *testing.T) {
		for name, path := range disktest.Fixtures(t) {
			// a raw file cannot say that it has others
			if d := disktest.Fixture(t, path); d.SectorSize() == units.SectorSize {
				requireAgreementOf(t, name, disktest.Materialize(t, d))
			}
		}
	})
}

func requireAgreement(t *testing.T, what string, f forge.Bytes) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	writeSparse(t, path, f)
	requireAgreementOf(t, what, path)
}

func requireAgreementOf(t *testing.T, what, path string) {
	t.Helper()
	end, in := inspectJSON(t, path)
	for _, text := range badEnd(end, in) {
		t.Errorf("%s: inspect: %s", what, text)
	}
	for _, d := range disagreements(t, path, end, in) {
		if acceptedBy(&mutant{}, d) >= 0 {
			continue
		}
		t.Errorf("%s: %s: %s", what, d.kind, d.text)
	}
}
