package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/cli"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// inspected is the result of inspect, of an image or of the disks of a package.
type inspected struct {
	Verdict  align.Verdict   `json:"verdict"`
	Findings []align.Finding `json:"findings"`
	Refusals []align.Finding `json:"refusals"`
	Advice   *align.Advice   `json:"advice"`
	Error    *report.Error   `json:"error"`
	Disks    []struct {
		inspected
		Member  string     `json:"member"`
		Inspect *inspected `json:"inspect"`
	} `json:"disks"`
	Package json.RawMessage `json:"package"`
}

// codeOf returns the code of an error, or an empty string.
func codeOf(e *report.Error) string {
	if e == nil {
		return ""
	}
	return e.Code
}

// ask runs a command in this process and returns its JSON. Its exit code may be a verdict.
func ask[T any](t testing.TB, command, path string) (answer T) {
	t.Helper()
	var out, errs bytes.Buffer
	cli.Run(t.Context(), "test", []string{command, "--json", path}, &out, &errs)
	require.NoError(t, json.Unmarshal(out.Bytes(), &answer), "trueup %s %q: %s%s", command, path, &out, &errs)
	return answer
}

// sameAsInspect requires that a scan reports the same about each image of a folder as inspect, and returns the rows.
func sameAsInspect(t testing.TB, dir string, args ...string) map[string]*results.Image {
	t.Helper()
	cmd := exec.Command(builtPath, append([]string{"scan", "-o", "json"}, args...)...)
	cmd.Dir = dir
	r, _ := end(t, cmd)
	rows := readScan(t, r).rows
	for path, i := range rows {
		if i.State == results.Orphan {
			continue // which inspect reads as a raw disk, or refuses
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		in := ask[inspected](t, "inspect", path)
		switch {
		case in.Package != nil:
			require.Equal(t, codeOf(in.Error), codeOf(i.Error), i.Path)
			require.Len(t, i.Disks, len(in.Disks), i.Path)
			for n := range in.Disks {
				require.Equal(t, in.Disks[n].Member, i.Disks[n].Member)
				one := in.Disks[n].Inspect
				if one == nil {
					one = &in.Disks[n].inspected
				}
				sameDisk(t, i.Path, &i.Disks[n], one)
			}
		case i.State == results.Failed:
			require.Equal(t, codeOf(in.Error), i.Error.Code, "%s: %s", path, i.Error.Message)
		default:
			require.False(t, in.Error != nil && slices.Contains(args, "--check"), "%s: %+v", path, in.Error)
			requireSameVerdict(t, &in, i.Verdict, path)
			require.Len(t, i.Disks, 1, path)
			sameDisk(t, path, &i.Disks[0], &in)
			fix := i.Disks[0].Fix
			if fix == nil {
				continue
			}
			plan := ask[report.Plan](t, "plan", path)
			if len(fix.Refusals) > 0 {
				continue // plan lists the same refusals as inspect
			}
			require.Equal(t, plan.NewSize, fix.NewSize, path)
			require.Equal(t, plan.OldSize, fix.OldSize, path)
			require.Equal(t, plan.Moves, fix.Moves, path)
		}
	}
	return rows
}

// requireSameVerdict compares verdicts. A malformed image has none; without --check a scan does not read all tables of
// a container.
func requireSameVerdict(t testing.TB, in *inspected, verdict align.Verdict, path string) {
	t.Helper()
	if in.Error != nil {
		require.Empty(t, in.Verdict, path)
		return
	}
	require.Equal(t, in.Verdict, verdict, path)
}

// deeper lists findings of inspect alone, which need all tables or all data of an image. A scan reads all tables only
// of disks to realign, and no data.
var deeper = []string{"unreadable-map", "unreadable-data", "container-misaligned"}

// sameDisk compares reports on one disk. For an aligned disk, a scan reads only what the verdict needs: not the boot
// chain, files, or reasons against a realignment.
func sameDisk(t testing.TB, path string, d *results.Disk, in *inspected) {
	t.Helper()
	if d.Error != nil {
		require.Equal(t, codeOf(in.Error), d.Error.Code, path)
		return
	}
	requireSameVerdict(t, in, d.Verdict, path)
	for _, f := range d.Findings {
		require.Contains(t, in.Findings, f, path)
	}
	if d.Verdict == align.Aligned || d.Verdict == align.NothingToJudge {
		return
	}
	if in.Error != nil && d.Unplanned == nil {
		require.True(t, slices.ContainsFunc(in.Findings,
			func(f align.Finding) bool { return slices.Contains(deeper, f.Code) }), "%s: %v", path, in.Findings)
	}
	for _, f := range in.Findings {
		if !slices.Contains(deeper, f.Code) {
			require.Contains(t, d.Findings, f, path)
		}
	}
	if d.Unplanned != nil {
		require.Equal(t, codeOf(in.Error), d.Unplanned.Code, path)
		return
	}
	require.Equal(t, in.Refusals, d.Fix.Refusals, path)
	require.Equal(t, in.Advice, d.Advice, path)
}

// TestScanAgreesWithInspect compares the two for all disks of other tests.
func TestScanAgreesWithInspect(t *testing.T) {
	t.Parallel()
	t.Run("disks of sfdisk and mkfs", func(t *testing.T) {
		dir := t.TempDir()
		for i, d := range madeDisks {
			raw := d.make(t, t.TempDir())
			for _, f := range diskFormats {
				to := filepath.Join(dir, string(rune('a'+i)), f.name)
				require.NoError(t, os.MkdirAll(to, 0o755))
				f.convert(t, raw, to, "disk", d.adapter)
			}
		}
		sameAsInspect(t, dir, ".")
	})
	t.Run("disks of texts", func(t *testing.T) {
		dir := t.TempDir()
		for name, path := range disktest.Fixtures(t) {
			d := disktest.Fixture(t, path)
			if d.SectorSize() == sectorSize { // a raw file cannot name its further files
				require.NoError(t, os.Rename(disktest.Materialize(t, d), filepath.Join(dir, name+".img")))
			}
		}
		sameAsInspect(t, dir, ".")
	})
	t.Run("the corpus", func(t *testing.T) {
		sameAsInspect(t, unpackedCorpus(t), ".")
	})
}

// TestScanOfHostileImages scans a library of good disks and of the hostile images that need no flags, in make test a
// sixth of them: each costs only its own row, with the error of inspect. Hostile file names are left out, since a scan
// looks in their folders, too.
func TestScanOfHostileImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	all := slices.DeleteFunc(hostile.All(), func(r hostile.Row) bool { return r.Format != "" || r.Name < "T08" })
	for i, h := range all {
		if !disktest.Share(h.Name) {
			continue
		}
		at := filepath.Join(dir, fmt.Sprintf("%03d", i))
		require.NoError(t, os.Mkdir(at, 0o755))
		h.Write(t, at)
		if i%5 == 0 {
			good := filepath.Join(dir, fmt.Sprintf("%03d-good", i))
			require.NoError(t, os.Mkdir(good, 0o755))
			offDisk().Write(t, filepath.Join(good, "good.img"))
		}
	}
	rows := sameAsInspect(t, dir, "--check", ".")
	require.Greater(t, len(rows), len(all)/8)
	for path, i := range rows {
		if filepath.Base(path) == "good.img" {
			require.True(t, off(i), path)
		}
		require.NotEqual(t, "internal", codeOf(i.Error), "%s: %v", path, i.Error)
	}
}
