package align_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Boot code of Windows.
var windows2000, windows7 = boot.Named("windows-2000"), boot.Named("windows-7")

// disk255 returns an MBR disk of 255 heads and 63 sectors with the given code and partitions.
func disk255(code *boot.Code, parts ...boot.Partition) *layout.Layout {
	for i := range parts {
		parts[i].Number = i + 1
	}
	return &layout.Layout{
		Table: &table.Table{Scheme: table.MBR, SectorSize: 512}, Geometry: table.Geometry{Heads: 255, Sectors: 63},
		Boot: &boot.Result{Code: code}, Partitions: parts,
	}
}

func mbrPart(lba, end int64, active bool, kind volume.Kind) boot.Partition {
	v := &volume.Volume{Kind: kind, BlockSize: 4096}
	return boot.Partition{
		Partition: table.Partition{
			Range: disk.Range{Off: lba * 512, Len: (end - lba) * 512}, Kind: table.Primary, Type: 7, Active: active,
		}, Volume: v,
	}
}

const cylinder = 255 * 63

var (
	xp     = mbrPart(63, 300*cylinder, true, volume.NTFS)
	xpData = mbrPart(63, 300*cylinder, false, volume.NTFS)
	vista  = mbrPart(2048, 2048+400000, true, volume.NTFS)
	lvm    = mbrPart(13*cylinder, 900*cylinder, false, volume.LVM2)
)

func TestRoleOfADisk(t *testing.T) {
	l := disk255(boot.Empty, xp)
	l.Boot.Chain = []boot.Link{{Partition: 1, Text: "partition 1 holds Windows"}}
	for _, tc := range []struct {
		name string
		l    *layout.Layout
		role align.Role
	}{
		{"xp boots", disk255(windows2000, xp), align.BootDisk},
		{"xp, data with the same code", disk255(windows2000, xpData), align.DataDisk},
		{"xp, no code", disk255(boot.Empty, xp), align.DataDisk},
		{"a windows without a code", l, align.UnknownRole},
		{
			"grub legacy needs no flag", disk255(linux.Legacy, mbrPart(63, 13*cylinder, false, volume.Ext3), lvm),
			align.BootDisk,
		},
		{
			"rhel 4 with another loader", disk255(firmware.GenericCHS, mbrPart(63, 13*cylinder, true, volume.Ext3),
				lvm),
			align.BootDisk,
		},
		{"grub 2", disk255(linux.V2, mbrPart(2048, 500000, false, volume.Ext4)), align.BootDisk},
		{"fat only", disk255(boot.Empty, mbrPart(63, 9*cylinder, false, volume.FAT32)), align.DataDisk},
		{"code that is not known", disk255(boot.Unknown, xpData), align.UnknownRole},
		{"no partition", disk255(boot.Empty), align.DataDisk},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := align.For(tc.l, align.Case{Boundary: align.DefaultBoundary, Storage: align.Generic()})
			require.Equal(t, tc.role, a.Role)
			if a.Action == align.Align {
				says := map[align.Role]string{
					align.BootDisk: "This is a boot disk.", align.DataDisk: "This is a data disk.",
					align.UnknownRole: "Whether the disk is booted from is not known.",
				}
				require.Contains(t, a.Text, says[tc.role])
			}
		})
	}
}

func TestFirmwareBoots(t *testing.T) {
	gpt := func(typeGUID string) *layout.Layout {
		p := mbrPart(63, 9999, false, volume.FAT32)
		p.Kind, p.Type, p.TypeGUID = table.Entry, 0, typeGUID
		return &layout.Layout{
			Table: &table.Table{Scheme: table.GPT, SectorSize: 512}, Boot: &boot.Result{Code: boot.Empty},
			Partitions: []boot.Partition{p},
		}
	}
	for guid, want := range map[string]align.Role{
		"c12a7328-f81f-11d2-ba4b-00a0c93ec93b": align.BootDisk, // UEFI 2.10: EFI system partition
		"21686148-6449-6e6f-744e-656564454649": align.BootDisk, // "Hah!IdontNeedEFI"
		"ebd0a0a2-b9e5-4433-87c0-68b6b72699c7": align.DataDisk,
	} {
		c := align.Case{Boundary: align.DefaultBoundary, Storage: align.Generic()}
		require.Equal(t, want, align.For(gpt(guid), c).Role, guid)
	}
}

