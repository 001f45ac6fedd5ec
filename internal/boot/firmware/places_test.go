package firmware_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// The first bytes of loaders, as mkimage of U-Boot 2023.01 writes them: -T rksd -n rk3399, -n rk3568, -T sunxi_egon,
// -T imximage, -T omapimage, -T stm32image.
const (
	rk3399 = "\x3b\x8c\xdc\xfc\xbe\x9f\x9d\x51\xeb\x30\x34\xce"
	rk3568 = "RKNS\x00\x00\x00\x00\x80\x01\x02\x00"
	egon   = "\x16\x00\x00\xeaeGON.BT0"
	imx    = "\xd1\x00\x20\x40\x00\x00\x80\x87"
	omap   = "\x40\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00CHSETTINGS"
	stm32  = "STM2\x00\x00\x00\x00"
	fitOf  = "\xd0\x0d\xfe\xed\x00\x10\x00\x00"
)

// board is a GPT with a loader in a partition at LBA first, with its magic number at LBA at, and an XFS after it.
func board(name string, first, at int64, magic string) forge.Bytes {
	f := tableforge.NewGPT(512, 40_000, 128,
		tableforge.GPTEntry{Name: name, First: uint64(first), Last: uint64(first) + 999},
		tableforge.GPTEntry{Name: "root", First: 30_001, Last: 38_000})
	f.Text(at*512, magic)
	volumeforge.PutXFS(f, 30_001, 8000)
	return f
}

// read returns the partitions of a disk with the reason why each must stay, and the boot chain.
func readBoard(t *testing.T, b []byte) ([]boot.Partition, *boot.Result) {
	t.Helper()
	d := boottest.Disk(b)
	tab, parts := boottest.Partitions(t, d)
	for i, p := range parts {
		var err error
		parts[i].Fixed, err = firmware.FixedPlace(d, p, parts)
		require.NoError(t, err)
	}
	return parts, boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
}

// A partition that a boot ROM or loader reads by sector must stay, by the magic number at that sector. Positions: see
// firmware.places.
func TestFixedPlaces(t *testing.T) {
	for name, tc := range map[string]struct {
		first, at int64
		magic     string
		says      string
	}{
		"Rockchip":                  {64, 64, rk3399, "Rockchip"},
		"Rockchip RK3568":           {64, 64, rk3568, "Rockchip"},
		"Rockchip, inside":          {40, 64, rk3399, "byte 12288 of the partition"},
		"Rockchip loader2":          {16384, 16384, fitOf, "LBA 16384"},
		"Rockchip trust":            {24576, 24576, "BL3X", "LBA 24576"},
		"Allwinner at 128 KiB":      {256, 256, egon, "Allwinner"},
		"Allwinner at 256 KiB":      {300, 512, egon, "Allwinner"},
		"Allwinner, secure":         {256, 256, "TOC0.GLH", "Allwinner"},
		"i.MX 8M at 33 KiB":         {66, 66, imx, "i.MX"},
		"i.MX 8M at 32 KiB":         {64, 64, imx, "i.MX"},
		"U-Boot of i.MX 6":          {138, 138, "\x27\x05\x19\x56", "LBA 138"},
		"TI at 128 KiB":             {256, 256, omap, "TI"},
		"TI at 384 KiB":             {768, 768, omap, "TI"},
		"U-Boot of TI":              {768, 768, "\x27\x05\x19\x56", "LBA 768"},
		"SiFive":                    {2082, 2082, fitOf, "LBA 2082"},
		"Rockchip, another place":   {66, 66, rk3399, ""},
		"Rockchip, one byte of it":  {64, 64, rk3399[1:], ""},
		"Allwinner, another offset": {256, 256, egon[4:], ""},
		"TI, another place":         {1024, 1024, omap, ""},
		"zeros":                     {64, 64, "", ""},
	} {
		parts, r := readBoard(t, board("x", tc.first, tc.at, tc.magic))
		require.Empty(t, parts[1].Fixed, name)
		notes := boottest.Issues(r, "fixed-place")
		if tc.says == "" {
			require.Empty(t, parts[0].Fixed, name)
			continue
		}
		require.Contains(t, parts[0].Fixed, tc.says, name)
		require.Len(t, notes, 1, name)
		require.Equal(t, ondisk.Note, notes[0].Effect, name)
		require.Equal(t, 1, notes[0].Partition, name)
		require.True(t, r.Boots(1), name)
	}
	parts, _ := readBoard(t, board("fsbl1", 34, 34, stm32))
	require.Contains(t, parts[0].Fixed, "STM32MP1")
	parts, _ = readBoard(t, board("data", 34, 34, stm32))
	require.Empty(t, parts[0].Fixed)
}

