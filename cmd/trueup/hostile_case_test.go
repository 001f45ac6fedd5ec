package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// hostileExits are the exit codes of inspect, and of plan and align, on an image from a stranger.
var hostileExits = map[hostile.End][2]int{
	hostile.Unread: {1, 1}, hostile.Refused: {4, 4}, hostile.Broken: {1, 1}, hostile.Kept: {3, 4},
	hostile.Sound: {3, 0},
}

// TestHostileImages has the commands end on one image from a stranger for each end and code, on those with escapes for
// a terminal, and on all of them with make exhaustive: as expected, with one line on stderr each, and with nothing
// written anywhere. The packages of formats, tables and volumes hold each image to its message.
func TestHostileImages(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range append(hostile.All(), hostile.Nodes()...) {
		kind := fmt.Sprint(r.End, r.Code)
		if seen[kind] && !strings.HasSuffix(r.Name, "escapes in its label") && !disktest.Exhaustive {
			continue
		}
		seen[kind] = true
		t.Run(r.Name, func(t *testing.T) {
			dir, out := t.TempDir(), t.TempDir()
			path := r.Write(t, dir)
			before := folderState(t, dir)
			runs := [][]string{
				{"inspect", "--json", path},
				{"inspect", path},
				{"plan", "--json", path},
				{"align", path, filepath.Join(out, "d.raw")},
			}
			for i := range runs {
				if r.Format != "" {
					runs[i] = append(runs[i], "--format", r.Format)
				}
			}
			ends := measure(t, runs...)
			for i, end := range ends {
				require.Equal(t, hostileExits[r.End][i/2], end.code, "%q: %s", runs[i], end.stderr)
				requireClean(t, end.stdout, end.stderr)
				switch {
				case wantsJSON(runs[i]):
					f := parseFailure(t, end)
					require.Equal(t, end.code == 1 || end.code == 4, f.Error != nil, end.stdout)
					if f.Error != nil {
						require.Equal(t, r.Code, f.Error.Code, f.Error.Message)
					}
				case end.code == 1 || end.code == 4:
					// One line names the image and everything that the case is about.
					line, rest, ended := strings.Cut(end.stderr, "\n")
					require.True(t, ended && rest == "", "one line:\n%s", end.stderr)
					require.True(t, strings.HasPrefix(line, "trueup: "), line)
					for _, part := range append(r.Says, filepath.Base(path)) {
						require.Contains(t, line, part)
					}
				case end.code == 3:
					require.Empty(t, end.stderr)
				}
			}
			report := parseFailure(t, ends[0])
			require.Equal(t, r.End >= hostile.Broken, report.Image != nil, ends[0].stdout)
			require.Equal(t, r.End >= hostile.Broken, ends[1].stdout != "", "inspect prints a report")
			require.True(t, report.Image == nil || len(r.Says) == 0 ||
				slices.ContainsFunc(report.Findings, func(f jsonFinding) bool { return r.Found(f.Text) }), "%q",
				report.Findings)
			require.True(t, r.End == hostile.Sound || ends[3].stdout == "", "align has no result")
			lines := strings.Count(ends[1].stdout, "\n")
			require.True(t, r.End != hostile.Sound || lines < 150+2*len(report.Partitions),
				"a row and a finding for each partition")
			require.Equal(t, before, folderState(t, dir))
			require.Equal(t, r.End == hostile.Sound, len(folderNames(t, out)) > 0, "neither DEST nor a part of it")
		})
	}
}

// failure is the part of a JSON answer that says why a command failed.
type failure struct {
	jsonHead
	Image *jsonImage `json:"image"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Partitions []json.RawMessage `json:"partitions"`
	Findings   []jsonFinding     `json:"findings"`
}

func parseFailure(t testing.TB, r result) failure {
	t.Helper()
	var f failure
	unmarshal(t, r, &f)
	require.Equal(t, "trueup/1", f.Schema)
	require.Equal(t, r.code, f.ExitCode, "the JSON object and the process")
	return f
}

func unmarshal(t testing.TB, r result, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(r.stdout), v), r.stdout)
}

// requireClean refuses what a terminal would obey: control characters of both sets, but for the ends of lines, and
// those that reverse the direction of text. Bytes that are no UTF-8 can be controls of the second set.
func requireClean(t testing.TB, texts ...string) {
	t.Helper()
	for _, s := range texts {
		require.True(t, utf8.ValidString(s), "%q", s)
		bad := strings.IndexFunc(s, func(r rune) bool {
			return (unicode.IsControl(r) && r != '\n') || r == '\u202e'
		})
		if bad >= 0 {
			require.Failf(t, "control character", "%q", s[bad:min(len(s), bad+40)])
		}
	}
}

// folderState is what a stranger's folder looks like; contents are compared where they can be read.
func folderState(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	state := map[string]string{}
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		state[entry.Name()] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		if info.Mode().Type() == fs.FileMode(0) && info.Size() < 64<<20 {
			state[entry.Name()] += sha256Of(t, filepath.Join(dir, entry.Name()))
		}
	}
	return state
}

// writeText makes a text file, such as a descriptor, the image.
func writeText(name, text string) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
}

// writeForged makes a forged image the file.
func writeForged(name string, image forge.Bytes) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		image.Write(t, path)
		return path
	}
}

// xpSectors is the size of the disk that most forged images hold: one partition at LBA 63, of an unknown kind.
const xpSectors = hostile.Sectors

func slot(kind byte, start, sectors uint32) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: start, Sectors: sectors}
}

// flatImage writes a descriptor and the flat file that it names.
func flatImage(text string) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		hostile.Disk().Write(t, filepath.Join(dir, "x-flat.vmdk"))
		return writeText("disk.vmdk", text)(t, dir)
	}
}

// goodFlat is the descriptor of flatImage.
func goodFlat() string {
	return vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW %d FLAT "x-flat.vmdk" 0`, xpSectors))
}

// changed is that descriptor with one text replaced.
func changed(old, new string) string { return strings.Replace(goodFlat(), old, new, 1) }

// poolImage is a disk with one partition at LBA 63 that put fills. Offsets of put count from the partition.
func poolImage(kind byte, size int64, put func(v forge.Bytes)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := tableforge.NewMBR(int(trackSectors+size/512+2048), slot(kind, trackSectors, uint32(size/512)))
		put(disk[trackSectors*512:][:size])
		return writeForged("disk.raw", disk)(t, dir)
	}
}
