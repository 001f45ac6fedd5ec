package identify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
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
