package identify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/volume"
)

// pvck is what LVM itself reads in a file.
func pvck(t *testing.T, what, path string) string {
	t.Helper()
	cmd := exec.Command(disktest.Tool(t, "pvck"), "--dump", what, path)
	cmd.Env = append(cmd.Environ(), "LVM_SUPPRESS_FD_WARNINGS=1")
	out, err := cmd.Output()
	require.NoError(t, err, "%s", out)
	return string(out)
}

// requireHeaders compares a volume with the header that pvck reads.
func requireHeaders(t *testing.T, path string, v *volume.Volume) {
	t.Helper()
	h := columns(pvck(t, "headers", path))
	require.Equal(t, h["pv_header.pv_uuid"], strings.ReplaceAll(v.UUID, "-", ""))
	require.Equal(t, h["pv_header.device_size"], strconv.FormatInt(v.Size, 10))
	require.Equal(t, h["pv_header.disk_locn[0].offset"], strconv.FormatInt(v.DataStart, 10))
	require.Equal(t, blkid(t, path)["UUID"], v.UUID)
}

func TestLVMOfTheCorpus(t *testing.T) {
	path := disktest.Corpus(t, "dfvfs/lvm.qcow2.xz")
	raw := blank(t, 0)
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", path, raw)
	v := probe(t, raw)
	requireHeaders(t, raw, v)
	text := pvck(t, "metadata", raw)
	require.Equal(t, volume.LVM2, v.Kind)
	require.Contains(t, text, "vgname "+v.Label+" seqno "+detail(v, "revision"))
	// The text that pvck shows: one volume of one extent of 8192 sectors, the first of the only device.
	require.Contains(t, text, "extent_size = 8192")
	require.Equal(t, []volume.Part{{Name: "test_logical_volume", Kind: "linear", Start: 1 << 20, Size: 4 << 20}},
		v.Parts)
	require.Empty(t, v.Issues)
}

// The text of a group lies in a ring, and may continue at its start. The judge is pvck, which prints it whole.
func TestLVMTextInItsRing(t *testing.T) {
	for _, at := range []int64{512, 1024, poolforge.LVMRing - 700, poolforge.LVMRing - 1} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			f := make(forge.Bytes, 64<<20)
			poolforge.PutLVM(f, poolforge.LVMText, at)
			path := written(t, f)
			v := probe(t, path)
			requireHeaders(t, path, v)
			require.Contains(t, pvck(t, "metadata", path), "vgname vg0 seqno 7")
			require.Contains(t, pvck(t, "metadata", path), poolforge.LVMText)
			require.Equal(t, "vg0", v.Label)
			require.Equal(t, int64(poolforge.LVMPeStart), v.DataStart)
			require.Equal(t, `2 (this is "pv0")`, detail(v, "physical volumes"))
			const extent = 64 << 10
			require.Equal(t, []volume.Part{
				{Name: "root", Kind: "linear", Start: poolforge.LVMPeStart + 8*extent, Size: 32 * extent},
				{Name: "pieces", Kind: "linear", Start: -1, Size: 2 * extent},
				{Name: "[wide]", Kind: "striped", Start: -1, Size: 4 * extent},
			}, v.Parts)
			require.Empty(t, v.Issues)
		})
	}
}

// A physical volume without a group, or with an area that cannot be read, is one all the same.
func TestLVMWithoutItsGroup(t *testing.T) {
	u64 := func(at int64, v uint64) func(forge.Bytes) { return func(f forge.Bytes) { f.U64(at, v) } }
	const area = "lvm metadata area at "
	for _, tc := range []struct {
		name   string
		change func(f forge.Bytes)
		says   string
	}{
		{"no text", u64(poolforge.LVMTextOffset, 0), ""},
		{"an area that is not used", func(f forge.Bytes) { f.U32(poolforge.LVMTextCRC+4, 1) }, ""},
		{"no area", u64(poolforge.LVMMetaArea, 0), ""},
		{
			"text with another checksum", func(f forge.Bytes) { f[poolforge.LVMMeta+600] ^= 1 },
			area + "0x1038: text checksum",
		},
		{"text behind its ring", u64(poolforge.LVMTextOffset, poolforge.LVMRing), area + "0x1028: text offset"},
		{"text larger than its ring", u64(poolforge.LVMTextSize, 1<<63), area + "0x1030: text size"},
		{"ring larger than the device", u64(poolforge.LVMMetaSize, 1<<40), area + "0x1020: size"},
		{"area of another device", u64(poolforge.LVMMeta+24, 8192), area + "0x1018: start"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := make(forge.Bytes, 8<<20)
			poolforge.PutLVM(f, poolforge.LVMText, 512)
			tc.change(f)
			poolforge.SealLVM(f)
			v := probeForged(t, f)
			require.Equal(t, volume.LVM2, v.Kind)
			require.Equal(t, poolforge.LVMID, v.UUID)
			require.Equal(t, int64(poolforge.LVMPeStart), v.DataStart)
			require.Empty(t, v.Parts)
			if tc.says == "" {
				require.Empty(t, v.Issues)
				return
			}
			require.Len(t, v.Issues, 1)
			require.Equal(t, "lvm-metadata", v.Issues[0].Code)
			require.Contains(t, v.Issues[0].Text, tc.says)
		})
	}
}

