package linux_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

const endless = 1<<64 - 1

// grubDisk has a partition of 3000 sectors at LBA 63 and one of 500 at LBA 3500.
func grubDisk() forge.Bytes {
	return tableforge.NewMBR(4096, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 3000},
		tableforge.Slot{Type: 0x83, Start: 3500, Sectors: 500})
}

// inMBR is boot.img in the MBR; core.img begins at LBA first.
func inMBR(first uint64, entries ...grubforge.Entry) forge.Bytes {
	f := grubDisk()
	grubforge.PutBoot(f, 0, first)
	if first > 0 && first < 4000 {
		grubforge.PutCore(f, int64(first), entries...)
	}
	return f
}

// list is a block list of runs: start and sectors alternately.
func list(numbers ...uint64) (out []grubforge.Entry) {
	for i := 0; i < len(numbers); i += 2 {
		out = append(out, grubforge.Entry{Start: numbers[i], Sectors: uint16(numbers[i+1])})
	}
	return out
}

// grubRef is an expected reference.
type grubRef struct {
	kind       string
	stored     int
	off        int64 // relative to the partition, or to the disk
	sector     int64
	target     int
	unwritable bool
}

func grubRefs(r *boot.Result) []grubRef {
	var out []grubRef
	for _, x := range r.Refs {
		out = append(out, grubRef{x.Kind, x.Partition, x.Off, x.Points / 512, x.Target, x.Encode == nil})
	}
	return out
}

func issuesOf(r *boot.Result) (partitions []int) {
	for _, i := range boottest.But(r, boottest.Unseen) {
		partitions = append(partitions, i.Partition)
	}
	return partitions
}

// GRUB 2 survives a move if everything that it reads by LBA is in the gap, which stays, or can be rewritten.
func TestGrub2(t *testing.T) {
	const core, entry1, entry2 = "grub2 core image", "grub2 block list entry 1", "grub2 block list entry 2"
	for _, tc := range []struct {
		name   string
		first  uint64
		list   []grubforge.Entry
		want   []grubRef
		issues []int // partitions whose move matters; 0: any
	}{
		{"core.img in the gap", 1, list(2, 50), nil, nil},
		{"core.img up to the last sector of the gap", 1, list(2, 61), nil, nil},
		{"one sector too long", 1, list(2, 62), nil, []int{0}},
		{"list of nothing", 1, nil, nil, nil},
		{
			"list that goes on in the partition", 1, list(2, 5, 70, 10),
			[]grubRef{{entry2, 0, 512 + 0x1e8, 70, 1, false}},
			nil,
		},
		{
			"core.img in the partition", 100, list(101, 10, 120, 3),
			[]grubRef{
				{core, 0, 0x5c, 100, 1, false},
				{entry1, 1, 37*512 + 0x1f4, 101, 1, false},
				{entry2, 1, 37*512 + 0x1e8, 120, 1, false},
			},
			nil,
		},
		{
			"core.img in two partitions", 100, list(3500, 500),
			[]grubRef{{core, 0, 0x5c, 100, 1, false}, {entry1, 1, 37*512 + 0x1f4, 3500, 2, false}},
			nil,
		},
		{"first sector of a partition", 63, list(64, 1), []grubRef{
			{core, 0, 0x5c, 63, 1, false},
			{entry1, 1, 0x1f4, 64, 1, false},
		}, nil},
		{
			"entry over the end of the partition", 100, list(3060, 4),
			[]grubRef{{core, 0, 0x5c, 100, 1, false}},
			[]int{0},
		},
		{"entry over its start", 100, list(62, 2), []grubRef{{core, 0, 0x5c, 100, 1, false}}, []int{0}},
		{"entry in a later gap", 100, list(3100, 4), []grubRef{{core, 0, 0x5c, 100, 1, false}}, []int{0}},
		{"core.img in a later gap", 3100, list(3101, 10), nil, []int{0}},
		{"core.img behind the partitions", 4000, nil, nil, []int{0}},
		{"core.img at LBA 0", 0, nil, nil, []int{0}},
		{"core.img behind the disk", 4096, nil, nil, []int{0}},
		{"core.img at LBA 2^64-1", endless, nil, nil, []int{0}},
		{"list that names LBA 2^64-1", 1, list(endless, 1), nil, []int{0}},
		{"list of more sectors than the disk has", 1, list(4000, 1000), nil, []int{0}},
		{"list of more sectors than memory has", 100, list(101, 1216), nil, []int{0}},
		{"list of 65535 sectors", 1, list(2, 65535), nil, []int{0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := boottest.Read(t, inMBR(tc.first, tc.list...))
			require.Equal(t, linux.V2, r.Code)
			require.Equal(t, tc.want, grubRefs(r))
			require.Equal(t, tc.issues, issuesOf(r))
			for _, i := range boottest.But(r, boottest.Unseen) {
				require.Equal(t, "grub2", i.Code)
			}
		})
	}
}

