package main

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// windowsDisk is the disk of a Windows, with its real files where these matter.
type windowsDisk struct {
	signature uint32
	sectors   int64
	gpt       bool
	volumes   []windowsVolume // by number of the partition; 4 and others without a kind are extended
}

// windowsVolume is a partition of it.
type windowsVolume struct {
	number         int
	kind           string // of mkntfs or mkfs.fat; empty: nothing, such as in an extended partition
	typ            string
	start, sectors int64
	loads          string            // what the boot sector of the active partition loads
	files          map[string]string // path on the volume to path on this machine
}

// make builds the disk as a raw file.
func (d windowsDisk) make(t testing.TB) string {
	t.Helper()
	raw := disktest.Blank(t, "source.raw", d.sectors*sectorSize)
	disktest.RunInput(t, d.table(), "sfdisk", "--quiet", raw)
	for _, v := range d.volumes {
		if v.kind == "" {
			continue
		}
		part := v.make(t)
		disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=4096", "conv=sparse,notrunc", "oflag=seek_bytes",
			fmt.Sprintf("seek=%d", v.start*sectorSize), "status=none")
		require.NoError(t, os.Remove(part))
	}
	return raw
}

func (d windowsDisk) table() string {
	var b strings.Builder
	fmt.Fprintf(&b, "label: dos\nlabel-id: %#x\n", d.signature)
	if d.gpt {
		b.Reset()
		b.WriteString("label: gpt\n")
	}
	for _, v := range d.volumes {
		fmt.Fprintf(&b, "%d: start=%d, size=%d, type=%s", v.number, v.start, v.sectors, v.typ)
		if v.loads != "" {
			b.WriteString(", bootable")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// make builds the volume in a file of its own.
func (v windowsVolume) make(t testing.TB) string {
	t.Helper()
	part := disktest.Blank(t, "part", v.sectors*sectorSize)
	hidden := fmt.Sprint(v.start)
	if v.kind == "ntfs" {
		disktest.Run(t, "mkntfs", "-q", "-F", "-Q", "-p", hidden, "-H", "255", "-S", "63", "-s", "512", "-c", "4096",
			part)
	} else {
		disktest.Run(t, "mkfs.fat", "-F", strings.TrimPrefix(v.kind, "fat"), "-h", hidden, "-g", "255/63", part)
	}
	switch names := slices.Sorted(maps.Keys(v.files)); {
	case len(names) == 0:
	case v.kind == "ntfs": // wimlib needs neither root nor a mount
		tree, wim := t.TempDir(), filepath.Join(t.TempDir(), "tree.wim")
		for _, name := range names {
			to := filepath.Join(tree, filepath.FromSlash(name))
			require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
			require.NoError(t, os.WriteFile(to, disktest.ReadFile(t, v.files[name]), 0o644))
		}
		// Without a list of its own wimlib leaves out hiberfil.sys and others.
		config := "--config=" + hostFile(t, "[ExclusionList]\n")
		disktest.Run(t, "wimcapture", "--no-acls", "--compress=none", config, tree, wim)
		disktest.Run(t, "wimapply", wim, "1", part)
	default:
		made := map[string]bool{".": true}
		for _, name := range names { // a folder precedes its files
			dir := ""
			for element := range strings.SplitSeq(path.Dir(name), "/") {
				dir = path.Join(dir, element)
				if !made[dir] {
					disktest.Run(t, "mmd", "-i", part, "::/"+dir)
					made[dir] = true
				}
			}
			disktest.Run(t, "mcopy", "-i", part, v.files[name], "::/"+name)
		}
	}
	// The code of a boot sector has the name of the file that it loads. So has the copy of NTFS, behind the file
	// system.
	disktest.WriteAt(t, part, 0x180, []byte(v.loads))
	if v.kind == "ntfs" {
		disktest.WriteAt(t, part, (v.sectors-1)*sectorSize+0x180, []byte(v.loads))
	}
	return part
}

// readGuestFile takes a file out of a partition of a raw disk with the file system's own tool.
func readGuestFile(t testing.TB, raw string, v windowsVolume, start int64, name string) string {
	t.Helper()
	part := filepath.Join(t.TempDir(), "part")
	disktest.Run(t, "dd", "if="+raw, "of="+part, "bs=1M", "iflag=skip_bytes,count_bytes", "conv=sparse",
		fmt.Sprintf("skip=%d", start), fmt.Sprintf("count=%d", v.sectors*sectorSize), "status=none")
	fsck(t, v.kind, part)
	out := filepath.Join(t.TempDir(), path.Base(name))
	require.NoError(t, os.WriteFile(out, readVolumeFile(t, v.kind, part, name), 0o600))
	return out
}

// mergeHive makes a copy of a hive with what a .reg file says.
func mergeHive(t testing.TB, hive, reg string) string {
	t.Helper()
	merged := filepath.Join(t.TempDir(), "hive")
	data := disktest.ReadFile(t, hive)
	require.NoError(t, os.WriteFile(merged, data, 0o600))
	disktest.Run(t, "hivexregedit", "--merge", "--prefix", `\`, merged,
		hostFile(t, "Windows Registry Editor Version 5.00\n\n"+reg))
	return merged
}

// exportHive is what hivexregedit says about a hive.
func exportHive(t testing.TB, hive, key string) string {
	t.Helper()
	return disktest.Output(t, "hivexregedit", "--export", hive, key)
}

// hexBytes writes bytes as a .reg file does.
func hexBytes(b []byte) string { return strings.ReplaceAll(fmt.Sprintf("% x", b), " ", ",") }