// What cannot be placed has no place, and what is too much is counted only.
func TestLVMTexts(t *testing.T) {
	lv := func(name, body string) string {
		return name + ` { status = ["VISIBLE"] segment1 { ` + body + ` } }` + "\n"
	}
	group := func(volumes string) string {
		return `g { extent_size = 128 physical_volumes { p { id = "` + poolforge.LVMID + `" pe_start = 384 } } ` +
			`logical_volumes { ` + volumes + `} }`
	}
	many := strings.Builder{}
	for i := range 500 {
		many.WriteString(lv(fmt.Sprintf("lv%d", i), `extent_count = 1 type = "linear"`))
	}
	nowhere := func(size int64) []volume.Part {
		return []volume.Part{{Name: "a", Kind: "linear", Start: -1, Size: size}}
	}
	striped := func(extents, stripes string) string {
		return group(lv("a", `extent_count = `+extents+` type = "striped" stripes = [`+stripes+`]`))
	}
	for _, tc := range []struct {
		name, text string
		want       []volume.Part
	}{
		{"an extent behind the device", striped("1", `"p", 4294967295`), nowhere(65536)},
		{"an extent that wraps to the start", striped("1", `"p", 288230376151711744`), nowhere(65536)},
		{"2^64 extents", striped("18446744073709551615", `"p", 0`), nowhere(0)},
		{"of another device", striped("1", `"q", 0`), nowhere(65536)},
		{"quotes, and a key that is not known", group(`"a\"b" { status = ["VISIBLE"] x = [ [ ] segment1 { } }`), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := make(forge.Bytes, 8<<20)
			poolforge.PutLVM(f, tc.text, 512)
			require.Equal(t, tc.want, probeForged(t, f).Parts)
		})
	}
	f := make(forge.Bytes, 8<<20)
	poolforge.PutLVM(f, group(many.String()), 512)
	v := probeForged(t, f)
	require.Len(t, v.Parts, 256)
	require.Equal(t, "500", detail(v, "logical volumes"))
}

// The judges are mdadm, which calls a checksum correct, and libblkid.
func TestMDVersion1(t *testing.T) {
	for version, sector := range map[string]uint64{"1.0": 0, "1.1": 264, "1.2": 272} {
		t.Run(version, func(t *testing.T) {
			f := make(forge.Bytes, 8<<20+4096)
			poolforge.PutMD1(f, version, sector)
			path := written(t, f)
			v := probe(t, path)
			says := columns(disktest.Output(t, "mdadm", "--examine", path))
			export := equations(disktest.Output(t, "mdadm", "--examine", "--export", path))
			require.Contains(t, says["Checksum"], "correct")
			require.Equal(t, volume.MDRaid, v.Kind)
			require.Equal(t, says["Array UUID"], v.UUID)
			require.Equal(t, says["Name"], v.Label)
			require.Equal(t, says["Version"], detail(v, "metadata"))
			require.Equal(t, export["MD_LEVEL"], detail(v, "level"))
			require.Equal(t, export["MD_DEVICES"], detail(v, "devices"))
			require.Equal(t, "64K", says["Chunk Size"])
			require.Equal(t, "64 KiB", detail(v, "chunk size"))
			require.Equal(t, says["Device Role"], "Active "+detail(v, "role"))
			require.Equal(t, version, blkid(t, path)["VERSION"])
			require.Equal(t, blkid(t, path)["LABEL"], v.Label)
			require.Equal(t, int64(sector)*512, v.DataStart)
			if sector > 0 {
				require.Equal(t, says["Data Offset"], map[uint64]string{264: "264 sectors", 272: "272 sectors"}[sector])
			}
			require.Equal(t, version == "1.0", v.AtEnd)
			require.Empty(t, v.Issues)
		})
	}
}

