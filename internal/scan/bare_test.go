package scan

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
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

// judged returns the verdict or the code of the error of each image below path.
func judged(t *testing.T, path string) map[string]string {
	t.Helper()
	inspector := &Inspector{Boundary: align.DefaultBoundary, Storage: align.Generic()}
	pool := NewPool(2, func(context.Context) (Worker, error) { return inProcess{inspector}, nil })
	out := map[string]string{}
	sum, err := searched(t.Context(), &Task{Paths: []string{path}, Row: func(i *results.Image) error {
		out[i.Path] = string(i.Verdict)
		if i.Error != nil {
			out[i.Path] = i.Error.Code
		}
		return nil
	}}, pool)
	require.NoError(t, err)
	require.Empty(t, sum.Unreadable)
	return out
}
