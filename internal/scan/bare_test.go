package scan

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/scan/results"
)

// TestFilesWithoutAFormat scans raw disks in a folder. Each row is the one of the file named alone; saved boot tracks
// are no disks.
func TestFilesWithoutAFormat(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	mbr := func(lba uint32) string {
		return string(tableforge.NewMBR(16384, tableforge.Slot{Type: 0x83, Start: lba, Sectors: 8192}))
	}
	gpt := string(tableforge.NewGPT(512, 16384, 128, tableforge.GPTEntry{First: 2048, Last: 10239}))
	dir := t.TempDir()
	want := map[string]string{}
	for name, f := range map[string]struct{ content, want string }{
		"whole.raw":        {mbr(63), "misaligned"},
		"odd.img":          {mbr(63) + "x", "misaligned"},
		"odd":              {mbr(2048) + "x", "aligned"},
		"odd gpt":          {gpt + "x", "aligned"},
		"cut.raw":          {mbr(63)[:3*mib], "format"},
		"cut":              {mbr(2048)[:3*mib], "format"},
		"cut gpt":          {gpt[:3*mib], "format"},
		"cut in sectors":   {mbr(63)[:3*mib+5], "format"},
		"empty.raw":        {"", "format"},
		"empty.img":        {"", "format"},
		"empty":            {"", ""},
		"mbr.bin":          {mbr(63)[:512], ""},
		"track.bin":        {mbr(2048)[:mib], ""},
		"gpt.bin":          {gpt[:34*512], ""},
		"firmware.img":     {strings.Repeat("code", mib/4), ""},
		"odd firmware.img": {strings.Repeat("code", 2*mib) + "x", ""},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(f.content), 0o600))
		if f.want != "" {
			want[filepath.Join(dir, name)] = f.want
		}
	}
	require.Equal(t, want, judged(t, dir))
	for path, verdict := range want {
		require.Equal(t, map[string]string{path: verdict}, judged(t, path))
	}
}

// TestPartsOfOtherPrograms scans differencing disks with their parents, and extents of ESX without their descriptors.
func TestPartsOfOtherPrograms(t *testing.T) {
	t.Parallel()
	off := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Start: 63, Sectors: 6000})
	fsforge.PutNTFS(off, 63, 6000)
	vhd := func(parent string) []byte {
		return vhdforge.New(make([]byte, len(off)), vhdforge.Layout{
			ID: 0xb1, Stored: func(int64) bool { return false }, Parent: &vhdforge.Parent{ID: 0xb0, Relative: parent},
		}).Bytes
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"vhd/base.vhd":   vhdforge.New(off, vhdforge.Layout{ID: 0xb0}).Bytes,
		"vhd/top.avhd":   vhd(`.\base.vhd`),
		"case/Base.vhd":  vhdforge.New(off, vhdforge.Layout{ID: 0xb0}).Bytes,
		"case/top.avhd":  vhd(`.\BASE.VHD`),
		"vhdx/base.vhdx": vhdxforge.New(vhdxforge.Layout{Size: int64(len(off))}).Fill(off).Bytes,
		"vhdx/top.avhdx": vhdxforge.New(vhdxforge.Layout{
			Size: int64(len(off)), DataWrite: "00000000-0000-4000-8000-000000000001", Parent: map[string]string{
				"parent_linkage": "{" + strings.ToUpper(vhdxforge.DataWriteGUID) + "}", "relative_path": `.\base.vhdx`,
			},
		}).Bytes,
		"lone/c-s002.vmdk":  vmdkforge.NewCOWD(off, 1, nil).Bytes,
		"lone/d-delta.vmdk": vmdkforge.NewSESparse(off, 0, nil).Bytes,
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, content, 0o600))
	}
	want := map[string]string{}
	for name, says := range map[string]string{
		"vhd/base.vhd":     "misaligned, refused: snapshot-parent",
		"vhd/top.avhd":     "misaligned, refused: snapshot-child",
		"case/Base.vhd":    "misaligned, refused: snapshot-parent", // its child is one, found or not
		"case/top.avhd":    "reference",
		"vhdx/base.vhdx":   "misaligned, refused: snapshot-parent",
		"vhdx/top.avhdx":   "misaligned, refused: snapshot-child",
		"lone/c-s002.vmdk": "orphan", "lone/d-delta.vmdk": "orphan",
	} {
		want[filepath.Join(dir, filepath.FromSlash(name))] = says
	}
	require.Equal(t, want, judged(t, dir))
}

// judged returns the verdict and the refusals of each image below path, or the code of its error, or its state.
func judged(t *testing.T, path string) map[string]string {
	t.Helper()
	inspector := &Inspector{Boundary: align.DefaultBoundary, Storage: align.Generic()}
	pool := NewPool(2, func(context.Context) (Worker, error) { return inProcess{inspector}, nil })
	out := map[string]string{}
	sum, err := searched(t.Context(), &Task{Paths: []string{path}, Row: func(i *results.Image) error {
		switch i.State {
		case results.Judged:
			out[i.Path] = string(i.Verdict)
		case results.Failed:
			out[i.Path] = i.Error.Code
		default:
			out[i.Path] = string(i.State)
		}
		for _, f := range i.Refusals() {
			out[i.Path] += ", refused: " + f.Code
		}
		return nil
	}}, pool)
	require.NoError(t, err)
	require.Empty(t, sum.Unreadable)
	return out
}