type adviceCase struct {
	name     string
	l        *layout.Layout
	boundary int64
	storage  string
	refusals []align.Finding
	broken   bool
	action   align.Action
	gain     align.Gain
	says     string
}

// refusedMove is a finding that forbids a copy.
var refusedMove = []align.Finding{{Code: "lilo", Subject: "disk"}}

func TestAdvice(t *testing.T) {
	for _, tc := range slices.Concat(adviceOnSystems(), adviceOnData()) {
		t.Run(tc.name, func(t *testing.T) {
			a := align.For(tc.l, align.Case{
				Boundary: align.BoundaryOf(tc.boundary), Storage: storage(t, tc.storage),
				Refusals: tc.refusals, Broken: tc.broken,
			})
			require.Equal(t, tc.action, a.Action, a.Text)
			require.Equal(t, tc.gain, a.Gain)
			require.Contains(t, a.Text, tc.says)
			require.NotContains(t, a.Text, "  ")
		})
	}
}

// adviceOnSystems are disks with a bootable Windows.
func adviceOnSystems() []adviceCase {
	return []adviceCase{
		{
			"xp on 4 KiB", disk255(windows2000, xp), 65536, "generic", nil, false, align.Align, align.High,
			"Yes: random reads of 4 KiB cost 100 % more blocks of the storage than needed, random writes 300 %, " +
				"sequential " +
				"reads of 64 KiB 6 %, sequential writes 19 %. This",
		},
		{
			"xp on 64 KiB", disk255(windows2000, xp), 65536, "clariion", nil, false, align.Align, align.High,
			"Yes: random I/O of 4 KiB costs 6 % more blocks of the storage than needed, sequential I/O of " +
				"64 KiB 100 %.",
		},
		{
			"xp on a storage that does not mind", disk255(windows2000, xp), 65536, "flasharray", nil, false,
			align.Optional,
			align.NoGain, "Not for this storage (Pure Storage FlashArray, 512-byte blocks): alignment does not " +
				"matter to it.",
		},
		{
			"xp, refused", disk255(windows2000, xp), 65536, "generic", refusedMove, false, align.Refused,
			align.High,
			"It would help (random reads of 4 KiB cost 100 % more blocks of the storage than needed, random writes " +
				"300 %, " +
				"sequential reads of 64 KiB 6 %, sequential writes 19 %), but a copy would be refused now.",
		},
		{
			"xp, refusedMove, no gain", disk255(windows2000, xp), 65536, "512", refusedMove, false, align.Refused,
			align.NoGain, "It would not help this storage (blocks of 512 B), and a copy would be refused now.",
		},
		{
			"xp, malformed", disk255(windows2000, xp), 65536, "generic", nil, true, align.Repair, align.High,
			"Not yet: repair the malformed structures first.",
		},
		{
			"vista", disk255(windows7, vista), 65536, "generic", refusedMove, false, align.Nothing, align.NoGain,
			"No: every partition starts on a multiple of 64 KiB.",
		},
		{
			"on 64 KiB, storage of 128 KiB", disk255(windows7, mbrPart(128, 9999, true, volume.NTFS)), 65536,
			"128K", nil, false, align.OtherBoundary, align.Some,
			"Perhaps: every start is on a multiple of 64 KiB, but sequential reads of 128 KiB cost 100 % more blocks",
		},
		{
			"off 64 KiB, storage of 128 KiB", disk255(windows7, xp), 65536, "128K", nil, false, align.Align,
			align.High, "For this storage, give --boundary 128K.",
		},
		{
			"on 32 KiB, storage not named", disk255(windows7, mbrPart(64, 9999, true, volume.NTFS)), 65536,
			"generic", nil,
			false, align.Optional, align.NoGain,
			"That depends on the storage: one with 4 KiB blocks gains nothing, one with larger blocks may; --storage " +
				"says " +
				"which it is.",
		},
		{
			"on 32 KiB, storage named", disk255(windows7, mbrPart(64, 9999, true, volume.NTFS)), 65536, "netapp",
			nil, false, align.Optional, align.NoGain,
			"Not for this storage (NetApp WAFL, 4 KiB blocks): no I/O would touch fewer",
		},
	}
}

