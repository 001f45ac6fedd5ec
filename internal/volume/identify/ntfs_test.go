package identify

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// TestRecordOfNTFS reads records of $Volume that leave themselves, or do not advance. The label is
// not known then, and the volume is what its boot sector says.
func TestRecordOfNTFS(t *testing.T) {
	const firstAttribute = 0x38
	for name, tc := range map[string]struct {
		change func(r forge.Bytes)
		label  string
		codes  []string
	}{
		"sound": {func(forge.Bytes) {}, "a label", nil},
		"dirty (T59)": {
			func(r forge.Bytes) { r.U8(firstAttribute+0x28+0x18+10, 1) }, "a label",
			[]string{"ntfs-dirty"},
		},
		"fix-up offset 65535":               {func(r forge.Bytes) { r.U16(4, 65535) }, "", []string{"ntfs-volume"}},
		"fix-up offset 0":                   {func(r forge.Bytes) { r.U16(4, 0) }, "", []string{"ntfs-volume"}},
		"fix-up count 0":                    {func(r forge.Bytes) { r.U16(6, 0) }, "", []string{"ntfs-volume"}},
		"fix-up count 65535":                {func(r forge.Bytes) { r.U16(6, 65535) }, "", []string{"ntfs-volume"}},
		"fix-ups in their own sector's end": {func(r forge.Bytes) { r.U16(4, 506) }, "", []string{"ntfs-volume"}},
		"another number at a sector's end":  {func(r forge.Bytes) { r.U16(510, 2) }, "", []string{"ntfs-volume"}},
		"no record":                         {func(r forge.Bytes) { r.Text(0, "BAAD") }, "", []string{"ntfs-volume"}},
		"attributes from 65535 on":          {func(r forge.Bytes) { r.U16(0x14, 65535) }, "", nil},
		"attributes from the end on":        {func(r forge.Bytes) { r.U16(0x14, 1023) }, "", nil},
		"attribute of length 0":             {func(r forge.Bytes) { r.U32(firstAttribute+4, 0) }, "", nil},
		"attribute of length 4":             {func(r forge.Bytes) { r.U32(firstAttribute+4, 4) }, "", nil},
		"attribute of length 2^32-1":        {func(r forge.Bytes) { r.U32(firstAttribute+4, 1<<32-1) }, "", nil},
		"value of 2^32-1 bytes":             {func(r forge.Bytes) { r.U32(firstAttribute+0x10, 1<<32-1) }, "", nil},
		"value behind its attribute":        {func(r forge.Bytes) { r.U16(firstAttribute+0x14, 65535) }, "", nil},
		"value that is not in the record":   {func(r forge.Bytes) { r.U8(firstAttribute+8, 1) }, "", nil},
		"version and flags in a short value": {
			func(r forge.Bytes) { r.U32(firstAttribute+0x28+0x10, 4) }, "a label",
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, leftoverSize)
			fsforge.PutNTFS(f, 0, leftoverSize/512)
			f.U64(fsforge.NTFSMFT, 1)
			f.U64(leftoverSize-512+fsforge.NTFSMFT, 1)
			r := fsforge.NTFSVolumeRecord("a label")
			tc.change(r)
			f.Put(4096+3<<10, r)
			v := probeForged(t, f)
			require.Equal(t, volume.NTFS, v.Kind)
			require.Equal(t, tc.label, v.Label)
			require.Equal(t, tc.codes, disktest.Codes(v.Issues))
		})
	}
}

// ntfs-3g reads a volume whose boot sector does not end in 0xaa55, and so must be seen what it is.
func TestNTFSWithoutSignature(t *testing.T) {
	path := blank(t, 4<<20)
	disktest.Run(t, "mkntfs", "--quiet", "--fast", "--force", path)
	want := probe(t, path)
	disktest.WriteAt(t, path, 510, []byte{0, 0})
	disktest.Run(t, "ntfsinfo", "--mft", path)
	v := probe(t, path)
	require.Equal(t, want.Kind, v.Kind)
	require.Equal(t, want.UUID, v.UUID)
	require.Equal(t, want.Boot, v.Boot)
	require.Len(t, v.Issues, len(want.Issues)+1)
	require.Equal(t, "ntfs-signature", v.Issues[0].Code)
	require.Equal(t, ondisk.Warn, v.Issues[0].Effect)
}

// ntfsinfo reads the version of a volume from the same record.
func TestNTFSVersion(t *testing.T) {
	raw := disktest.Materialize(t, disk.New(4<<20, 512,
		func(int64) (disk.Run, error) { return disk.Run{Len: 4 << 20}, nil }))
	disktest.Run(t, "mkntfs", "--quiet", "--fast", "--force", "--label", "version", raw)
	info := disktest.Output(t, "ntfsinfo", "--mft", "--force", raw)
	want := regexp.MustCompile(`Volume Version: (\S+)`).FindStringSubmatch(info)
	require.Len(t, want, 2)
	b := disktest.ReadFile(t, raw)
	v, err := Probe(disktest.ShortDisk(b, int64(len(b))), 0)
	require.NoError(t, err)
	require.Equal(t, "version", v.Label)
	require.Contains(t, v.Details, volume.Detail{Name: "version", Value: want[1]})
}

// Windows NT and Linux keep the flag in the boot sector; DOS and Windows 95 in the second entry of the table.
func TestDirtyFAT(t *testing.T) {
	for name, tc := range map[string]struct {
		bits     string
		size     int64
		state    int64 // place of the flag in the boot sector
		reserved int64 // sectors in front of the table
		clean    int64 // place of the byte with the bit in the table; 0 if absent
	}{"FAT12": {"12", 2 << 20, 0x25, 1, 0}, "FAT16": {"16", 16 << 20, 0x25, 1, 3}, "FAT32": {
		"32", 40 << 20, 0x41, 32, 7,
	}} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, tc.size)
			disktest.Run(t, "mkfs.fat", "-a", "-F", tc.bits, "-R", fmt.Sprint(tc.reserved), path)
			require.Empty(t, probe(t, path).Issues)
			dirty := func() {
				v := probe(t, path)
				require.Equal(t, []string{"fat-dirty"}, disktest.Codes(v.Issues))
				require.Equal(t, ondisk.Note, v.Issues[0].Effect)
			}
			disktest.WriteAt(t, path, tc.state, []byte{1})
			dirty()
			disktest.WriteAt(t, path, tc.state, []byte{0})
			require.Empty(t, probe(t, path).Issues)
			if tc.clean > 0 {
				disktest.WriteAt(t, path, tc.reserved*512+tc.clean, []byte{0x07})
				dirty()
			}
		})
	}
}
