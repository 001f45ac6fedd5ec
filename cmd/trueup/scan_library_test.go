package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// TestScanLibrary is the bulk check as a user runs it: hundreds of images in all formats and the disorder of a real
// library, with hostile ones in between. Each row equals the record that was written when the images were made.
func TestScanLibrary(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes hundreds of images")
	}
	dir, record := madeLibrary(t)
	strangers := writeStrangers(t, dir, record)
	require.Greater(t, len(strangers), 50)
	r := trueup(t, "scan", "-o", "json", dir)
	require.Equal(t, 1, r.code, r.stderr)
	s := parseScan(t, r.stdout)
	require.Empty(t, compareLibrary(t, dir, record, strangers, s), "differences")
	require.True(t, s.summary.Complete)
	require.Empty(t, s.summary.Unreadable)
}

// sampleRecord is a record of three images, and a scan that equals it.
func sampleRecord(t testing.TB) ([]expectedImage, []stranger, *scanned) {
	t.Helper()
	fs := "ntfs"
	first := expectedDisk{Size: 1 << 20, Scheme: "mbr", Verdict: "misaligned", Partitions: []expectedPartition{
		{
			Number: 1, Kind: "primary", Start: 63 * 512, Size: 1 << 19, Verdict: "misaligned", FileSystem: &fs,
			Label: "System",
		},
	}}
	whole := expectedDisk{
		Member: "d.vmdk", Size: 1 << 20, Scheme: "none", Verdict: "aligned",
		Volume: &expectedVolume{"ext4", "root"},
	}
	record := []expectedImage{
		{
			Path: "a.vmdk", Files: []string{"a.vmdk", "a-flat.vmdk"}, State: "judged", Format: "vmdk",
			Subformat: "monolithicFlat", Verdict: "misaligned", Disks: []expectedDisk{first},
		},
		{
			Path: "b.ova", Files: []string{"b.ova"}, Also: []string{"x/c.ova"}, State: "judged", Format: "ova",
			Verdict: "aligned", Disks: []expectedDisk{whole},
		},
		{Path: "d-flat.vmdk", Files: []string{"d-flat.vmdk"}, State: "orphan", Format: "vmdk"},
	}
	row := func(path string, files ...string) *results.Image {
		i := results.NewImage("/lib/" + path)
		i.State, i.Size, i.Verdict = results.Judged, 1<<20, align.Misaligned
		for _, name := range files {
			i.Files = append(i.Files, results.File{Name: name})
		}
		return i
	}
	a := row("a.vmdk", "a.vmdk", "a-flat.vmdk")
	a.Format, a.Subformat = "vmdk", "monolithicFlat"
	a.Disks = []results.Disk{{Disk: report.Disk{
		Size: 1 << 20, Table: report.Table{Scheme: "mbr"},
		Verdict: align.Misaligned, Partitions: []report.Partition{
			{
				Number: 1, Kind: "primary", Start: 63 * 512, Size: 1 << 19, Verdict: align.Misaligned,
				Volume: &report.Volume{Kind: "ntfs", Label: "System"},
			},
		},
	}}}
	b := row("x/c.ova", "c.ova")
	b.Format, b.Verdict = "ova", align.Aligned
	b.Disks = []results.Disk{{Member: "d.vmdk", Disk: report.Disk{
		Size: 1 << 20, Table: report.Table{Scheme: "none"},
		Verdict: align.Aligned, Volume: &report.Volume{Kind: "ext4", Label: "root"},
	}}}
	d := row("d-flat.vmdk", "d-flat.vmdk")
	d.State, d.Verdict = results.Orphan, ""
	bad := row("T01/disk.vmdk", "disk.vmdk")
	bad.Fail("reference", "no")
	s := results.NewSummary()
	var text strings.Builder
	for _, i := range []*results.Image{a, b, d, bad, row("T01/x-flat.vmdk")} {
		s.Add(i)
		require.NoError(t, json.NewEncoder(&text).Encode(i))
	}
	require.NoError(t, json.NewEncoder(&text).Encode(s))
	return record, []stranger{{name: "T01", path: "/lib/T01/disk.vmdk", code: "reference"}}, parseScan(t, text.String())
}