func TestMDVersion0(t *testing.T) {
	for name, tc := range map[string]struct {
		order    binary.ByteOrder
		metadata string
		version  string
	}{"little-endian": {binary.LittleEndian, "0.90", "0.90"}, "big-endian": {
		binary.BigEndian, "0.swap",
		"0.90, big-endian",
	}} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 8<<20+4096)
			poolforge.PutMD0(f, tc.order)
			path := written(t, f)
			v := probe(t, path)
			says := columns(disktest.Output(t, "mdadm", "--examine", "--metadata", tc.metadata, path))
			require.Contains(t, says["Checksum"], "correct")
			require.Equal(t, says["UUID"], v.UUID)
			require.Equal(t, says["Raid Level"], detail(v, "level"))
			require.Equal(t, says["Raid Devices"], detail(v, "devices"))
			require.Equal(t, tc.version, detail(v, "metadata"))
			require.Equal(t, "linux_raid_member", blkid(t, path)["TYPE"])
			require.True(t, v.AtEnd)
			require.Zero(t, v.DataStart)
		})
	}
}

// A mirror with its superblock at the end shows its file system at the start: that is one volume, not two.
func TestMDShowsItsContent(t *testing.T) {
	for name, put := range map[string]func(forge.Bytes){
		"0.90": mirror0,
		"1.0":  func(f forge.Bytes) { poolforge.PutMD1(f, "1.0", 0) },
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 8<<20)
			fsforge.PutExt(f, 0, 8<<11)
			put(f)
			v := probeForged(t, f)
			require.Equal(t, volume.MDRaid, v.Kind)
			require.Equal(t, `ext2 "forged"`, detail(v, "content"))
			require.Empty(t, v.Issues)
			require.Nil(t, v.Boot, "what is inside belongs to all members of the array, and is left alone")
		})
	}
}

// A Linux that hibernates into swap on an array or on LVM has read the partition table all the same, wherever that swap
// begins.
func TestHibernationInsideOfContainers(t *testing.T) {
	for name, c := range map[string]struct {
		put  puts
		kind volume.Kind
	}{
		"a mirror":            {puts{hibernated, mirror0}, volume.MDRaid},
		"behind a superblock": {puts{asleep(272 * 512), putMD1("1.2", 1, 272)}, volume.MDRaid},
		"LVM":                 {puts{leftoverLVM, asleep(poolforge.LVMPeStart + 8<<16)}, volume.LVM2},
	} {
		v := probeForged(t, c.put.disk())
		require.Equal(t, c.kind, v.Kind, name)
		require.Equal(t, []string{"hibernated-linux"}, disktest.Codes(v.Issues), name)
		require.True(t, v.Issues[0].DiskWide, name)
	}
}

func TestSwap(t *testing.T) {
	for _, page := range []int64{4096, 8192, 65536} {
		t.Run(strconv.FormatInt(page, 10), func(t *testing.T) {
			path := blank(t, 4<<20)
			disktest.Run(t, "mkswap", "--pagesize", strconv.FormatInt(page, 10), "--label", "a label", path)
			v, found := probe(t, path), blkid(t, path)
			require.Equal(t, volume.Swap, v.Kind)
			require.Equal(t, []string{found["UUID"], found["LABEL"], found["VERSION"]},
				[]string{v.UUID, v.Label, detail(v, "version")})
			require.Equal(t, page, v.BlockSize)
			require.Equal(t, int64(4<<20), v.Size)
			require.Empty(t, v.Issues)
		})
	}
}

// The kernel puts the signature of its image over that of the swap area, and leaves the header.
func TestHibernatedSwap(t *testing.T) {
	for signature, version := range map[string]string{
		"S1SUSPEND": "s1suspend", "S2SUSPEND": "s2suspend",
		"ULSUSPEND": "ulsuspend", "LINHIB0001": "linhib0001",
	} {
		for _, page := range []int64{4096, 65536} {
			f := make(forge.Bytes, 1<<20)
			f.Text(page-10, signature)
			f.U32(1024, 1)
			f.U32(1028, uint32(1<<20/page)-1)
			f.Text(1036, "0123456789abcdef")
			v, found := probeForged(t, f), blkid(t, written(t, f))
			require.Equal(t, "swsuspend", found["TYPE"])
			require.Equal(t, version, found["VERSION"])
			require.Equal(t, found["UUID"], v.UUID)
			require.Len(t, v.Issues, 1)
			require.Equal(t, "hibernated-linux", v.Issues[0].Code)
		}
	}
}

