package layout_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// What there is instead of something to judge: where tables and superblocks lie decides, and nothing else.
func TestContents(t *testing.T) {
	const size = 16 * units.MiB
	for name, tc := range map[string]struct {
		put  func(f forge.Bytes)
		want align.Content
	}{
		"zeros":                         {func(forge.Bytes) {}, align.Blank},
		"data where no superblock lies": {func(f forge.Bytes) { f.Put(8*units.MiB, []byte("data")) }, align.Blank},
		"a byte at the start":           {func(f forge.Bytes) { f.Put(0, []byte{1}) }, align.UnknownContent},
		"a byte at 1 MiB":               {func(f forge.Bytes) { f.Put(units.MiB, []byte{1}) }, align.UnknownContent},
		"a byte at the end":             {func(f forge.Bytes) { f.Put(size-1, []byte{1}) }, align.UnknownContent},
		"a volume that is not known": {func(f forge.Bytes) {
			f.Put(0, bytes.Repeat([]byte{0xfa, 0x8b, 0x5e, 0xeb}, 510/4))
			f.Text(512+32, "1SFX")
			f.Put(510, []byte{0x55, 0xaa})
		}, align.UnknownContent},
		"an MBR without entries": {func(f forge.Bytes) { f.Put(510, []byte{0x55, 0xaa}) }, align.NoPartitions},
		"an entry that only Linux follows": {func(f forge.Bytes) {
			f.Put(446+8, []byte{63, 0, 0, 0, 0, 8, 0, 0})
			f.Put(510, []byte{0x55, 0xaa})
		}, align.UnknownContent},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, size)
			tc.put(f)
			l := read(t, f)
			require.Equal(t, tc.want, align.ContentOf(l))
			blank := slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == "blank" })
			require.Equal(t, tc.want == align.Blank, blank)
			require.Equal(t, align.NothingToJudge, align.Overall(l, align.DefaultBoundary))
		})
	}
}

// A bare volume that has a name by its magic number is judged: it starts at byte 0. The code of a BeFS stands where an
// MBR has its table.
func TestBareVolumeKnownByMagic(t *testing.T) {
	f := make(forge.Bytes, 2*units.MiB)
	f.Put(0, bytes.Repeat([]byte{0xfa, 0x8b, 0x5e, 0xeb}, 510/4))
	f.Text(512+32, "1SFB")
	f.Put(510, []byte{0x55, 0xaa})
	l := read(t, f)
	require.Equal(t, volume.Kind("befs"), l.Volume.Kind)
	require.Empty(t, l.Issues)
	require.Empty(t, align.ContentOf(l))
	require.Equal(t, align.Aligned, align.Overall(l, align.DefaultBoundary))
}