// A file system is no loader, for any data at the position.
func TestFileSystemAtAFixedPlace(t *testing.T) {
	f := tableforge.NewGPT(512, 40_000, 128, tableforge.GPTEntry{First: 40, Last: 9000})
	volumeforge.PutXFS(f, 40, 8000)
	f.Text(64*512, rk3399)
	parts, r := readBoard(t, f)
	require.Empty(t, parts[0].Fixed)
	require.Empty(t, boottest.Issues(r, "fixed-place"))
}

// A loader outside partitions must stay in place, and a plan that would overwrite it is refused.
func TestLoaderInAGap(t *testing.T) {
	f := tableforge.NewGPT(512, 40_000, 128, tableforge.GPTEntry{First: 63, Last: 16_000},
		tableforge.GPTEntry{First: 20_000, Last: 38_000})
	f.Text(16384*512, fitOf)
	_, r := readBoard(t, f)
	require.Len(t, r.Fixed, 1)
	require.Equal(t, disk.Range{Off: 16384 * 512, Len: 512}, r.Fixed[0].Range)
	require.Equal(t, ondisk.Unbootable, r.Fixed[0].Issue.Effect)
	require.Contains(t, r.Fixed[0].Issue.Text, "LBA 16384")
}

// alone is a GPT with one partition.
func alone(text string) forge.Bytes {
	f := tableforge.NewGPT(512, 40_000, 128, tableforge.GPTEntry{First: 64, Last: 99})
	f.Text(64*512, text)
	return f
}

// esp is the type of an EFI system partition. Spec: UEFI 2.10, 5.3.3, in the byte order of the disk.
const esp = "\x28\x73\x2a\xc1\x1f\xf8\xd2\x11\xba\x4b\x00\xa0\xc9\x3e\xc9\x3b"

// behind is a GPT with unknown content from an LBA on, after an XFS in a partition of a type; empty: basic data.
func behind(first uint64, guid string) forge.Bytes {
	const sectors, xfs = 100_000, 1001
	f := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: first, Last: first + 999},
		tableforge.GPTEntry{First: xfs, Last: xfs + 8000})
	f.Text(int64(first)*512, "something")
	volumeforge.PutXFS(f, xfs, 8000)
	for header, entries := range map[int64]int64{1: 2, sectors - 1: sectors - 33} {
		f.Text(entries*512+128, guid)
		tableforge.SealGPT(f, header*512, 512)
	}
	return f
}

// A partition that may be read by position causes a warning if it moves: by its name, and by unknown content on a disk
// that no PC boots.
func TestDoubtfulPlaces(t *testing.T) {
	code := func(f forge.Bytes) forge.Bytes { f.Put(0, boottest.Code("fa eb fe")); return f }
	for name, tc := range map[string]struct {
		image forge.Bytes
		warns bool
	}{
		"by its name":                   {board("loader1", 64, 64, "something"), true},
		"by its name, with code":        {code(board("uboot", 64, 64, "something")), true},
		"by its place":                  {board("x", 64, 64, "something"), true},
		"a PC":                          {code(board("x", 64, 64, "something")), false},
		"empty":                         {board("loader1", 64, 64, ""), false},
		"empty, far behind":             {board("x", 20_000, 20_000, ""), false},
		"beyond 32 MiB":                 {behind(80_000, ""), true},
		"beyond 32 MiB, a PC":           {code(behind(80_000, "")), false},
		"without a file system":         {alone("something"), true},
		"a disk of zeros":               {alone(""), false},
		"behind the last file system":   {behind(20_000, ""), true},
		"behind that of a PC":           {code(behind(20_000, "")), false},
		"behind that of an UEFI system": {behind(20_000, esp), false},
	} {
		_, r := readBoard(t, tc.image)
		issues := boottest.Issues(r, "fixed-place")
		if !tc.warns {
			require.Empty(t, issues, name)
			continue
		}
		require.Len(t, issues, 1, name)
		require.Equal(t, ondisk.Warn, issues[0].Effect, name)
		require.True(t, issues[0].OnMove, name)
		require.Equal(t, 1, issues[0].Partition, name)
	}
}