// Code that does not read such a list is not patched, anywhere.
func TestGrub2OfAnUnknownBuild(t *testing.T) {
	const core = 100 * 512
	endlessList := func(f forge.Bytes) {
		f = f[core:]
		for at := int64(grubforge.FirstEntry); at > 0x120; at -= grubforge.EntrySize {
			f.U64(at, 101)
			f.U16(at+8, 1)
			f.U16(at+10, uint16(0x820+(grubforge.FirstEntry-at)/grubforge.EntrySize*32))
		}
	}
	for name, change := range map[string]func(forge.Bytes){
		"boot.img loads elsewhere":         func(f forge.Bytes) { f.U16(grubforge.KernelAddress, 0x2000) },
		"boot.img reads another field":     func(f forge.Bytes) { f.U16(0xbf, 0x7db0) }, // boot_hybrid.img
		"another list":                     func(f forge.Bytes) { f.U16(core+9, 0x81f8) },
		"entries of another size":          func(f forge.Bytes) { f.U8(core+0xf4, 8) },
		"another place to jump to":         func(f forge.Bytes) { f.U16(core+0x101, 0x2200) },
		"no texts":                         func(f forge.Bytes) { f.Text(core+0x129, "Gram") },
		"a first entry for another memory": func(f forge.Bytes) { f.U16(core+0x1fe, 0x800) },
		"a hole in memory":                 func(f forge.Bytes) { f.U16(core+0x1f2, 0x841) },
		"a list without an end":            endlessList,
		"zeros":                            func(f forge.Bytes) { clear(f[core:][:512]) },
	} {
		t.Run(name, func(t *testing.T) {
			f := inMBR(100, list(101, 1, 110, 4)...)
			require.Len(t, boottest.Read(t, f).Refs, 3)
			change(f)
			r := boottest.Read(t, f)
			require.Empty(t, r.Refs)
			require.Equal(t, []int{0}, issuesOf(r))
			require.Equal(t, "grub2", r.Issues[0].Code)
		})
	}
}

// A boot sector of a partition has the same fields. Two boot sectors with the same core.img share its list.
func TestGrub2InBootSectors(t *testing.T) {
	f := inMBR(100, list(101, 10)...)
	grubforge.PutBoot(f, 3500, 100)
	r := boottest.Read(t, f)
	require.Empty(t, boottest.But(r, boottest.Unseen))
	require.Equal(t, []grubRef{
		{"grub2 core image", 0, 0x5c, 100, 1, false},
		{"grub2 block list entry 1", 1, 37*512 + 0x1f4, 101, 1, false},
		{"grub2 core image", 2, 0x5c, 100, 1, false},
	}, grubRefs(r))
	require.Equal(t, []boot.Link{
		{Partition: 0, Text: "GRUB 2 in the MBR loads core.img from LBA 100, inside partition 1"},
		{Partition: 1, Text: "core.img of GRUB 2 lies in partition 1"},
		{
			Partition: 2,
			Text:      "GRUB 2 in the boot sector of partition 2 loads core.img from LBA 100, inside partition 1",
		},
		{Partition: 1, Text: "core.img of GRUB 2 lies in partition 1"},
	}, r.Chain)
}

