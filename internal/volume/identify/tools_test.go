package identify

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/volume"
)

// blank is the path of a new file of zeros.
func blank(t testing.TB, size int64) string {
	t.Helper()
	path := disktest.Blank(t, "volume", size)
	return path
}

// folder is one with a file.
func folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "readme.txt"), []byte("some text\n"), 0o644))
	return dir
}

func probe(t testing.TB, path string) *volume.Volume {
	t.Helper()
	v, err := Probe(filetest.RawImage(t, path), 0)
	require.NoError(t, err)
	return v
}

// blkidTags are what libblkid says about a volume.
func blkidTags(t testing.TB, path string) map[string]string {
	t.Helper()
	tags := map[string]string{}
	for line := range strings.Lines(disktest.Output(t, "blkid", "-p", "-o", "udev", path)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			tags[strings.TrimPrefix(name, "ID_FS_")] = value
		}
	}
	return tags
}

// decodeTag undoes the \x20 of blkid.
func decodeTag(t testing.TB, s string) string {
	t.Helper()
	text, err := strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\"`) + `"`)
	require.NoError(t, err)
	return text
}

// requireBlkid requires kind, label and UUID to be those of libblkid.
func requireBlkid(t testing.TB, path string, v *volume.Volume) map[string]string {
	t.Helper()
	tags := blkidTags(t, path)
	kind := string(v.Kind)
	if v.Kind == volume.UFS1 || v.Kind == volume.UFS2 {
		kind = "ufs"
		require.Equal(t, strings.TrimPrefix(string(v.Kind), "ufs"), tags["VERSION"])
	}
	require.Equal(t, strings.ToLower(tags["TYPE"]), kind)
	if v.Kind != volume.HFSPlus { // whose label is a name in its catalog
		require.Equal(t, decodeTag(t, tags["LABEL_ENC"]), v.Label)
	}
	if v.Kind != volume.ReFS { // blkid does not know its number
		require.Equal(t, decodeTag(t, tags["UUID_ENC"]), v.UUID)
	}
	return tags
}

// number is the group of a pattern in a tool's output.
func number(t testing.TB, out, pattern string) int64 {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(out)
	require.NotNil(t, m, "%s in\n%s", pattern, out)
	n, err := strconv.ParseInt(m[1], 0, 64)
	require.NoError(t, err)
	return n
}

func TestXFSOfMkfs(t *testing.T) {
	for name, tc := range map[string]struct {
		args   []string
		issues []string
	}{
		"version 5":                  {[]string{"-L", "xlabel"}, nil},
		"version 4":                  {[]string{"-m", "crc=0", "-L", "twelve bytes"}, nil},
		"blocks of 1 KiB":            {[]string{"-b", "size=1024"}, nil},
		"sectors of 4 KiB":           {[]string{"-s", "size=4096"}, nil},
		"log on another device":      {[]string{"-l", "size=64m,logdev=LOG"}, []string{"xfs-log"}},
		"realtime section besides":   {[]string{"-r", "rtdev=LOG", "-m", "reflink=0,rmapbt=0"}, nil},
		"smaller than its partition": {[]string{"-d", "size=310m"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			path, other := blank(t, 320<<20), blank(t, 64<<20)
			args := []string{"-q"}
			for _, a := range tc.args {
				args = append(args, strings.Replace(a, "LOG", other, 1))
			}
			disktest.Run(t, "mkfs.xfs", append(args, path)...)
			v := probe(t, path)
			requireBlkid(t, path, v)
			out := disktest.Output(t, "xfs_db", "-r", "-f", "-c", "sb 0", "-c", "p", path)
			require.Equal(t, number(t, out, `(?m)^blocksize = (\d+)`), v.BlockSize)
			require.Equal(t, number(t, out, `(?m)^dblocks = (\d+)`)*v.BlockSize, v.Size)
			require.Equal(t, fmt.Sprint(number(t, out, `(?m)^versionnum = (\w+)`)&0xf), detail(v, "version"))
			require.Equal(t, number(t, out, `(?m)^logstart = (\d+)`) == 0, detail(v, "log") != "")
			require.Equal(t, number(t, out, `(?m)^rblocks = (\d+)`) != 0, detail(v, "realtime section") != "")
			require.Equal(t, tc.issues, disktest.Codes(v.Issues))
		})
	}
}

func TestBtrfsOfMkfs(t *testing.T) {
	for name, args := range map[string][]string{
		"crc32c":           {"-L", "a label with ü"},
		"xxhash":           {"--csum", "xxhash"},
		"sha256":           {"--csum", "sha256"},
		"blake2":           {"--csum", "blake2"},
		"mixed, small":     {"-M", "-n", "4096"},
		"smaller":          {"-b", "120m"},
		"nodes of 64 KiB":  {"-n", "64k"},
		"one of two disks": {"-d", "single", "-m", "raid1", "SECOND"},
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 160<<20)
			all := append([]string{"-q", "-f"}, args...)
			if n := len(all) - 1; all[n] == "SECOND" {
				all[n] = blank(t, 170<<20)
			}
			disktest.Run(t, "mkfs.btrfs", append(all, path)...)
			v := probe(t, path)
			require.Equal(t, "4096", requireBlkid(t, path, v)["BLOCK_SIZE"])
			out := disktest.Output(t, "btrfs", "inspect-internal", "dump-super", path)
			require.Equal(t, number(t, out, `(?m)^sectorsize\s+(\d+)`), v.BlockSize)
			require.Equal(t, number(t, out, `(?m)^dev_item.total_bytes\s+(\d+)`), v.Size)
			require.Equal(t, fmt.Sprint(number(t, out, `(?m)^nodesize\s+(\d+)`)), detail(v, "node size"))
			if name == "one of two disks" {
				want := fmt.Sprintf("2, this is number %d", number(t, out, `(?m)^dev_item.devid\s+(\d+)`))
				require.Equal(t, want, detail(v, "devices"))
				require.Equal(t, []string{"btrfs-devices"}, disktest.Codes(v.Issues))
				return
			}
			require.Empty(t, v.Issues)
		})
	}
}

func TestBrokenBtrfs(t *testing.T) {
	path := blank(t, 160<<20)
	disktest.Run(t, "mkfs.btrfs", "-q", path)
	disktest.WriteAt(t, path, btrfsFirst+0x200, []byte("damage"))
	v := probe(t, path)
	require.Equal(t, []string{"volume"}, disktest.Codes(v.Issues))
	require.Contains(t, v.Issues[0].Text, "btrfs superblock at 0x10000: checksum")
}

// btrfsFirst is where the first superblock is. Spec: Linux, include/uapi/linux/btrfs_tree.h, BTRFS_SUPER_INFO_OFFSET.
const btrfsFirst = 65536

func TestJFSOfMkfs(t *testing.T) {
	path := blank(t, 33<<20)
	disktest.Run(t, "mkfs.jfs", "-q", "-L", "jfs label", path)
	v := probe(t, path)
	tags := requireBlkid(t, path, v)
	require.Equal(t, tags["BLOCK_SIZE"], fmt.Sprint(v.BlockSize))
	require.Equal(t, int64(33<<20), v.Size, "the log is at the end of the device")
	out := disktest.RunInput(t, "su\nx\nq\n", "jfs_debugfs", path)
	require.Equal(t, fmt.Sprint(number(t, out, `s_version:\s+(\d+)`)), detail(v, "version"))
	require.Empty(t, v.Issues)
}

func TestReiserFSOfMkfs(t *testing.T) {
	for name, args := range map[string][]string{
		"3.6": {"-l", "a label"},
		"3.5": {"--format", "3.5"},
		"JR":  {"-s", "1000", "-l", "small journal"},
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 64<<20)
			disktest.Run(t, "mkreiserfs", append(append([]string{"-q", "-f"}, args...), path)...)
			v := probe(t, path)
			tags := requireBlkid(t, path, v)
			require.Equal(t, name, tags["VERSION"])
			require.Equal(t, name, detail(v, "format"))
			out := disktest.Run(t, "debugreiserfs", path)
			require.Equal(t, number(t, out, `(?m)^Blocksize: (\d+)`), v.BlockSize)
			require.Equal(t, number(t, out, `(?m)^Count of blocks on the device: (\d+)`)*v.BlockSize, v.Size)
			require.Empty(t, v.Issues)
		})
	}
}

func TestF2FSOfMkfs(t *testing.T) {
	for name, args := range map[string][]string{
		"plain":         {"-l", "label with é and 日本"},
		"with checksum": {"-O", "extra_attr,sb_checksum", "-l", "sum"},
		"on two disks":  {"-c", "SECOND"},
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 64<<20)
			all := append([]string{"-q"}, args...)
			if n := len(all) - 1; all[n] == "SECOND" {
				all[n] = blank(t, 64<<20)
			}
			disktest.Run(t, "mkfs.f2fs", append(all, path)...)
			v := probe(t, path)
			tags := requireBlkid(t, path, v)
			require.Equal(t, tags["BLOCK_SIZE"], fmt.Sprint(v.BlockSize))
			require.Equal(t, tags["VERSION"], detail(v, "version"))
			require.Equal(t, int64(64<<20), v.Size)
			require.Equal(t, name == "on two disks", len(v.Issues) == 1)
		})
	}
}

func TestUFSOfMakefs(t *testing.T) {
	for name, tc := range map[string]struct {
		order, version string
		block          int64
	}{
		"UFS1, little-endian": {"le", "1", 8192},
		"UFS1, big-endian":    {"be", "1", 16384},
		"UFS2, little-endian": {"le", "2", 32768},
		"UFS2, big-endian":    {"be", "2", 8192},
		"UFS1, 64 KiB blocks": {"le", "1", 65536}, // with a copy of the superblock where UFS2 has its own
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "volume")
			disktest.Run(t, "makefs", "-t", "ffs", "-B", tc.order, "-s", "20m",
				"-o", fmt.Sprintf("version=%s,bsize=%d,fsize=%d", tc.version, tc.block, tc.block/8), path, folder(t))
			v := probe(t, path)
			tags := requireBlkid(t, path, v)
			require.Equal(t, tags["VERSION"], strings.TrimPrefix(string(v.Kind), "ufs"))
			require.Equal(t, tc.version, tags["VERSION"])
			require.Equal(t, tc.block, v.BlockSize)
			require.Equal(t, tags["BLOCK_SIZE"], detail(v, "fragment size"))
			require.Equal(t, tc.order == "be", detail(v, "byte order") != "")
			require.Equal(t, int64(20<<20), v.Size)
			require.Empty(t, v.Issues)
		})
	}
}
