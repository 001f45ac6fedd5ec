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
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// TestConfigurationInAJournal finds a place that a move breaks in the file as the disk has it, which GRUB reads, and in
// the one that the replay of the journal brings, which it reads the next time. A journal that is not understood hides
// nothing of the disk, and there is a warning of what it may bring.
func TestConfigurationInAJournal(t *testing.T) {
	t.Parallel()
	const harmless, breaks = "menuentry 'A' {\n\tchainloader (hd0,msdos1)+1\n}\n",
		"menuentry 'A' {\n\tchainloader (hd0)63+1\n}\n"
	for _, tc := range []struct {
		onDisk, inJournal string
		broken            bool // the journal, so that it is not known what a replay brings
		want              int
	}{
		{harmless, harmless, false, 0},
		{breaks, harmless, false, 1},
		{harmless, breaks, false, 1},
		{breaks, breaks, false, 1},
		{harmless, breaks, true, 1}, // a warning that it may
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
			"journal_close\n",
			max(len(tc.onDisk), len(tc.inJournal)), block, content)
		require.NoError(t, os.WriteFile(script, []byte(lines), 0o600))
		disktest.Run(t, "debugfs", "-w", "-f", script, img)
		raw := disktest.ReadFile(t, img)
		if at := strings.Index(string(raw), "\xc0\x3b\x39\x98\x00\x00\x00\x04"); tc.broken {
			require.Positive(t, at)
			raw[at] = 0
		}

		f := tableforge.NewMBR(1<<14, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 8192})
		f.Put(63*512, raw)
		d := boottest.Disk(f)
		tab, parts := boottest.Partitions(t, d)
		issues := said(boottest.ReadGuest(t, boottest.Guest(d, tab, parts)))
		require.Len(t, issues, tc.want, "%v %v", tc, issues)
		require.Equal(t, tc.broken, slices.ContainsFunc(issues, func(i ondisk.Issue) bool {
			return i.Effect == ondisk.Warn && i.OnMove && strings.Contains(i.Text, "which may change it")
		}))
	}
}
