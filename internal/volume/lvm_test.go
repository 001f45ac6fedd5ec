package volume

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
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
func requireHeaders(t *testing.T, path string, v *Volume) {
	t.Helper()
	h := columns(pvck(t, "headers", path))
	require.Equal(t, h["pv_header.pv_uuid"], strings.ReplaceAll(v.UUID, "-", ""))
	require.Equal(t, h["pv_header.device_size"], strconv.FormatInt(v.Size, 10))
	require.Equal(t, h["pv_header.disk_locn[0].offset"], strconv.FormatInt(v.DataStart, 10))
	require.Equal(t, blkid(t, path)["UUID"], v.UUID)
}

func TestLVMOfTheCorpus(t *testing.T) {
	path := disktest.Corpus(t, "dfvfs/lvm.qcow2.xz")
	raw := emptyFile(t, 0)
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", path, raw)
	v := probeFile(t, raw)
	requireHeaders(t, raw, v)
	text := pvck(t, "metadata", raw)
	require.Equal(t, LVM2, v.Kind)
	require.Contains(t, text, "vgname "+v.Label+" seqno ")
	require.Empty(t, v.Issues)
}

// The text of a group lies in a ring, and may go on at its start. The judge is pvck, which prints it whole.
func TestLVMTextInItsRing(t *testing.T) {
	for _, at := range []int64{512, 1024, disktest.LVMRing - 700, disktest.LVMRing - 1} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			f := make(disktest.Forged, 64<<20)
			f.PutLVM(disktest.LVMText, at)
			path := written(t, f)
			v := probeFile(t, path)
			requireHeaders(t, path, v)
			require.Contains(t, pvck(t, "metadata", path), "vgname vg0 seqno 7")
			require.Contains(t, pvck(t, "metadata", path), disktest.LVMText)
			require.Equal(t, "vg0", v.Label)
			require.Equal(t, int64(disktest.LVMPeStart), v.DataStart)
			require.Equal(t, "2", detail(v, "physical volumes"))
			require.Empty(t, v.Issues)
		})
	}
}

// A physical volume without a group, or with an area that cannot be read, is one all the same.
func TestLVMWithoutItsGroup(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(f disktest.Forged)
		says   string
	}{
		{"no text", func(f disktest.Forged) { f.U64(disktest.LVMTextOffset, 0) }, ""},
		{"an area that is not used", func(f disktest.Forged) { f.U32(disktest.LVMTextCRC+4, 1) }, ""},
		{"no area", func(f disktest.Forged) { f.U64(disktest.LVMMetaArea, 0) }, ""},
		{"text with another checksum", func(f disktest.Forged) { f[disktest.LVMMeta+600] ^= 1 }, "lvm metadata area at 0x1038: text checksum"},
		{"text behind its ring", func(f disktest.Forged) { f.U64(disktest.LVMTextOffset, disktest.LVMRing) }, "lvm metadata area at 0x1028: text offset"},
		{"text larger than its ring", func(f disktest.Forged) { f.U64(disktest.LVMTextSize, 1<<63) }, "lvm metadata area at 0x1030: text size"},
		{"ring larger than the device", func(f disktest.Forged) { f.U64(disktest.LVMMetaSize, 1<<40) }, "lvm metadata area at 0x1020: size"},
		{"area of another device", func(f disktest.Forged) { f.U64(disktest.LVMMeta+24, 8192) }, "lvm metadata area at 0x1018: start"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := make(disktest.Forged, 8<<20)
			f.PutLVM(disktest.LVMText, 512)
			tc.change(f)
			f.SealLVM()
			v := probeBytes(t, f)
			require.Equal(t, LVM2, v.Kind)
			require.Equal(t, disktest.LVMID, v.UUID)
			require.Equal(t, int64(disktest.LVMPeStart), v.DataStart)
			require.Empty(t, v.Label)
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

// A Linux that hibernates into swap on LVM knows the partition table all the same. The stripes of LVMText are at these extents.
func TestHibernationInLVM(t *testing.T) {
	const extent = 64 << 10
	for n, found := range map[int64]bool{8: true, 24: true, 0: true, 4: true, 100: true, 9: false} {
		f := make(disktest.Forged, 16<<20)
		f.PutLVM(disktest.LVMText, 512)
		f.Text(disktest.LVMPeStart+n*extent+4086, "S1SUSPEND")
		v := probeBytes(t, f)
		require.Equal(t, "vg0", v.Label)
		require.Equal(t, found, len(v.Issues) == 1 && v.Issues[0].Code == "hibernated-linux", n)
	}
}

// A text can hold any numbers.
func TestLVMTexts(t *testing.T) {
	for text, says := range map[string]string{
		`g { id = "a" extent_size = 128 s = ["p", 4294967295] p { id = "` + disktest.LVMID + `"`:          "",
		`g { id = "a" extent_size = 9999999999 s = ["p", 9999999999] p { id = "` + disktest.LVMID + `" }`: "",
		`g { id = "a" extent_size = 0 }`: "lvm text at 0x0: extent size 0",
		`g { id = "a" }`:                 "lvm text at 0x0: volume group",
		`extent_size = 128`:              "lvm text at 0x0: volume group",
	} {
		f := make(disktest.Forged, 8<<20)
		f.PutLVM(strings.ReplaceAll(text, "{ id", "{\nid"), 512)
		v := probeBytes(t, f)
		if says == "" {
			require.Equal(t, "g", v.Label)
			require.Empty(t, v.Issues)
			continue
		}
		require.Len(t, v.Issues, 1)
		require.Contains(t, v.Issues[0].Text, says)
	}
}