// The first sector of a logical partition moves with it. That of an extended one is a record of the table.
func TestGrub2InLogicalAndExtendedPartitions(t *testing.T) {
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 5, Start: 63, Sectors: 7000})
	tableforge.PutEBR(f, 63, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 6000}, tableforge.Slot{})
	grubforge.PutBoot(f, 126, 200)
	grubforge.PutCore(f, 200, list(201, 10)...)
	r := boottest.Read(t, f)
	require.Empty(t, r.Issues)
	require.Equal(t, []grubRef{
		{"grub2 core image", 5, 0x5c, 200, 5, false},
		{"grub2 block list entry 1", 5, 74*512 + 0x1f4, 201, 5, false},
	}, grubRefs(r))

	grubforge.PutCore(f, 100)
	grubforge.PutBoot(f, 126, 100)
	require.Equal(t, []int{0}, issuesOf(boottest.Read(t, f)), "between two records is no partition")

	clear(f[126*512:][:512])
	for core, want := range map[uint64][]int{1: nil, 200: {5}} {
		table := bytes.Clone(f[63*512+440:][:72])
		grubforge.PutBoot(f, 63, core)
		f.Put(63*512+440, table)
		grubforge.PutCore(f, int64(core))
		require.Equal(t, want, issuesOf(boottest.Read(t, f)))
	}
}

// A file system with checksums considers a rewritten sector damaged, except in the space for boot loaders.
func TestGrub2InBtrfs(t *testing.T) {
	f := inMBR(100, list(101, 10)...)
	grubforge.PutCore(f, 2500, list(2501, 10)...)
	read := func() *boot.Result {
		d := boottest.Disk(f)
		tab, parts := boottest.Partitions(t, d)
		parts[0].Volume = &volume.Volume{Kind: volume.Btrfs}
		r := boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
		return r
	}
	r := read()
	require.Empty(t, boottest.But(r, boottest.Unseen))
	require.Len(t, r.Refs, 2)

	f.U64(grubforge.KernelSector, 2500)
	r = read()
	require.Equal(t, []int{1}, issuesOf(r))
	require.Equal(t, []grubRef{
		{"grub2 core image", 0, 0x5c, 2500, 1, false},
		{"grub2 block list entry 1", 1, 2437*512 + 0x1f4, 2501, 1, true},
	}, grubRefs(r))
}

// GRUB counts sectors of 512 bytes, and cannot boot from others.
func TestGrub2OnLargeSectors(t *testing.T) {
	f := inMBR(100, list(101, 10)...)
	tab, parts := boottest.Partitions(t, boottest.Disk(f))
	d := boottest.DiskOf(f, 4096)
	r := boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
	require.Empty(t, r.Refs)
	require.Equal(t, []int{0}, issuesOf(r))
}

// A partition entry can extend past the end of the disk.
func TestGrub2BehindTheDisk(t *testing.T) {
	f := inMBR(5000)
	tableforge.PutSlot(f, 0, 0, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 100_000})
	d := boottest.Disk(f)
	tab, err := table.Read(d)
	require.NoError(t, err)
	var parts []boot.Partition
	for _, p := range tab.Partitions {
		parts = append(parts, boot.Partition{Partition: p, Volume: &volume.Volume{Kind: volume.Unknown}})
	}
	r := boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
	require.Empty(t, r.Refs)
	require.Equal(t, []int{0}, issuesOf(r))
}

// Debian's own images, with the lists of grub-mkimage.
func TestGrub2OfDebian(t *testing.T) {
	const dir = "/usr/lib/grub/i386-pc/"
	read := func(name string) forge.Bytes {
		b := disktest.ReadFile(t, disktest.DataFile(t, dir+name))
		return b
	}
	f := grubDisk()
	img, core := read("boot.img"), read("diskboot.img")
	f.Put(0, img[:440])
	f.U64(grubforge.KernelSector, 100)
	f.Put(100*512, core)
	require.Equal(t, uint64(2), binary.LittleEndian.Uint64(core[grubforge.FirstEntry:]), "what comes from the package")
	f.U64(100*512+grubforge.FirstEntry, 101)
	f.U16(100*512+grubforge.FirstEntry+8, 77)
	r := boottest.Read(t, f)
	require.Empty(t, r.Issues)
	require.Equal(t, []grubRef{
		{"grub2 core image", 0, 0x5c, 100, 1, false},
		{"grub2 block list entry 1", 1, 37*512 + 0x1f4, 101, 1, false},
	}, grubRefs(r))

	f.Put(0, read("boot_hybrid.img")[:440]) // keeps the sector number at another place
	r = boottest.Read(t, f)
	require.Empty(t, r.Refs)
	require.Equal(t, []int{0}, issuesOf(r))
}

