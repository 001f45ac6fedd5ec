package report_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/report"
)

// containerLines returns the lines of a report that speak of parents and data.
func containerLines(t *testing.T, i report.Image) string {
	t.Helper()
	var out bytes.Buffer
	(&report.Text{W: &out}).Inspect(&report.Inspect{Image: i})
	var lines []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "  Parent") || strings.HasPrefix(line, "  Data") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return strings.Join(lines, "\n")
}

func TestDataInWords(t *testing.T) {
	const gib = 1 << 30
	n := int64(900 << 20)
	for want, u := range map[string]report.Usage{
		"nothing of 8 GiB stored in the container": {Complete: true},
		"8 GiB of 8 GiB stored in the container, in 1 " +
			"piece": {Stored: 8 * gib, Pieces: 1, Complete: true},
		"2 GiB of 8 GiB stored in the container, in 37 " +
			"pieces": {Stored: 2 * gib, Pieces: 37, Complete: true},
		"2 GiB of 8 GiB stored in the container, " +
			"compressed": {Compressed: 2 * gib, Complete: true},
		"nothing of 8 GiB stored in the container, 3 GiB in " +
			"parents": {Inherited: 3 * gib, Complete: true},
		"nothing of 8 GiB stored in the container: its map is too long to look at all of it": {},
		"at least 1 GiB of 8 GiB stored in the container, in 9 pieces: its map is too long to look at all of " +
			"it": {Stored: gib, Pieces: 9},
		"2 GiB of 8 GiB stored in the container, in 37 pieces (3 out of order), 900 MiB not " +
			"zero": {Stored: 2 * gib, Pieces: 37, Unordered: 3, NonZero: &n, Complete: true},
		"2 GiB of 8 GiB stored in the container, in 5 pieces, 1 GiB more compressed, 4 GiB in parents, 900 MiB not " +
			"zero": {Stored: 2 * gib, Pieces: 5, Compressed: gib, Inherited: 4 * gib, NonZero: &n, Complete: true},
	} {
		require.Equal(t, "  Data       "+want, containerLines(t, report.Image{Format: "raw", Size: 8 * gib, Usage: &u}))
	}
	n = 0
	require.Equal(t, "  Data       nothing of 8 GiB stored in the container",
		containerLines(t, report.Image{Size: 8 * gib, Usage: &report.Usage{NonZero: &n, Complete: true}}))
	sparse := report.Image{
		Size: 8 * gib, Usage: &report.Usage{Stored: gib, Pieces: 2, Complete: true},
		Files: []report.File{{Name: "a", Size: 8 * gib, Allocated: gib}},
	}
	require.Equal(t, "  Data       1 GiB of 8 GiB stored on this disk, in 2 pieces", containerLines(t, sparse),
		"holes of the file are not counted")
	require.Empty(t, containerLines(t, report.Image{Format: "raw"}), "nothing is said of what is not known")
}

// Names and ids of parents come from an image.
func TestChains(t *testing.T) {
	img := &image.Image{
		Image: &driver.Image{Disk: disk.New(512, 512, func(int64) (disk.Run, error) {
			return disk.Run{Len: 512},
				nil
		})},
		Chain: []image.Link{
			{Name: "snap\x1b[2J.vmdk", Format: "vmdk", Subformat: "monolithicSparse", ContentID: "1234abcd"},
			{Name: "base.raw", Format: "raw", Subformat: "", ContentID: ""},
		},
	}
	i := report.NewImage(img)
	require.Equal(t, `  Parent     snap\u001b[2J.vmdk (VMDK monolithicSparse, content id 1234abcd)
  Parent     base.raw (raw)`, containerLines(t, i))
	b, err := json.Marshal(i.Chain)
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"name": "snap\u001b[2J.vmdk", "format": "vmdk", "subformat": "monolithicSparse", "content_id": "1234abcd"},
		{"name": "base.raw", "format": "raw"}
	]`, string(b))

	img.Chain = nil
	b, err = json.Marshal(report.NewImage(img).Chain)
	require.NoError(t, err)
	require.JSONEq(t, `[]`, string(b))
}
