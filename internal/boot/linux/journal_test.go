package linux_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// TestConfigurationInAJournal requires that a breaking offset is found in the file on disk, which GRUB reads, and in
// the file after the replay of the journal, which it reads the next time. An unreadable journal hides nothing of the
// disk, and causes a warning.
func TestConfigurationInAJournal(t *testing.T) {
	const harmless, breaks = "menuentry 'A' {\n\tchainloader (hd0,msdos1)+1\n}\n",
		"menuentry 'A' {\n\tchainloader (hd0)63+1\n}\n"
	for _, tc := range []struct {
		onDisk, inJournal string
		broken            bool // of the journal, so that the result of a replay is unknown
		want              int
	}{
		{harmless, harmless, false, 0},
		{breaks, harmless, false, 1},
		{harmless, breaks, false, 1},
		{breaks, breaks, false, 1},
		{harmless, breaks, true, 1}, // a warning about that
		{breaks, harmless, true, 2},
	} {
		dir := t.TempDir()
		img, content, script := filepath.Join(dir, "img"), filepath.Join(dir, "content"), filepath.Join(dir, "script")
		disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "1024", "-d",
			tree(t, map[string]string{"boot/grub/grub.cfg": tc.onDisk}), img, "4M")
		block := strings.TrimSpace(disktest.Output(t, "debugfs", "-R", "blocks /boot/grub/grub.cfg", img))
		text := tc.inJournal + strings.Repeat("\x00", 1024-len(tc.inJournal))
		require.NoError(t, os.WriteFile(content, []byte(text), 0o600))
		lines := fmt.Sprintf("set_inode_field /boot/grub/grub.cfg size %d\njournal_open\njournal_write -b %s %s\n"+
			"journal_close\n", max(len(tc.onDisk), len(tc.inJournal)), block, content)
		require.NoError(t, os.WriteFile(script, []byte(lines), 0o600))
		disktest.Run(t, "debugfs", "-w", "-f", script, img)
		raw := disktest.ReadFile(t, img)
		if at := strings.Index(string(raw), "\xc0\x3b\x39\x98\x00\x00\x00\x04"); tc.broken {
			require.Positive(t, at)
			raw[at] = 0
		}

		f := tableforge.NewMBR(1<<14, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 8192})
		f.Put(63*512, raw)
		issues := said(boottest.ReadGuest(t, boottest.GuestOf(t, f)))
		require.Len(t, issues, tc.want, "%v %v", tc, issues)
		require.Equal(t, tc.broken, slices.ContainsFunc(issues, func(i ondisk.Issue) bool {
			return i.Effect == ondisk.Warn && i.OnMove && strings.Contains(i.Text, "which may change it")
		}))
	}
}

const (
	journalStart = 63
	journalSize  = 20_000                // sectors
	journalCore  = journalStart + 19_600 // free space of the file system, where stages and core images go
)

// extWithJournal makes an ext4 whose journal holds some blocks unchanged, or is clean.
func extWithJournal(t *testing.T, block int, held ...int) []byte {
	t.Helper()
	img, dir := filepath.Join(t.TempDir(), "img"), t.TempDir()
	require.NoError(t, os.WriteFile(img, make([]byte, journalSize*512), 0o600))
	disktest.Run(t, "mke2fs", "-q", "-t", "ext4", "-b", fmt.Sprint(block), img)
	raw := disktest.ReadFile(t, img)
	if len(held) == 0 {
		return raw
	}
	var content []byte
	var list []string
	for _, n := range held {
		content, list = append(content, raw[n*block:(n+1)*block]...), append(list, fmt.Sprint(n))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "content"), content, 0o600))
	script := fmt.Sprintf("journal_open -c\njournal_write -b %s %s/content\njournal_close\n", strings.Join(list, ","),
		dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "script"), []byte(script), 0o600))
	disktest.Run(t, "debugfs", "-w", "-f", filepath.Join(dir, "script"), img)
	raw = disktest.ReadFile(t, img)
	return raw
}