func TestBcache(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		data int64 // bytes: 8 KiB for old backing devices, else as asked for; after the first bucket of a cache
	}{
		{"backing device", []string{"-B"}, 8 << 10},
		{"backing device with an offset", []string{"-B", "--data-offset", "2048"}, 1 << 20},
		{"cache", []string{"-C", "--bucket", "64k"}, 64 << 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := blank(t, 8<<20)
			disktest.Run(t, "make-bcache", append(tc.args, path)...)
			v := probe(t, path)
			says := columns(disktest.Output(t, "bcache-super-show", path))
			require.Equal(t, volume.BCache, v.Kind)
			require.Equal(t, says["dev.uuid"], v.UUID)
			require.Equal(t, says["cset.uuid"], detail(v, "set UUID"))
			require.Equal(t, blkid(t, path)["UUID"], v.UUID)
			require.Equal(t, tc.data, v.DataStart)
			first := says["dev.data.first_sector"] + says["dev.cache.first_sector"]
			require.Equal(t, first, strconv.FormatInt(v.DataStart/512, 10))
		})
	}
	f := make(forge.Bytes, 1<<20)
	poolforge.PutBcache(f, 264)
	v := probeForged(t, f)
	require.Equal(t, blkid(t, written(t, f))["UUID"], v.UUID, "libblkid looks at the checksum")
	require.Equal(t, int64(264*512), v.DataStart)
	require.Equal(t, "a label", v.Label)
}

func TestZFS(t *testing.T) {
	f := make(forge.Bytes, 64<<20)
	poolforge.PutZFS(f)
	v, found := probeForged(t, f), blkid(t, written(t, f))
	require.Equal(t, "zfs_member", found["TYPE"])
	require.Equal(t, []string{found["LABEL"], found["UUID"]}, []string{v.Label, v.UUID})
	require.Equal(t, int64(4096), v.BlockSize)
	require.Equal(t, int64(4<<20), v.DataStart)
	require.True(t, v.AtEnd)

	// The second label counts when the first is missing, as after a boot loader was written there.
	second := make(forge.Bytes, 64<<20)
	second.Put(256<<10, f[:256<<10])
	require.Equal(t, v, probeForged(t, second))
	clear(f[128<<10 : 256<<10])
	clear(f[poolforge.ZFSList+12 : 128<<10]) // no pair, and no uberblock
	require.Equal(t, volume.Unknown, probeForged(t, f).Kind)
}

func TestVMFS(t *testing.T) {
	for _, tc := range []struct {
		device, major uint32
		minor         uint8
		version       string
	}{{3, 12, 46, "3.46"}, {5, 14, 61, "5.61"}, {6, 24, 82, "6.82"}} {
		t.Run(tc.version, func(t *testing.T) {
			f := make(forge.Bytes, 20<<20)
			poolforge.PutVMFS(f, tc.device, tc.major, tc.minor)
			v := probeForged(t, f)
			device := blkid(t, written(t, f))
			require.Equal(t, "VMFS_volume_member", device["TYPE"])
			require.Equal(t, device["UUID_SUB"], detail(v, "device"))
			require.Equal(t, int64(poolforge.VMFSData), v.DataStart)
			require.Equal(t, "vmfs", v.Issues[0].Code)
		})
	}
}

// A name can be as long as its structure, and stands in a report as often as there are partitions.
func TestLongNames(t *testing.T) {
	pool := make(forge.Bytes, 64<<20)
	poolforge.PutZFS(pool)
	at := int64(bytes.Index(pool, []byte("tank")))
	behind := bytes.Clone(pool[at:][:512])
	pool.Put(at-4, append([]byte{0, 1, 0, 0}, strings.Repeat("x", 1<<10)...))
	pool.Put(at+1<<10, behind)
	require.Len(t, probeForged(t, pool).Label, 255)
	f := make(forge.Bytes, leftoverSize)
	fsforge.PutNTFS(f, 0, leftoverSize/512)
	f.U64(fsforge.NTFSMFT, 1)
	f.Put(4096+3<<10, fsforge.NTFSVolumeRecord(strings.Repeat("x", 300)))
	require.Len(t, probeForged(t, f).Label, 128)
}