// TestScanComparison makes sure that the comparison sees what it is for.
func TestScanComparison(t *testing.T) {
	t.Parallel()
	record, strangers, s := sampleRecord(t)
	require.Empty(t, compareLibrary(t, "/lib", record, strangers, s))
	for says, change := range map[string]func(s *scanned){
		`"a.vmdk": 0 rows, want one`:              func(s *scanned) { delete(s.rows, "/lib/a.vmdk") },
		`"b.ova": 2 rows, want one`:               func(s *scanned) { s.rows["/lib/b.ova"] = s.rows["/lib/x/c.ova"] },
		`"/lib/b": two rows`:                      func(s *scanned) { s.again = []string{"/lib/b"} },
		`"/lib/n.txt": a row of what is no image`: func(s *scanned) { s.rows["/lib/n.txt"] = s.rows["/lib/a.vmdk"] },
		"state failed, want judged":               func(s *scanned) { s.rows["/lib/a.vmdk"].Fail("io", "gone") },
		"state judged, want orphan": func(s *scanned) {
			s.rows["/lib/d-flat.vmdk"].State = results.Judged
		},
		"subformat vmfs, want monolithicFlat": func(s *scanned) { s.rows["/lib/a.vmdk"].Subformat = "vmfs" },
		`file "a-flat.vmdk" is not listed`: func(s *scanned) {
			s.rows["/lib/a.vmdk"].Files = s.rows["/lib/a.vmdk"].Files[:1]
		},
		`file "z" is not its own`:          func(s *scanned) { s.rows["/lib/a.vmdk"].Files[0].Name = "z" },
		`parents ["p"], want []`:           func(s *scanned) { s.rows["/lib/a.vmdk"].Parents = []string{"p"} },
		"verdict aligned, want misaligned": func(s *scanned) { s.rows["/lib/a.vmdk"].Verdict = align.Aligned },
		"disks 0, want 1":                  func(s *scanned) { s.rows["/lib/a.vmdk"].Disks = nil },
		"partition 1 start 1, want 32256": func(s *scanned) {
			s.rows["/lib/a.vmdk"].Disks[0].Partitions[0].Start = 1
		},
		"partition 1 volume {fat16 System}": func(s *scanned) {
			s.rows["/lib/a.vmdk"].Disks[0].Partitions[0].Volume.Kind = "fat16"
		},
		"volume {ext4 <b>}, want {ext4 root}": func(s *scanned) {
			s.rows["/lib/x/c.ova"].Disks[0].Volume.Label = "<b>"
		},
		"member e.vmdk, want d.vmdk": func(s *scanned) {
			s.rows["/lib/x/c.ova"].Disks[0].Member = "e.vmdk"
		},
		"T01: no row": func(s *scanned) { delete(s.rows, "/lib/T01/disk.vmdk") },
		"T01: error &{format no}, want reference": func(s *scanned) {
			s.rows["/lib/T01/disk.vmdk"].Error.Code = "format"
		},
		`T01: state judged, verdict "aligned"`: func(s *scanned) {
			i := s.rows["/lib/T01/disk.vmdk"]
			i.State, i.Verdict = results.Judged, align.Aligned
		},
		"summary: misaligned 1, want 2": func(s *scanned) { s.summary.Misaligned-- },
		"summary: failed 7, want 1":     func(s *scanned) { s.summary.Failed = 7 },
		"no summary":                    func(s *scanned) { s.summary = nil },
	} {
		_, _, s := sampleRecord(t)
		change(s)
		require.Contains(t, strings.Join(compareLibrary(t, "/lib", record, strangers, s), "\n"), says)
	}
}