// adviceOnData are disks whose advice depends on their contents, or that have none.
func adviceOnData() []adviceCase {
	fat := mbrPart(63, 9*cylinder, false, volume.FAT32)
	fat.Volume.DataStart = 512 // cluster 2 is on 4 KiB now
	small := mbrPart(2049, 9*cylinder, false, volume.FAT32)
	small.Volume.BlockSize, small.Volume.DataStart = 512, 1024 // of its I/O, that of 1 KiB gains
	huge := mbrPart(63, 9*cylinder, false, volume.ExFAT)
	huge.Volume.BlockSize = 32 << 20
	box := mbrPart(63, 9*cylinder, false, volume.Unknown)
	box.Kind = table.Extended
	return []adviceCase{
		{
			"data in order, start not", disk255(boot.Empty, fat), 65536, "generic", nil, false, align.Optional,
			align.Loss, "Rather not: I/O touches fewer blocks of the storage now",
		},
		{
			"data in order by 4 KiB, start not", disk255(boot.Empty, fat), 4096, "generic", nil, false, align.Nothing,
			align.Loss, "No: the data in the volume are aligned now",
		},
		{
			"shifted storage, and in no order", disk255(boot.Empty, mbrPart(63, 9*cylinder, false, volume.NTFS)), 65536,
			"1M+1s", nil, false, align.Optional, align.Loss,
			"start at byte 512 of the disk, and I/O would touch more of them after a move.",
		},
		{
			"small clusters", disk255(boot.Empty, small), 65536, "generic", nil, false, align.Align, align.Some,
			"It helps a little: sequential reads of 1 KiB cost 25 % more blocks",
		},
		{
			"huge clusters", disk255(boot.Empty, huge), 65536, "generic", nil, false, align.Align, align.Some,
			"random reads of 32 MiB cost less than 1 % more blocks",
		},
		{
			"refused, and no storage named", disk255(windows7, mbrPart(64, 9999, true, volume.NTFS)), 65536,
			"generic", refusedMove, false, align.Refused, align.NoGain,
			"It would not help this storage (4 KiB blocks, as most storage has)",
		},
		{
			"an empty extended partition", disk255(boot.Empty, box), 65536, "generic", nil, false, align.Nothing,
			align.NoGain, "No: there is no partition to move.",
		},
		{
			"nothing there", disk255(boot.Empty), 65536, "generic", nil, false, align.Nothing, align.NoGain,
			"No: there is no partition to move.",
		},
	}
}

