package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/table"
)

// `go test ./internal/report -update` writes the reports of the corpus again; read their diff before you commit it.
var update = flag.Bool("update", false, "rewrite testdata/corpus/*.json")

// inspect returns the report of a disk without a container.
func inspect(t *testing.T, name string, d disk.Disk) *report.Inspect {
	t.Helper()
	l, err := layout.Read(d, table.Geometry{})
	require.NoError(t, err)
	goal := align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary}
	r := &report.Inspect{
		Head: report.Head{Origin: report.Origin{Schema: report.Schema, Command: "inspect"}},
		Image: report.Image{
			Path: name, Format: "raw", Size: d.Size(), SectorSize: d.SectorSize(), Files: []report.File{},
			Chain: []report.Link{},
		},
		Disk:     report.NewDisk(l, goal.Must, align.Check(l, goal)),
		Refusals: []align.Finding{},
	}
	require.NoError(t, l.ReadGaps(d))
	p, err := plan.New(l, align.GoalFor(l, align.Boundary{}))
	require.NoError(t, err)
	r.Refusals = append(r.Refusals, p.Refusals(false)...)
	r.Advice = align.For(l, align.Case{Boundary: goal.Must, Storage: align.Generic(), Refusals: r.Refusals})
	r.ExitCode = r.Verdict.ExitCode()
	return r
}

// Each disk of the corpus gives the report that stands beside it.
func TestCorpus(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			require.NoError(t, report.JSON(&got, inspect(t, name+".disk", disktest.Fixture(t, path))))
			golden := strings.TrimSuffix(path, ".disk") + ".json"
			if *update {
				require.NoError(t, os.WriteFile(golden, got.Bytes(), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err, "go test ./internal/report -update makes it")
			require.Equal(t, string(want), got.String())
		})
	}
}

// All of them are legal disks, though not all can be moved. What is wrong with illegal ones is a matter of the hostile
// cases.
func TestCorpusHasNoErrors(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		for _, f := range inspect(t, name, disktest.Fixture(t, path)).Findings {
			if name == "dynamic-disk" && f.Code == "ldm" {
				continue
			}
			require.NotEqual(t, align.Error, f.Severity, "%s: %s", name, f.Text)
		}
	}
}

// sfdiskTable is what `sfdisk --json` prints.
type sfdiskTable struct {
	PartitionTable struct {
		Label      string `json:"label"`
		ID         string `json:"id"`
		SectorSize int64  `json:"sectorsize"`
		Partitions []struct {
			Node     string `json:"node"`
			Start    int64  `json:"start"`
			Size     int64  `json:"size"`
			Type     string `json:"type"`
			Bootable bool   `json:"bootable"`
			Name     string `json:"name"`
		} `json:"partitions"`
	} `json:"partitiontable"`
}

// The goldens could hold a mistake of ours for ever. sfdisk reads the same disks.
func TestCorpusAgreesWithSfdisk(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			d := disktest.Fixture(t, path)
			raw := disktest.Materialize(t, d)
			var other sfdiskTable
			out := disktest.Output(t, "sfdisk", "--json", raw)
			require.NoError(t, json.Unmarshal([]byte(out), &other))
			r, want := inspect(t, name, d), other.PartitionTable
			require.Equal(t, map[string]string{"dos": "mbr", "gpt": "gpt"}[want.Label], r.Table.Scheme)
			require.Equal(t, strings.ToLower(want.ID), r.Table.Signature+r.Table.GUID)
			require.Len(t, r.Partitions, len(want.Partitions))
			for i, w := range want.Partitions {
				got := r.Partitions[i]
				require.Equal(t, strings.TrimPrefix(w.Node, raw), strconv.Itoa(got.Number))
				require.Equal(t, w.Start, got.StartLBA, "start of %d", got.Number)
				require.Equal(t, w.Start*want.SectorSize, got.Start, "start of %d", got.Number)
				require.Equal(t, w.Size*want.SectorSize, got.Size, "size of %d", got.Number)
				require.Equal(t, w.Bootable, got.Active, "flag of %d", got.Number)
				require.Equal(t, w.Name, got.Name, "name of %d", got.Number)
				if want.Label == "dos" {
					require.Equal(t, w.Type, strings.TrimLeft(strings.TrimPrefix(got.Type, "0x"), "0"), "type of %d",
						got.Number)
				} else {
					require.Equal(t, strings.ToLower(w.Type), got.Type, "type of %d", got.Number)
				}
			}
		})
	}
}

// blkid names the volumes of the same disks, from the same bytes.
func TestCorpusAgreesWithBlkid(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			d := disktest.Fixture(t, path)
			raw := disktest.Materialize(t, d)
			for _, p := range inspect(t, name, d).Partitions {
				// Tables inside of partitions are none of its business; the tests of package layout ask partx.
				if p.Volume == nil || slices.Contains([]string{"unknown", "disklabel", "ldm"}, p.Volume.Kind) {
					continue
				}
				out := disktest.Output(t, "blkid", "--probe", "--output", "export", "--offset", fmt.Sprint(p.Start),
					"--size", fmt.Sprint(p.Size), raw)
				want := map[string]string{}
				for line := range strings.Lines(out) {
					key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
					want[key] = strings.ReplaceAll(value, `\ `, " ")
				}
				kind := p.Volume.Kind
				if strings.HasPrefix(kind, "fat") {
					require.Equal(t, strings.ToUpper(kind), want["VERSION"], "partition %d", p.Number)
					kind = "vfat"
				}
				require.Equal(t, kind, want["TYPE"], "partition %d", p.Number)
				require.Equal(t, want["LABEL"], p.Volume.Label, "partition %d", p.Number)
				require.Equal(t, want["UUID"], p.Volume.UUID, "partition %d", p.Number)
			}
		})
	}
}