// Data outside partitions may be a loader if an unnamed partition may be one.
func TestDoubtfulPlacesOfNoPartition(t *testing.T) {
	code := func(f forge.Bytes) forge.Bytes { f.Put(0, boottest.Code("fa eb fe")); return f }
	for name, tc := range map[string]struct {
		image forge.Bytes
		at    int64 // sectors
		may   bool
	}{
		"between partitions":           {behind(20_000, ""), 19_000, true},
		"beyond 32 MiB":                {behind(80_000, ""), 79_000, true},
		"a PC":                         {code(behind(20_000, "")), 19_000, false},
		"behind all of an UEFI system": {behind(20_000, esp), 19_000, false},
	} {
		_, r := readBoard(t, tc.image)
		require.Equal(t, tc.may, r.ByPlace.Overlaps(disk.Range{Off: tc.at * 512, Len: 512}), name)
	}
}

// Ventoy checks that its second partition directly follows the first, which starts at LBA 2048. Source: ventoy_cmd.c,
// ventoy_check_official_device.
func TestVentoy(t *testing.T) {
	ventoy := func(first, gap uint64, label string) []boot.Partition {
		f := tableforge.NewGPT(512, 100_000, 128, tableforge.GPTEntry{Name: "Ventoy", First: first, Last: first + 9008},
			tableforge.GPTEntry{Name: label, First: first + 9009 + gap, Last: first + 9009 + gap + 65_535})
		parts, _ := readBoard(t, f)
		return parts
	}
	parts := ventoy(2048, 0, "VTOYEFI")
	require.Contains(t, parts[0].Fixed, "Ventoy")
	require.Contains(t, parts[1].Fixed, "Ventoy")
	for _, parts := range [][]boot.Partition{
		ventoy(2049, 0, "VTOYEFI"), ventoy(2048, 1, "VTOYEFI"), ventoy(2048, 0, "data"),
	} {
		require.Empty(t, parts[0].Fixed+parts[1].Fixed)
	}
}

// A system that is encrypted as a whole could not be decrypted at other sectors: no flag lets it move.
func TestEncryptedSystems(t *testing.T) {
	signs := []byte{0x69, 0xa6, 0x34, 0x14, 0x46, 0xda, 0x69, 0x72}
	for name, c := range map[string]struct {
		put  func(f forge.Bytes)
		code *boot.Code
		says string
	}{
		"TrueCrypt": {
			func(f forge.Bytes) { f.Text(0, "\xea\x1e\x7c\x00\x00 TrueCrypt Boot Loader\r\n") },
			boot.Named("truecrypt"), "TrueCrypt",
		},
		"VeraCrypt": {
			func(f forge.Bytes) { f.Text(0, "\xea\x1e\x7c\x00\x00 VeraCrypt Boot Loader\r\n") },
			boot.Named("veracrypt"), "VeraCrypt",
		},
		"PGP":      {func(f forge.Bytes) { f.Text(0, "\xeb\x48\x90PGPGUARD") }, boot.Named("pgp"), "PGP"},
		"SafeBoot": {func(f forge.Bytes) { f.Text(0, "\xeb\x3c\x90SafeBoot") }, boot.Named("safeboot"), "SafeBoot"},
		"DiskCryptor, in the first track": {func(f forge.Bytes) {
			f.Text(0, "\xfa\x01\x02")
			f.Put(5*512+77, signs)
		}, boot.Unknown, "DiskCryptor"},
		"DiskCryptor, at the end of the disk": {func(f forge.Bytes) {
			f.Text(0, "\xfa\x01\x02")
			f.Put(int64(len(f))-20*512+7, signs)
		}, boot.Unknown, "DiskCryptor"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 7, Flag: 0x80, Start: 63, Sectors: 4000})
			c.put(f)
			f.U32(tableforge.MBRSignature, 7)
			r := boottest.Read(t, f)
			require.Equal(t, c.code, r.Code)
			require.Len(t, r.Issues, 1)
			require.Equal(t, "encrypted-system", r.Issues[0].Code)
			require.Equal(t, ondisk.Refuse, r.Issues[0].Effect)
			require.True(t, r.Issues[0].OnMove)
			require.Contains(t, r.Issues[0].Text, c.says)
			require.NotContains(t, r.Issues[0].Remedy, "--allow-unbootable")
		})
	}
}
