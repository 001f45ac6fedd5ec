package layout_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// issuesOf reads a raw disk.
func issuesOf(t *testing.T, path, _ string) ([]ondisk.Issue, error) {
	t.Helper()
	l, err := layout.Read(disktest.Memory(disktest.ReadFile(t, path)), table.Geometry{})
	if err != nil {
		return nil, err
	}
	return l.Issues, nil
}

// A broken table or volume does not hide the rest of the report.
func TestHostileDisks(t *testing.T) {
	hostile.Check(t, hostile.Tables(), issuesOf)
	hostile.Check(t, hostile.Volumes(), issuesOf)
	hostile.Check(t, hostile.Pools(), issuesOf)
	hostile.Check(t, hostile.OneGoodGPT(), issuesOf)
	hostile.Check(t, hostile.OddGPTs(), issuesOf)
	for _, r := range hostile.OneGoodGPT() {
		code := "gpt-backup"
		switch {
		case strings.Contains(r.Name, "alternate"):
			code = "gpt-alternate"
		case strings.Contains(r.Name, "primary"):
			code = "gpt-primary"
		}
		issues, err := issuesOf(t, r.Write(t, t.TempDir()), "")
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(issues, func(i ondisk.Issue) bool {
			return i.Code == code && r.Found(i.Text)
		}), "%s: no %s in %v", r.Name, code, issues)
	}
	for _, r := range append(hostile.Volumes(), hostile.Pools()...) {
		if r.Kind != "" {
			l := read(t, disktest.ReadFile(t, r.Write(t, t.TempDir())))
			require.Equal(t, volume.Kind(r.Kind), l.Partitions[0].Volume.Kind, r.Name)
		}
	}
}
