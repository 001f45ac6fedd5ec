package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// The parts of trueup's JSON answers that these tests look at.

type jsonHead struct {
	Schema   string `json:"schema"`
	Command  string `json:"command"`
	ExitCode int    `json:"exit_code"`
}

type jsonImage struct {
	Path       string `json:"path"`
	Format     string `json:"format"`
	Subformat  string `json:"subformat"`
	SizeBytes  int64  `json:"size_bytes"`
	SectorSize int64  `json:"sector_size_bytes"`
}

type jsonVolume struct {
	Kind  string `json:"kind"`
	Label string `json:"label"`
}

type jsonPartition struct {
	Number     int             `json:"number"`
	Kind       string          `json:"kind"`
	Active     bool            `json:"active"`
	Type       string          `json:"type"`
	Name       string          `json:"name"`
	GUID       string          `json:"guid"`
	StartLBA   int64           `json:"start_lba"`
	StartBytes int64           `json:"start_bytes"`
	SizeBytes  int64           `json:"size_bytes"`
	Aligned    map[string]bool `json:"aligned"`
	Volume     jsonVolume      `json:"volume"`
}

type jsonFinding struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Text     string `json:"text"`
	Remedy   string `json:"remedy"`
}

type jsonInspect struct {
	jsonHead
	Image jsonImage `json:"image"`
	Table struct {
		SectorSize int64 `json:"sector_size_bytes"`
	} `json:"table"`
	Partitions []jsonPartition `json:"partitions"`
	Findings   []jsonFinding   `json:"findings"`
	Verdict    string          `json:"verdict"`
}

type jsonMove struct {
	Partition  int   `json:"partition"`
	FromBytes  int64 `json:"from_bytes"`
	ToBytes    int64 `json:"to_bytes"`
	SizeBytes  int64 `json:"size_bytes"`
	DeltaBytes int64 `json:"delta_bytes"`
}

// jsonPatch lies in the result's disk.
type jsonPatch struct {
	OffsetBytes int64  `json:"offset_bytes"`
	LengthBytes int64  `json:"length_bytes"`
	Old         string `json:"old"`
	New         string `json:"new"`
	Reason      string `json:"reason"`
}

type jsonPlan struct {
	jsonHead
	OldSizeBytes int64       `json:"old_size_bytes"`
	NewSizeBytes int64       `json:"new_size_bytes"`
	Moved        int         `json:"moved"`
	Moves        []jsonMove  `json:"moves"`
	Patches      []jsonPatch `json:"patches"`
	Result       struct {
		SizeBytes  int64           `json:"size_bytes"`
		Partitions []jsonPartition `json:"partitions"`
		Verdict    string          `json:"verdict"`
	} `json:"result"`
}

type jsonAlign struct {
	jsonHead
	Source   string        `json:"source"`
	Dest     string        `json:"dest"`
	Disks    []jsonAligned `json:"disks"`
	Moved    int           `json:"moved"`
	Files    []string      `json:"files"`
	Written  bool          `json:"written"`
	Verified string        `json:"verified"`
}

type jsonAligned struct {
	OldSizeBytes int64       `json:"old_size_bytes"`
	NewSizeBytes int64       `json:"new_size_bytes"`
	Moves        []jsonMove  `json:"moves"`
	Patches      []jsonPatch `json:"patches"`
	Format       string      `json:"format"`
	Subformat    string      `json:"subformat"`
}

type jsonVerify struct {
	Equal bool `json:"equal"`
}

// trueupJSON runs a command with --json, requires that it ends with wantCode and says so in its answer, and returns
// the answer.
func trueupJSON[T any](t testing.TB, wantCode int, args ...string) T {
	t.Helper()
	r := trueup(t, append(args, "--json")...)
	require.Equal(t, wantCode, r.code, "trueup %q\n%s%s", args, r.stdout, r.stderr)
	var head jsonHead
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &head), "one JSON object is wanted:\n%s", r.stdout)
	require.Equal(t, jsonHead{Schema: "trueup/1", Command: args[0], ExitCode: wantCode}, head)
	var answer T
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &answer), "%s", r.stdout)
	return answer
}
