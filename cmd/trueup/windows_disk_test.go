package main

import (
	"bufio"
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

// windowsDisk is the disk of a Windows, with its real files where needed.
type windowsDisk struct {
	signature uint32
	sectors   int64
	gpt       bool
	volumes   []windowsVolume // by number of the partition; 4 and others without a kind are extended
}

// windowsVolume is a partition of it.
type windowsVolume struct {
	number         int
	kind           string // options of mkntfs or mkfs.fat; empty for none, for example in an extended partition
	typ            string
	start, sectors int64
	loads          string            // file that the boot sector of the active partition loads
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
		// Without its own list, wimlib omits hiberfil.sys and others.
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
	// The code of a boot sector contains the name of the file that it loads. So does the copy of NTFS, after the file
	// system.
	disktest.WriteAt(t, part, 0x180, []byte(v.loads))
	if v.kind == "ntfs" {
		disktest.WriteAt(t, part, (v.sectors-1)*sectorSize+0x180, []byte(v.loads))
	}
	return part
}

// readGuestFile reads a file from a partition of a raw disk with the file system's own tool.
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

// mergeHive makes a copy of a hive with the values of a .reg file.
func mergeHive(t testing.TB, hive, reg string) string {
	t.Helper()
	merged := filepath.Join(t.TempDir(), "hive")
	data := disktest.ReadFile(t, hive)
	require.NoError(t, os.WriteFile(merged, data, 0o600))
	disktest.Run(t, "hivexregedit", "--merge", "--prefix", `\`, merged,
		hostFile(t, "Windows Registry Editor Version 5.00\n\n"+reg))
	return merged
}

// exportHive returns hivexregedit's export of a hive.
func exportHive(t testing.TB, hive, key string) string {
	t.Helper()
	return disktest.Output(t, "hivexregedit", "--export", hive, key)
}

// hexBytes formats bytes like a .reg file.
func hexBytes(b []byte) string { return strings.ReplaceAll(fmt.Sprintf("% x", b), " ", ",") }

// bitlk is a volume of cryptsetup's archive: real volumes of Windows 7 to 11.
type bitlk struct {
	path string
	conf map[string]string // from images.conf: how to open it, and the digest of its content
}

// bitlkVolumes unpacks the archive. The volumes are sparse.
func bitlkVolumes(t testing.TB) map[string]bitlk {
	t.Helper()
	dir := t.TempDir()
	disktest.Run(t, "tar", "-xSJf", filepath.Join(disktest.CorpusDir(t), "cryptsetup", "bitlk-images.tar.xz"), "-C",
		dir, "--strip-components=1")
	file, err := os.Open(filepath.Join(dir, "images.conf"))
	require.NoError(t, err)
	defer file.Close()
	out := map[string]bitlk{}
	for name, lines := "", bufio.NewScanner(file); lines.Scan(); {
		key, value, pair := strings.Cut(lines.Text(), "=")
		switch {
		case strings.HasPrefix(key, "["):
			name = strings.Trim(key, "[]")
			out[name] = bitlk{filepath.Join(dir, name+".img"), map[string]string{}}
		case pair:
			out[name].conf[key] = value
		}
	}
	require.Len(t, out, 21)
	return out
}

// bitlkDisk puts a volume into a partition at LBA 63 of a disk without boot code.
func bitlkDisk(t testing.TB, v bitlk) (raw string, size int64) {
	t.Helper()
	file := disktest.Stat(t, v.path)
	raw = filepath.Join(t.TempDir(), "disk.raw")
	disktest.Run(t, "truncate", "-s", decimal(file.Size()+4<<20), raw)
	disktest.RunInput(t, fmt.Sprintf("label: dos\nlabel-id: 0x12345678\nstart=63, size=%d, type=7\n",
		file.Size()/sectorSize), "sfdisk", "-q", raw)
	disktest.Run(t, "dd", "if="+v.path, "of="+raw, "bs=512", "seek=63", "conv=notrunc,sparse", "status=none")
	return raw, file.Size()
}

// TestBitLockerVolumesOfData moves real volumes, and decrypts the result with dislocker: the digests must equal those
// of the archive. Only volumes that are encrypted on write could be system volumes.
func TestBitLockerVolumesOfData(t *testing.T) {
	t.Parallel()
	sample := []string{"bitlk-aes-cbc-elephant-256", "bitlk-aes-xts-128-eow", "bitlk-togo-aes-xts-128"}
	for name, v := range bitlkVolumes(t) {
		if !disktest.Exhaustive && !slices.Contains(sample, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, size := bitlkDisk(t, v)
			dump := disktest.Run(t, "cryptsetup", "bitlkDump", v.path)
			dest := filepath.Join(t.TempDir(), "dest.raw")
			args := []string{"align", raw, dest}
			// encrypted on write, not as a whole
			written := v.conf["UUID"] == "" || strings.Contains(name, "partially")
			if written {
				end := trueup(t, args...)
				require.Equal(t, 4, end.code, end.stderr)
				require.Contains(t, end.stderr, "recovery key")
				require.NoFileExists(t, dest)
				args = append(args, "--allow-unbootable")
			}
			end := trueup(t, args...)
			require.Equal(t, 0, end.code, end.stderr)
			moved, out := filepath.Join(t.TempDir(), "moved"), filepath.Join(t.TempDir(), "out")
			disktest.Run(t, "dd", "if="+dest, "of="+moved, "bs=1M", "skip=1", "conv=sparse", "status=none")
			if want := v.conf["SHA256SUM"]; want != "" {
				key := "-u" + v.conf["PW"]
				switch {
				case v.conf["CLEARKEY_VMK_GUID"] != "":
					key = "-c"
				case v.conf["PW"] == "" || strings.Contains(v.path, "unicode"): // dislocker needs ASCII passwords
					key = "-p" + v.conf["RP"]
				}
				part := extract(t, dest, 2048*sectorSize, size)
				disktest.Run(t, "dislocker-file", "-V", part, key, "--", out)
				require.Equal(t, want, sha256Of(t, out))
			}
			_, was, _ := strings.Cut(dump, "\n")
			_, is, _ := strings.Cut(disktest.Run(t, "cryptsetup", "bitlkDump", moved), "\n")
			require.Equal(t, was, is)
		})
	}
}