// The field holds a whole sector number, never a wrapped one.
func TestGrub2Encode(t *testing.T) {
	r := boottest.Read(t, inMBR(100)).Refs[0]
	require.Equal(t, []disk.Range{{Off: 0x5c, Len: 8}}, r.At)
	b, err := r.Encode(r.Raw, 2048*512)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 8, 0, 0, 0, 0, 0, 0}, b)
	b, err = r.Encode(r.Raw, 1<<42)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 0, 2, 0, 0, 0}, b)
	for _, to := range []int64{0, -512, 513} {
		_, err = r.Encode(r.Raw, to)
		require.Error(t, err)
	}
}

// mkimage makes a GRUB 2 with Debian's grub-mkimage, with its own prefix and commands.
func mkimage(t *testing.T, format, prefix, commands string, modules ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	script, out := filepath.Join(dir, "load.cfg"), filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(script, []byte(commands), 0o600))
	args := append([]string{"-O", format, "-o", out, "-p", prefix, "-c", script}, modules...)
	disktest.Run(t, "grub-mkimage", args...)
	return disktest.ReadFile(t, out)
}

// configured returns where the loaders of a disk search their configuration.
func configured(t *testing.T, b []byte) []boot.Config {
	t.Helper()
	g := boottest.GuestOf(t, b)
	_, err := layout.ReadBoot(g)
	require.NoError(t, err)
	return g.Configs()
}

// withCore is a disk whose MBR loads a core image from the gap.
func withCore(core []byte) []byte {
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0x83, Start: 2048, Sectors: 2000})
	grubforge.PutBoot(f, 0, 1)
	grubforge.PutCore(f, 1, grubforge.Entry{Start: 2, Sectors: uint16((len(core) - 1) / 512)})
	f.Put(2*512, core[512:])
	return f
}

// The embedded commands and the prefix of core.img are those given to grub-mkimage.
func TestConfigurationInCoreImage(t *testing.T) {
	const commands = "search.fs_uuid 4a3bb3bd-6a46-4d37-8f21-0f2d2ac5c7e1 root hd0,msdos1\n" +
		"set prefix=($root)'/boot/grub'\n"
	for prefix, modules := range map[string][]string{
		"(,msdos1)/boot/grub":   {"biosdisk", "part_msdos", "ext2"},
		"(hd0,gpt2)/grub":       {"biosdisk", "part_gpt", "fat", "xfs", "btrfs", "lvm", "normal", "search_fs_uuid"},
		"(lvmid/a/b)/boot/grub": {"biosdisk", "normal"},
	} {
		found := configured(t, withCore(mkimage(t, "i386-pc", prefix, commands, modules...)))
		require.Len(t, found, 1)
		require.Equal(t, prefix, found[0].Prefix)
		require.Equal(t, commands, strings.TrimRight(found[0].Script, "\n")+"\n")
		require.False(t, found[0].Anywhere)
	}
}

// A truncated or damaged core image gives no place, and needs neither much memory nor time: the usual places are
// searched.
func TestDamagedCoreImage(t *testing.T) {
	core := mkimage(t, "i386-pc", "(,msdos1)/boot/grub", "", "biosdisk")
	for name, damage := range map[string]func(b []byte) []byte{
		"cut off":            func(b []byte) []byte { return b[:len(b)/2] },
		"4 GiB uncompressed": func(b []byte) []byte { copy(b[512+12:], "\xff\xff\xff\xff"); return b },
		"8 MiB uncompressed": func(b []byte) []byte { copy(b[512+12:], "\x00\x00\x80\x00"); return b },
		"nothing":            func(b []byte) []byte { clear(b[512:]); return b },
		"another decompressor": func(b []byte) []byte {
			return []byte(strings.ReplaceAll(string(b), "\xbf\x00\x00\x10", "\xbf\x00\x00\x20"))
		},
		"compressed beyond it":   func(b []byte) []byte { copy(b[512+8:], "\xff\xff\xff\x7f"); return b },
		"bytes that are changed": func(b []byte) []byte { clear(b[10_000:12_000]); return b },
	} {
		found := configured(t, withCore(damage([]byte(string(core)))))
		require.Len(t, found, 1, name)
		require.True(t, found[0].Anywhere, name)
		require.Contains(t, found[0].Paths, "boot/grub/grub.cfg", name)
	}
}

