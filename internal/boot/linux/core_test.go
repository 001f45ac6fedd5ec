package linux_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
)

// mkimage has grub-mkimage of Debian make a GRUB 2 with a prefix and commands of its own.
func mkimage(t *testing.T, format, prefix, commands string, modules ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	script, out := filepath.Join(dir, "load.cfg"), filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(script, []byte(commands), 0o600))
	args := append([]string{"-O", format, "-o", out, "-p", prefix, "-c", script}, modules...)
	disktest.Run(t, "grub-mkimage", args...)
	return disktest.ReadFile(t, out)
}

// configured returns where the loaders of a disk look for their configuration.
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

// The commands and the prefix that are built into core.img are those that grub-mkimage was given.
func TestConfigurationInCoreImage(t *testing.T) {
	t.Parallel()
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

// A core image that is cut off or damaged names no place, and takes neither memory nor time: the usual places are
// searched.
func TestDamagedCoreImage(t *testing.T) {
	t.Parallel()
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

// Whatever byte of a core image is another one, it ends, and something is searched for the configuration.
func TestChangedCoreImage(t *testing.T) {
	t.Parallel()
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

// Core images of other builds are read, too.
func TestConfigurationInCoreImagesOfTheCorpus(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"grub214.core", "lfs.core", "ubuntu1604.core"} {
		core := disktest.ReadFile(t, disktest.Corpus(t, "loaders/grub2/"+path))
		found := configured(t, withCore(append(core, make([]byte, 512)...)))
		require.Len(t, found, 1, path)
		require.False(t, found[0].Anywhere, path)
		require.NotEmpty(t, found[0].Prefix, path)
	}
}

// A GRUB of UEFI has its modules in a section; other programs have none.
func TestConfigurationInEFIProgram(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
