package identify

import (
	"encoding/binary"
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
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/volume"
)

// blank is the path of a new file of zeros.
func blank(t testing.TB, size int64) string {
	t.Helper()
	return disktest.Blank(t, "volume", size)
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
	return equations(strings.ReplaceAll(disktest.Output(t, "blkid", "-p", "-o", "udev", path), "ID_FS_", ""))
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

// formatted makes volumes with a tool, of which each row has other arguments, and requires that they are what blkid
// says of them. OTHER is another file in the arguments. Then check holds one to what its own tools say.
func formatted(t *testing.T, size int64, tool string, rows map[string][]string,
	check func(t *testing.T, name, path string, v *volume.Volume, tags map[string]string),
) {
	t.Helper()
	for name, args := range rows {
		t.Run(name, func(t *testing.T) {
			t.Helper()
			path, other := blank(t, size), blank(t, size)
			all := strings.Fields(tool)
			for _, a := range args {
				all = append(all, strings.Replace(a, "OTHER", other, 1))
			}
			disktest.Run(t, all[0], append(all[1:], path)...)
			v := probe(t, path)
			check(t, name, path, v, requireBlkid(t, path, v))
		})
	}
}

func TestXFSOfMkfs(t *testing.T) {
	formatted(t, 320<<20, "mkfs.xfs -q", map[string][]string{
		"version 5":                  {"-L", "xlabel"},
		"version 4":                  {"-m", "crc=0", "-L", "twelve bytes"},
		"blocks of 1 KiB":            {"-b", "size=1024"},
		"sectors of 4 KiB":           {"-s", "size=4096"},
		"log on another device":      {"-l", "size=64m,logdev=OTHER"},
		"realtime section besides":   {"-r", "rtdev=OTHER", "-m", "reflink=0,rmapbt=0"},
		"smaller than its partition": {"-d", "size=310m"},
	}, func(t *testing.T, name, path string, v *volume.Volume, _ map[string]string) {
		t.Helper()
		out := disktest.Output(t, "xfs_db", "-r", "-f", "-c", "sb 0", "-c", "p", path)
		require.Equal(t, number(t, out, `(?m)^blocksize = (\d+)`), v.BlockSize)
		require.Equal(t, number(t, out, `(?m)^dblocks = (\d+)`)*v.BlockSize, v.Size)
		require.Equal(t, fmt.Sprint(number(t, out, `(?m)^versionnum = (\w+)`)&0xf), detail(v, "version"))
		require.Equal(t, number(t, out, `(?m)^logstart = (\d+)`) == 0, detail(v, "log") != "")
		require.Equal(t, number(t, out, `(?m)^rblocks = (\d+)`) != 0, detail(v, "realtime section") != "")
		issues := map[string][]string{"log on another device": {"xfs-log"}}
		require.Equal(t, issues[name], disktest.Codes(v.Issues))
	})
}

func TestBtrfsOfMkfs(t *testing.T) {
	formatted(t, 160<<20, "mkfs.btrfs -q -f", map[string][]string{
		"crc32c":           {"-L", "a label with ü"},
		"xxhash":           {"--csum", "xxhash"},
		"sha256":           {"--csum", "sha256"},
		"blake2":           {"--csum", "blake2"},
		"mixed, small":     {"-M", "-n", "4096"},
		"smaller":          {"-b", "120m"},
		"nodes of 64 KiB":  {"-n", "64k"},
		"one of two disks": {"-d", "single", "-m", "raid1", "OTHER"},
	}, func(t *testing.T, name, path string, v *volume.Volume, tags map[string]string) {
		t.Helper()
		require.Equal(t, "4096", tags["BLOCK_SIZE"])
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
	formatted(t, 33<<20, "mkfs.jfs -q", map[string][]string{"label": {"-L", "jfs label"}},
		func(t *testing.T, _, path string, v *volume.Volume, tags map[string]string) {
			t.Helper()
			require.Equal(t, tags["BLOCK_SIZE"], fmt.Sprint(v.BlockSize))
			require.Equal(t, int64(33<<20), v.Size, "the log is at the end of the device")
			out := disktest.RunInput(t, "su\nx\nq\n", "jfs_debugfs", path)
			require.Equal(t, fmt.Sprint(number(t, out, `s_version:\s+(\d+)`)), detail(v, "version"))
			require.Empty(t, v.Issues)
		})
}

func TestReiserFSOfMkfs(t *testing.T) {
	formatted(t, 64<<20, "mkreiserfs -q -f", map[string][]string{
		"3.6": {"-l", "a label"}, "3.5": {"--format", "3.5"}, "JR": {"-s", "1000", "-l", "small journal"},
	}, func(t *testing.T, name, path string, v *volume.Volume, tags map[string]string) {
		t.Helper()
		require.Equal(t, name, tags["VERSION"])
		require.Equal(t, name, detail(v, "format"))
		out := disktest.Run(t, "debugreiserfs", path)
		require.Equal(t, number(t, out, `(?m)^Blocksize: (\d+)`), v.BlockSize)
		require.Equal(t, number(t, out, `(?m)^Count of blocks on the device: (\d+)`)*v.BlockSize, v.Size)
		require.Empty(t, v.Issues)
	})
}

func TestF2FSOfMkfs(t *testing.T) {
	formatted(t, 64<<20, "mkfs.f2fs -q", map[string][]string{
		"plain":         {"-l", "label with é and 日本"},
		"with checksum": {"-O", "extra_attr,sb_checksum", "-l", "sum"},
		"on two disks":  {"-c", "OTHER"},
	}, func(t *testing.T, name, _ string, v *volume.Volume, tags map[string]string) {
		t.Helper()
		require.Equal(t, tags["BLOCK_SIZE"], fmt.Sprint(v.BlockSize))
		require.Equal(t, tags["VERSION"], detail(v, "version"))
		require.Equal(t, int64(64<<20), v.Size)
		require.Equal(t, name == "on two disks", len(v.Issues) == 1)
	})
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

func TestAPFSOfMkapfs(t *testing.T) {
	formatted(t, 700<<20, "mkapfs", map[string][]string{"label": {"-L", "ap"}},
		func(t *testing.T, _, _ string, v *volume.Volume, tags map[string]string) {
			t.Helper()
			require.Equal(t, tags["BLOCK_SIZE"], fmt.Sprint(v.BlockSize))
			require.Equal(t, int64(700<<20), v.Size)
			require.Empty(t, v.Issues)
		})
}

func TestHFSOfHformat(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // hformat remembers its volumes there
	formatted(t, 8<<20, "hformat", map[string][]string{"label": {"-l", "An HFS"}},
		func(t *testing.T, _, _ string, v *volume.Volume, _ map[string]string) {
			t.Helper()
			require.Equal(t, int64(8<<20), v.Size)
			require.Zero(t, v.DataStart%512)
			require.Empty(t, v.Issues)
		})
}

func TestExFATOfMkfs(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8") // in which the label is written
	formatted(t, 64<<20, "mkfs.exfat", map[string][]string{
		"label":             {"-L", "Bilder ü"},
		"clusters of 512":   {"-c", "512", "-L", "small"},
		"clusters of 1 MiB": {"-c", "1M", "-L", "large"},
		"no label":          nil,
	}, func(t *testing.T, _, path string, v *volume.Volume, _ map[string]string) {
		t.Helper()
		out := disktest.Output(t, "dump.exfat", path)
		require.Equal(t, number(t, out, `Volume Length\(sectors\):\s+(\d+)`)*512, v.Size)
		require.Equal(t, number(t, out, `Cluster Heap Offset \(sector offset\):\s+(\d+)`)*512, v.DataStart)
		require.Equal(t, number(t, out, `Cluster size:\s+(\d+)`), v.BlockSize)
		require.Empty(t, v.Issues)
	})
}

func TestJournalOfExt(t *testing.T) {
	formatted(t, 32<<20, "mke2fs -q -F -O journal_dev", map[string][]string{
		"blocks of 1 KiB": {"-b", "1024", "-L", "a journal"},
		"blocks of 4 KiB": {"-b", "4096"},
	}, func(t *testing.T, _, _ string, v *volume.Volume, _ map[string]string) {
		t.Helper()
		require.Equal(t, volume.JBD, v.Kind)
		require.Equal(t, int64(32<<20), v.Size)
		require.Empty(t, v.Issues)
	})
}

func TestHFSPlusOfXorriso(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iso")
	disktest.Run(t, "xorriso", "-as", "mkisofs", "-quiet", "-V", "HFSPLUS", "-hfsplus", "-hfsplus-serial-no",
		"0123456789abcdef", "-o", path, folder(t))

	// The volume is cut out by the Apple partition map.
	iso := disktest.ReadFile(t, path)
	require.Equal(t, "ER", string(iso[:2]))
	block := int(binary.BigEndian.Uint16(iso[2:]))
	var b []byte
	for at := block; string(iso[at:at+2]) == "PM"; at += block { // Inside Macintosh: Devices, "Partition Map"
		if strings.HasPrefix(string(iso[at+48:]), "Apple_HFS\x00") {
			start, n := int(binary.BigEndian.Uint32(iso[at+8:]))*block, int(binary.BigEndian.Uint32(iso[at+12:]))*block
			b = iso[start : start+n]
			break
		}
	}
	require.NotEmpty(t, b, "no HFS+ in the image of xorriso")

	path = filepath.Join(t.TempDir(), "volume")
	require.NoError(t, os.WriteFile(path, b, 0o644))
	v := probe(t, path)
	requireBlkid(t, path, v)
	require.NotEmpty(t, v.UUID)
	require.Equal(t, int64(len(b)), v.Size)
	require.Empty(t, v.Issues)
}

// TestISO9660OfTools has isoinfo judge, since blkid calls a bridge by its UDF.
func TestISO9660OfTools(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		udf  bool
	}{
		"plain":      {[]string{"xorriso", "-as", "mkisofs", "-V", "PLAIN"}, false},
		"Joliet":     {[]string{"xorriso", "-as", "mkisofs", "-J", "-V", "a label in small letters"}, false},
		"UDF bridge": {[]string{"genisoimage", "-udf", "-J", "-V", "BRIDGE"}, true},
		"hybrid":     {[]string{"xorriso", "-as", "mkisofs", "-hfsplus", "-V", "HYBRID"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "iso")
			disktest.Run(t, tc.args[0], append(append([]string{}, tc.args[1:]...), "-quiet", "-o", path, folder(t))...)
			v := probe(t, path)
			require.Equal(t, volume.ISO9660, v.Kind)
			if !tc.udf {
				requireBlkid(t, path, v)
			}
			out := disktest.Output(t, "isoinfo", "-d", "-i", path)
			require.Contains(t, out, "Volume id: "+v.Label)
			require.Equal(t, number(t, out, `Logical block size is: (\d+)`), v.BlockSize)
			require.Equal(t, number(t, out, `Volume size is: (\d+)`)*2048, v.Size)
			require.Empty(t, v.Issues)
		})
	}
}

// written is a forged image as a file, for the judges.
func written(t *testing.T, f forge.Bytes) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume")
	f.Write(t, path)
	return path
}

// blkid is what libblkid says about a file, by its names.
func blkid(t *testing.T, path string) map[string]string {
	t.Helper()
	// blkid escapes blanks for a shell.
	return equations(strings.ReplaceAll(disktest.Output(t, "blkid", "-p", "-o", "export", path), `\`, ""))
}

// equations are lines of the form NAME=value.
func equations(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			out[name] = value
		}
	}
	return out
}

// columns are lines of a name, blanks or a colon, and a value.
func columns(text string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			name, value, _ = strings.Cut(strings.Join(strings.Fields(line), " "), " ")
		}
		if _, known := out[name]; !known {
			out[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return out
}

// detail is one of a volume's details, empty when it has none of that name.
func detail(v *volume.Volume, name string) string {
	for _, d := range v.Details {
		if d.Name == name {
			return d.Value
		}
	}
	return ""
}
