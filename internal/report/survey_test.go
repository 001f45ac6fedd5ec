package report_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/table"
)

// both reports on a disk as scan does at first, and as inspect does. Findings and the boot chain are left out: a survey
// has fewer, and none.
func both(t *testing.T, d disk.Disk) (survey, full report.Disk) {
	t.Helper()
	goal := align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary}
	out := make([]report.Disk, 0, 2)
	for _, read := range []func(disk.Disk, table.Geometry) (*layout.Layout, error){layout.Survey, layout.Read} {
		l, err := read(d, table.Geometry{})
		require.NoError(t, err)
		r := report.NewDisk(l, goal.Must, align.Check(l, goal))
		r.Findings, r.Chain, r.Unseen, r.Guest = nil, nil, nil, nil
		out = append(out, r)
	}
	return out[0], out[1]
}

func TestSurveySaysWhatInspectSays(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			survey, full := both(t, disktest.Fixture(t, path))
			require.Equal(t, full, survey)
		})
	}
}

func TestSurveyOfTheCorpus(t *testing.T) {
	for _, dir := range []string{
		"cdi", "dftt", "dfvfs", "discutils", "glance", "gptman", "imagemounter", "keramics",
		"libldm", "mbrman", "osv-scalibr", "qemu", "vmdk-rs",
	} {
		t.Run(dir, func(t *testing.T) {
			set := disktest.CorpusSet(t, dir)
			list, err := os.ReadDir(set)
			require.NoError(t, err)
			for _, e := range list {
				img, err := image.Open(filepath.Join(set, e.Name()), image.Options{})
				if err != nil {
					continue // an extent, or hostile: tests of their own say what becomes of them
				}
				survey, full := both(t, img.Disk)
				require.Equal(t, full, survey, e.Name())
				require.NoError(t, img.Close())
			}
		})
	}
}