// TestBootSectorUnderAJournal has loaders in an ext whose journal must be replayed. A journal holds whole blocks: with
// blocks of 4 KiB, boot sector and superblock are in one.
func TestBootSectorUnderAJournal(t *testing.T) {
	loaders := map[string]func(f forge.Bytes){
		"GRUB 2": func(f forge.Bytes) {
			grubforge.PutBoot(f, journalStart, journalCore)
			grubforge.PutCore(f, journalCore, list(journalCore+1, 9)...)
		},
		"GRUB legacy": func(f forge.Bytes) {
			s := grubforge.Stage2(journalCore)
			grubforge.PutStage1(f, journalStart, s)
			grubforge.PutStage(f, s)
		},
		"extlinux": func(f forge.Bytes) {
			f.Put(journalStart*512, []byte("\xeb\x58\x90SYSLINUX"))
			f.U32(journalStart*512+0x1c, journalStart)
			f.U16(journalStart*512+510, 0xaa55)
		},
	}
	of := func(block, lba int) int { return (lba - journalStart) * 512 / block }
	both := map[string]int{"GRUB 2": 1, "GRUB legacy": 1, "extlinux": 1}
	notExt := map[string]int{"GRUB 2": 1, "GRUB legacy": 1}
	for name, tc := range map[string]struct {
		fs      []byte
		hands   bool // the MBR code passes its position on
		refused map[string]int
		says    string
	}{
		"clean": {fs: extWithJournal(t, 4096)},
		"first block": {
			fs: extWithJournal(t, 4096, 0), refused: both,
			says: "transaction 1 holds its block 0",
		},
		"first block, not used": {
			fs: extWithJournal(t, 4096, 0), hands: true, refused: notExt,
			says: "holds its block 0",
		},
		"superblock alone": {fs: extWithJournal(t, 1024, 1)},
		"other blocks":     {fs: extWithJournal(t, 4096, 1, 2, 3, of(4096, journalCore)-1, of(4096, journalCore)+2)},
		"block of the core": {
			fs: extWithJournal(t, 4096, 3, of(4096, journalCore)), refused: notExt,
			says: fmt.Sprintf("holds its block %d", of(4096, journalCore)),
		},
		"unreadable": {fs: brokenJournal(t), refused: both, says: "ext journal superblock"},
	} {
		for loader, put := range loaders {
			f := tableforge.NewMBR(1<<16, tableforge.Slot{
				Type: 0x83, Flag: 0x80, Start: journalStart,
				Sectors: journalSize,
			})
			f.Put(journalStart*512, tc.fs)
			putLBACode(f)
			if tc.hands {
				// syslinux's own
				f.Put(0, []byte{0x33, 0xc0, 0xfa, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x7c, 0x89, 0xe6, 0x06, 0x57})
			}
			put(f)
			r := boottest.ReadGuest(t, boottest.GuestOf(t, f))
			refused, notes := 0, 0
			for _, i := range r.Issues {
				if i.Effect == ondisk.Note {
					require.Contains(t, i.Text, "the ext4 of partition 1 was in use when it was copied")
					notes++
					continue
				}
				refused++
				require.Equal(t, ondisk.Unbootable, i.Effect)
				require.Contains(t, i.Text, "a pending replay of the journal of partition 1")
				require.Contains(t, i.Text, tc.says)
				require.Equal(t, "shut the guest down cleanly first", i.Remedy)
			}
			require.Equal(t, tc.refused[loader], refused, "%s, %s: %v", name, loader, r.Issues)
			if open := name != "clean" && !tc.hands; open && refused == 0 {
				require.Equal(t, 1, notes, "%s, %s", name, loader)
			}
		}
	}
}

// brokenJournal has a journal without magic number.
func brokenJournal(t *testing.T) []byte {
	t.Helper()
	raw := extWithJournal(t, 4096, 7)
	at := strings.Index(string(raw), "\xc0\x3b\x39\x98\x00\x00\x00\x04")
	require.Positive(t, at)
	raw[at] = 0
	return raw
}