// With any changed byte in a core image, decoding ends, and some place is searched for the configuration.
func TestChangedCoreImage(t *testing.T) {
	core := mkimage(t, "i386-pc", "(,msdos1)/boot/grub", "set x=y\n", "biosdisk")
	for i := range disktest.Sample(300) {
		dice := rand.New(rand.NewPCG(1, uint64(i)))
		b := []byte(string(core))
		for range 1 + dice.IntN(4) {
			b[512+dice.IntN(len(b)-512)] = byte(dice.Uint32())
		}
		require.Len(t, configured(t, withCore(b)), 1, i)
	}
}

// Core images of other builds can be read, too.
func TestConfigurationInCoreImagesOfTheCorpus(t *testing.T) {
	for _, path := range []string{"grub214.core", "lfs.core", "ubuntu1604.core"} {
		core := disktest.ReadFile(t, disktest.Corpus(t, "loaders/grub2/"+path))
		found := configured(t, withCore(append(core, make([]byte, 512)...)))
		require.Len(t, found, 1, path)
		require.False(t, found[0].Anywhere, path)
		require.NotEmpty(t, found[0].Prefix, path)
	}
}

// A GRUB for UEFI has its modules in a section; other programs have none.
func TestConfigurationInEFIProgram(t *testing.T) {
	const commands = "search.fs_uuid 1234-ABCD root\nset prefix=($root)'/grub'\n"
	dir := t.TempDir()
	esp := filepath.Join(dir, "esp")
	disktest.Run(t, "mkfs.fat", "-C", "-F", "16", "-s", "2", esp, "8192")
	for name, content := range map[string][]byte{
		"grubx64.efi": mkimage(t, "x86_64-efi", "/EFI/debian", commands, "part_gpt", "fat"),
		"shimx64.efi": []byte("MZ" + strings.Repeat("\x00", 4000)),
		"short.efi":   []byte("MZ"),
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		if name == "grubx64.efi" {
			disktest.Run(t, "mmd", "-i", esp, "::EFI", "::EFI/debian")
		}
	}
	for _, name := range []string{"grubx64.efi", "shimx64.efi", "short.efi"} {
		disktest.Run(t, "mcopy", "-i", esp, filepath.Join(dir, name), "::EFI/debian/"+name)
	}
	f := tableforge.NewMBR(20480, tableforge.Slot{Type: 0xef, Start: 63, Sectors: 16384})
	f.Put(63*512, disktest.ReadFile(t, esp))
	found := configured(t, f)
	require.Len(t, found, 1)
	require.Equal(t, boot.Config{
		Loader: `GRUB 2 in \EFI\debian\grubx64.efi of partition 1`, Syntax: boot.GRUB2, Home: 1,
		Script: commands + "\n", Prefix: "/EFI/debian", Paths: []string{"EFI/debian/grub.cfg"},
	}, found[0])
}

// grub-mkstandalone puts the configuration into an archive in the program.
func TestConfigurationInMemoryDisk(t *testing.T) {
	dir := t.TempDir()
	cfg, out := filepath.Join(dir, "grub.cfg"), filepath.Join(dir, "core")
	require.NoError(t, os.WriteFile(cfg, []byte("chainloader (hd0)2048+1\n"), 0o600))
	disktest.Run(t, "grub-mkstandalone", "-O", "i386-pc", "-o", out,
		"--install-modules=biosdisk part_msdos normal memdisk tar",
		"--modules=biosdisk part_msdos", "--locales=", "--fonts=", "--themes=", "boot/grub/grub.cfg="+cfg)
	found := configured(t, withCore(disktest.ReadFile(t, out)))
	require.Len(t, found, 1)
	require.Contains(t, found[0].Script, "chainloader (hd0)2048+1")
	require.Empty(t, found[0].Why)
}
