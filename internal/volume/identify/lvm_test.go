package identify

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
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

// requireHeaders holds a volume against the header that pvck reads.
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

// The text of a group lies in a ring, and may go on at its start. The judge is pvck, which prints it whole.
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
