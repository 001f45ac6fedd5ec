package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/cli"
	"github.com/trueup/trueup/internal/disktest"
)

// inspected is what inspect says, of an image or of the disks of a package.
type inspected struct {
	Verdict  string          `json:"verdict"`
	Findings []jsonFinding   `json:"findings"`
	Refusals []jsonFinding   `json:"refusals"`
	Advice   json.RawMessage `json:"advice"`
	Error    *struct{ Code string }
	Disks    []struct {
		inspected
		Member  string     `json:"member"`
		Inspect *inspected `json:"inspect"`
	} `json:"disks"`
	Package json.RawMessage `json:"package"`
}

// code is that of the error, empty if absent.
func (i *inspected) code() string {
	if i.Error == nil {
		return ""
	}
	return i.Error.Code
}

func (r *scanRow) code() string {
	if r.Error == nil {
		return ""
	}
	return r.Error.Code
}

// ask runs a command in this process and returns its JSON. Exit codes are verdicts.
func ask[T any](t testing.TB, command, path string) (answer T) {
	t.Helper()
	var out, errs bytes.Buffer
	cli.Run(t.Context(), "test", []string{command, "--json", path}, &out, &errs)
	require.NoError(t, json.Unmarshal(out.Bytes(), &answer), "trueup %s %q: %s%s", command, path, &out, &errs)
	return answer
}

// sameAsInspect requires that a scan says about each image what inspect says about it alone.
func sameAsInspect(t testing.TB, dir string, args ...string) {
	t.Helper()
	rows, _ := scanJSON(t, dir, args...)
	for _, r := range rows {
		if r.State == "orphan" {
			continue // which inspect takes for a raw disk, or refuses
		}
		path := r.name()
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		in := ask[inspected](t, "inspect", path)
		switch {
		case in.Package != nil:
			sameDisks(t, r, &in)
		case r.State == "failed":
			sameError(t, r, &in)
		default:
			require.False(t, in.Error != nil && slices.Contains(args, "--check"), "%s: %+v", path, in.Error)
			requireSameVerdict(t, &in, r.Verdict, path)
			require.Len(t, r.Disks, 1, path)
			sameDisk(t, path, &r.Disks[0], &in)
			samePlan(t, path, &r.Disks[0])
		}
	}
}

// requireSameVerdict compares verdicts. What is malformed has none; without --check a scan does not walk over all
// tables of a container.
func requireSameVerdict(t testing.TB, in *inspected, verdict, path string) {
	t.Helper()
	if in.Error != nil {
		require.Empty(t, in.Verdict, path)
		return
	}
	require.Equal(t, in.Verdict, verdict, path)
}

// sameError compares the errors of an image that cannot be judged.
func sameError(t testing.TB, r *scanRow, in *inspected) {
	t.Helper()
	require.Equal(t, in.code(), r.code(), "%s: %s", r.Path, r.Error.Message)
}

// sameDisks compares the disks of a package.
func sameDisks(t testing.TB, r *scanRow, in *inspected) {
	t.Helper()
	require.Equal(t, in.code(), r.code(), r.Path)
	require.Len(t, r.Disks, len(in.Disks), r.Path)
	for i := range in.Disks {
		require.Equal(t, in.Disks[i].Member, r.Disks[i].Member)
		one := in.Disks[i].Inspect
		if one == nil {
			one = &in.Disks[i].inspected
		}
		sameDisk(t, r.Path, &r.Disks[i], one)
	}
}

// deeper are findings of inspect alone: what is told by all tables or all data of an image. A scan walks over the
// tables of those that are to be realigned only, and reads the data of none.
var deeper = []string{"unreadable-map", "unreadable-data", "container-misaligned"}

// sameDisk compares what is said of one disk. Of an aligned disk a scan reads no more than its verdict needs: not how
// it boots, what its files remember, or why it could not be realigned.
func sameDisk(t testing.TB, path string, d *scanDisk, in *inspected) {
	t.Helper()
	if d.Error != nil {
		require.Equal(t, in.code(), d.Error.Code, path)
		return
	}
	requireSameVerdict(t, in, d.Verdict, path)
	for _, f := range d.Findings {
		require.Contains(t, in.Findings, f, path)
	}
	if d.Verdict == "aligned" || d.Verdict == "nothing_to_judge" {
		return
	}
	if in.Error != nil && d.Unplanned == nil {
		require.True(t, slices.ContainsFunc(in.Findings,
			func(f jsonFinding) bool { return slices.Contains(deeper, f.Code) }), "%s: %v", path, in.Findings)
	}
	for _, f := range in.Findings {
		if !slices.Contains(deeper, f.Code) {
			require.Contains(t, d.Findings, f, path)
		}
	}
	if d.Unplanned != nil {
		require.Equal(t, in.code(), d.Unplanned.Code, path)
		return
	}
	require.Equal(t, in.Refusals, d.Fix.Refusals, path)
	require.JSONEq(t, string(in.Advice), string(d.Advice), path)
}

// samePlan compares the fix with what plan says.
func samePlan(t testing.TB, path string, d *scanDisk) {
	t.Helper()
	if d.Fix == nil {
		return
	}
	plan := ask[jsonPlan](t, "plan", path)
	if len(d.Fix.Refusals) > 0 {
		return // plan says them as inspect does
	}
	require.Equal(t, plan.NewSizeBytes, d.Fix.NewSize, path)
	require.Equal(t, plan.OldSizeBytes, d.Fix.OldSize, path)
	require.Equal(t, plan.Moves, d.Fix.Moves, path)
}

// TestScanSaysWhatInspectSays compares the two on all disks that other tests have.
func TestScanSaysWhatInspectSays(t *testing.T) {
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
			if d.SectorSize() == sectorSize { // a raw file cannot say that it has others
				require.NoError(t, os.Rename(disktest.Materialize(t, d), filepath.Join(dir, name+".img")))
			}
		}
		sameAsInspect(t, dir, ".")
	})
	t.Run("the corpus", func(t *testing.T) {
		sameAsInspect(t, unpackedCorpus(t), ".")
	})
}