// The advice about references equals the effect of a plan on them.
func TestAdviceOnReferences(t *testing.T) {
	encode := func([]byte, int64) ([]byte, error) { return nil, nil }
	l := disk255(windows2000, xp, lvm)
	l.Boot.Refs = []boot.Ref{{Partition: 1, Target: 1, Encode: encode}, {Partition: 1, Target: 1, Encode: encode}}
	advise := func() align.Advice {
		return align.For(l, align.Case{Boundary: align.DefaultBoundary, Storage: align.Generic()})
	}
	require.Contains(t, advise().Text, "2 stored positions change with the move; all can be rewritten.")
	l.Boot.Refs[1].Target = 0
	require.Equal(t, align.References{Rewritten: 1, Left: 1}, advise().References)
	require.Contains(t, advise().Text, "Of 2 stored positions 1 can be rewritten; the others are left as found.")
	l.Boot.Refs[0].Encode = nil
	require.Equal(t, align.References{Left: 2}, advise().References)
	require.Contains(t, advise().Text, "2 stored positions are left as found.")
	l.Boot.Refs = l.Boot.Refs[:1]
	require.Contains(t, advise().Text, "One stored position is left as found.")
	l.Boot.Refs = l.Boot.Refs[:0]
	require.NotContains(t, advise().Text, "stored position")
	require.Empty(t, advise().Unmended)
	l.Issues = []ondisk.Issue{
		{Code: "mounted-devices", Effect: ondisk.Warn, OnMove: true, Partition: 1},
		{Code: "mounted-devices", Effect: ondisk.Warn, OnMove: true, Partition: 2},
		{Code: "dirty", Effect: ondisk.Warn, Partition: 1},
		{Code: "elsewhere", Effect: ondisk.Warn, OnMove: true, Partition: 7},
	}
	require.Equal(t, []string{"mounted-devices"}, advise().Unmended)
	require.Contains(t, advise().Text, "A move does not fix these findings: mounted-devices.")
}

// Advice, verdict and exit code agree for any disk and storage.
func TestAdviceFollowsTheVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts []boot.Partition
		for i := range rapid.IntRange(0, 4).Draw(t, "partitions") {
			lba := int64(i+1)*100000 + rapid.SampledFrom([]int64{0, 63, 64, 128, 352, 1696}).Draw(t, "residue")
			p := mbrPart(lba, lba+5000, false,
				rapid.SampledFrom([]volume.Kind{volume.NTFS, volume.Unknown, volume.Ext3}).Draw(t, "kind"))
			p.Volume.BlockSize = rapid.SampledFrom([]int64{0, 1024, 4096, 65536}).Draw(t, "block")
			p.Volume.DataStart = 512 * rapid.Int64Range(0, 300).Draw(t, "data")
			parts = append(parts, p)
		}
		l := disk255(rapid.SampledFrom([]*boot.Code{boot.Empty, windows2000, boot.Unknown}).Draw(t, "code"),
			parts...)
		c := align.Case{
			Boundary: align.BoundaryOf(4096 << rapid.IntRange(0, 8).Draw(t, "boundary")),
			Storage:  storage(t, rapid.SampledFrom(align.StorageNames()).Draw(t, "storage")),
		}
		if rapid.Bool().Draw(t, "refused") {
			c.Refusals = []align.Finding{{Code: "x"}}
		}
		a := align.For(l, c)
		want := []align.Action{align.Align, align.Optional}
		switch {
		case !align.Overall(l, c.Boundary).Off():
			want = []align.Action{align.Nothing, align.OtherBoundary}
		case len(c.Refusals) > 0:
			want = []align.Action{align.Refused}
		}
		require.Contains(t, want, a.Action, fmt.Sprint(a))
		require.NotEmpty(t, a.Text)
		require.NotNil(t, a.Unmended)
		if a.Action == align.Align || a.Action == align.OtherBoundary {
			require.Contains(t, []align.Gain{align.Some, align.High}, a.Gain)
		}
		require.False(t, c.Storage.Block == 512 && (a.Gain == align.Some || a.Gain == align.High))
	})
}

func TestAdviceOnTheCorpus(t *testing.T) {
	for _, path := range disktest.Fixtures(t) {
		l, err := layout.Read(disktest.Fixture(t, path), table.Geometry{})
		require.NoError(t, err)
		c := align.Case{Boundary: align.DefaultBoundary, Storage: align.Generic()}
		require.NotPanics(t, func() { align.For(l, c) })
	}
}
