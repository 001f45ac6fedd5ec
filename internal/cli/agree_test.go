package cli

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/units"
)

// agreeSectors is the size of a volume below, in sectors.
const agreeSectors = 6000

// agreeVolumes make a volume of each kind at a place of a disk.
var agreeVolumes = map[string]func(f disktest.Forged, lba, sectors int64){
	"apfs": disktest.Forged.PutAPFS, "btrfs": disktest.Forged.PutBtrfs, "exfat": disktest.Forged.PutExFAT,
	"ext2": disktest.Forged.PutExt, "f2fs": disktest.Forged.PutF2FS, "fat16": disktest.Forged.PutFAT16,
	"hfs": disktest.Forged.PutHFS, "hfsplus": disktest.Forged.PutHFSPlus, "wrapped hfsplus": disktest.Forged.PutHFSWrapped,
	"hpfs": disktest.Forged.PutHPFS, "iso9660": disktest.Forged.PutISO9660, "jfs": disktest.Forged.PutJFS,
	"ntfs": disktest.Forged.PutNTFS, "refs": disktest.Forged.PutReFS, "reiserfs": disktest.Forged.PutReiserFS,
	"ufs1": disktest.Forged.PutUFS1, "ufs2": disktest.Forged.PutUFS2, "xfs": disktest.Forged.PutXFS,
	"lvm":       inside(func(f disktest.Forged) { f.PutLVM(disktest.LVMText, 512) }),
	"md 1.0":    inside(func(f disktest.Forged) { f.PutMD1("1.0", 64) }),
	"md 1.2":    inside(func(f disktest.Forged) { f.PutMD1("1.2", 64) }),
	"bcache":    inside(func(f disktest.Forged) { f.PutBcache(16) }),
	"zfs":       inside(disktest.Forged.PutZFS),
	"bitlocker": inside(func(f disktest.Forged) { f.PutBitLocker("PC C:") }),
	"luks1":     inside(func(f disktest.Forged) { f.PutLUKS1(4096, 1000) }),
	"luks2":     inside(func(f disktest.Forged) { f.PutLUKS2(disktest.LUKS2Text("1048576", "1000"), 16<<10) }),
	"disklabel": inside(func(f disktest.Forged) { f.PutDisklabel(512, disktest.Slice{Start: 16, Sectors: 64, Type: 7}) }),
	"noise":     inside(func(f disktest.Forged) { f.Text(0, "something that is not known") }),
	"nothing":   func(disktest.Forged, int64, int64) {},
}

// inside makes of a function that fills a volume one that fills a part of a disk.
func inside(put func(f disktest.Forged)) func(f disktest.Forged, lba, sectors int64) {
	return func(f disktest.Forged, lba, sectors int64) { put(f[lba*units.SectorSize:][:sectors*units.SectorSize]) }
}

// agreePlaces are disks with a place for a volume.
var agreePlaces = map[string]struct {
	lba  int64
	disk func() disktest.Forged
}{
	"bare":   {0, func() disktest.Forged { return make(disktest.Forged, agreeSectors*units.SectorSize) }},
	"lba 63": {63, func() disktest.Forged { return agreeDisk(63, 7) }},
	"1 MiB":  {2048, func() disktest.Forged { return agreeDisk(2048, 0x83) }},
	"gpt": {40, func() disktest.Forged {
		one := disktest.GPTEntryFields{First: 40, Last: 40 + agreeSectors - 1, Name: "one"}
		return disktest.ForgeGPT(units.SectorSize, 40+agreeSectors+100, 128, one)
	}},
}

func agreeDisk(lba uint32, typ byte) disktest.Forged {
	one := disktest.MBREntryFields{Type: typ, Start: lba, Sectors: agreeSectors}
	return disktest.ForgeMBR(int(lba)+agreeSectors+100, one)
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
			f := disktest.ForgeMBR(int(lba)+sectors, disktest.MBREntryFields{Type: 0xfb, Start: lba, Sectors: sectors})
			f[lba*512:].PutVMFS(5, 14, 61)
			requireAgreement(t, fmt.Sprint("lba ", lba), f)
		}
	})
	t.Run("containers", func(t *testing.T) {
		for _, place := range slices.Sorted(maps.Keys(agreePlaces)) {
			f := agreePlaces[place].disk()
			agreeVolumes["ext2"](f, agreePlaces[place].lba, agreeSectors)
			for name, c := range map[string]disktest.Forged{
				"qcow2":     disktest.ForgeQcow2(f, 16).Forged,
				"vhd":       disktest.ForgeVHD(f, disktest.VHDLayout{}).Forged,
				"fixed vhd": disktest.ForgeFixedVHD(f).Forged,
				"vhdx":      disktest.ForgeVHDX(disktest.VHDXLayout{Size: int64(len(f))}).Forged,
				"vmdk":      disktest.ForgeSparseVMDK(f).Forged,
				"stream":    disktest.ForgeStreamVMDK(f, disktest.StreamLayout{}).Forged,
			} {
				requireAgreement(t, place+" in "+name, c)
			}
		}
	})
	t.Run("disks of texts", func(t *testing.T) {
		for name, path := range disktest.Fixtures(t) {
			if d := disktest.Fixture(t, path); d.SectorSize() == units.SectorSize { // a raw file cannot say that it has others
				requireAgreementOf(t, name, disktest.Materialize(t, d))
			}
		}
	})
}

func requireAgreement(t *testing.T, what string, f disktest.Forged) {
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
