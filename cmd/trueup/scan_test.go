package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// scanRow is what these tests look at of a row.
type scanRow struct {
	Event     string        `json:"event"`
	Path      string        `json:"path"`
	PathBytes string        `json:"path_base64"`
	State     string        `json:"state"`
	Format    string        `json:"format"`
	Verdict   string        `json:"verdict"`
	Disks     []scanDisk    `json:"disks"`
	Findings  []jsonFinding `json:"findings"`
	Files     []struct {
		Name string `json:"name"`
	} `json:"files"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

type scanDisk struct {
	Member     string          `json:"member"`
	Verdict    string          `json:"verdict"`
	Depth      string          `json:"depth"`
	Findings   []jsonFinding   `json:"findings"`
	Partitions json.RawMessage `json:"partitions"`
	Advice     json.RawMessage `json:"advice"`
	Fix        *struct {
		OldSize  int64         `json:"old_size_bytes"`
		NewSize  int64         `json:"new_size_bytes"`
		Moves    []jsonMove    `json:"moves"`
		Refusals []jsonFinding `json:"refusals"`
	} `json:"fix"`
	Error     *struct{ Code string } `json:"error"`
	Unplanned *struct{ Code string } `json:"unplanned"`
}

type scanSummary struct {
	Complete   bool `json:"complete"`
	Images     int  `json:"images"`
	Skipped    int  `json:"skipped_files"`
	Unreadable []struct {
		Path  string                `json:"path"`
		Error struct{ Code string } `json:"error"`
	} `json:"unreadable"`
	ExitCode int `json:"exit_code"`
}

// name is the path as bytes.
func (r *scanRow) name() string {
	if b, err := base64.StdEncoding.DecodeString(r.PathBytes); err == nil && len(b) > 0 {
		return string(b)
	}
	return r.Path
}

// String is the row in a few words: state, verdict or error, and why a copy is refused.
func (r *scanRow) String() string {
	s := r.State
	if r.Verdict != "" {
		s += " " + r.Verdict
	}
	if r.Error != nil {
		s += " " + r.Error.Code
	}
	var refused []string
	for _, d := range r.Disks {
		if d.Fix != nil {
			for _, f := range d.Fix.Refusals {
				refused = append(refused, f.Code)
			}
		}
	}
	if len(refused) > 0 {
		s += ", refused: " + strings.Join(refused, " ")
	}
	return s
}

// scanJSON runs a scan in a folder, as a user who stands there.
func scanJSON(t testing.TB, dir string, args ...string) (rows []*scanRow, sum scanSummary) {
	t.Helper()
	out, errs, code := scanRun(t, dir, args...)
	rows, sum = linesOfScan(t, strings.NewReader(out))
	// --since tells of images that are there no more.
	rows = slices.DeleteFunc(rows, func(r *scanRow) bool { return r.State == "gone" })
	require.Equal(t, sum.ExitCode, code, errs)
	require.Len(t, rows, sum.Images)
	require.True(t, sum.Complete)
	return rows, sum
}

// scanRun is what a scan prints, and its exit code.
func scanRun(t testing.TB, dir string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(builtPath, append([]string{"scan", "-o", "json"}, args...)...)
	cmd.Dir = dir
	r, _ := end(t, cmd)
	require.GreaterOrEqual(t, r.code, 0, r.stderr)
	return r.stdout + reportOf(t, args), r.stderr, r.code
}

func linesOfScan(t testing.TB, out io.Reader) (rows []*scanRow, sum scanSummary) {
	t.Helper()
	ended := false
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			require.True(t, ended, "the last line is the summary")
			return rows, sum
		}
		require.NoError(t, err)
		require.False(t, ended, "the last line is the summary")
		var r scanRow
		require.NoError(t, json.Unmarshal(line, &r), "%s", line)
		if r.Event == "image" {
			rows = append(rows, &r)
			continue
		}
		require.Equal(t, "summary", r.Event, "%s", line)
		require.NoError(t, json.Unmarshal(line, &sum))
		ended = true
	}
}

// rowsOf maps paths to rows in words. Two rows of one path are an error.
func rowsOf(t testing.TB, rows []*scanRow) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, r := range rows {
		require.NotContains(t, out, r.name())
		out[r.name()] = r.String()
	}
	return out
}

// shelf is a folder that a test fills.
type shelf struct {
	testing.TB
	dir string
}

func newShelf(t testing.TB) *shelf {
	t.Helper()
	return &shelf{t, t.TempDir()}
}

func (s *shelf) path(name string) string { return filepath.Join(s.dir, name) }

// put writes a file, and the folders above it.
func (s *shelf) put(name string, content []byte) {
	s.Helper()
	require.NoError(s, os.MkdirAll(filepath.Dir(s.path(name)), 0o755))
	forge.Bytes(content).Write(s, s.path(name))
}

// requireRows scans and compares what came of it.
func (s *shelf) requireRows(want map[string]string, args ...string) scanSummary {
	s.Helper()
	rows, sum := scanJSON(s, s.dir, args...)
	require.Equal(s, want, rowsOf(s, rows))
	return sum
}

// scanDiskSectors is the size of the disks of these tests.
const scanDiskSectors = 8192

// offDisk is a disk whose one partition, an NTFS, starts at LBA 63; evenDisk one where it starts at LBA 128.
func offDisk() forge.Bytes  { return diskFrom(63) }
func evenDisk() forge.Bytes { return diskFrom(128) }

func diskFrom(lba int64) forge.Bytes {
	f := tableforge.NewMBR(scanDiskSectors, tableforge.Slot{Type: 7, Start: uint32(lba), Sectors: 6000})
	fsforge.PutNTFS(f, lba, 6000)
	return f
}

// flatText is a descriptor of flat extents that hold offDisk in turn.
func flatText(create string, names ...string) []byte {
	var lines []string
	for _, n := range names {
		lines = append(lines, fmt.Sprintf(`RW %d FLAT %q 0`, scanDiskSectors/len(names), n))
	}
	return []byte(vmdkforge.Descriptor(create, lines...))
}

// viewText is a descriptor that shows evenDisk: its first sectors in the head, and the rest of offDisk 65 sectors
// later.
func viewText(head, source string) []byte {
	const own = 136
	return []byte(vmdkforge.Descriptor("twoGbMaxExtentFlat", fmt.Sprintf(`RW %d FLAT %q 0`, own, head),
		fmt.Sprintf(`RW %d FLAT %q %d`, scanDiskSectors-own, source, own-65)))
}

// ovfFor is an OVF of disks; those that are only files of it come after them.
func ovfFor(disks []string, files ...string) []byte {
	var refs, list strings.Builder
	for i, name := range slices.Concat(disks, files) {
		fmt.Fprintf(&refs, `<File ovf:href=%q ovf:id="file%d"/>`, name, i)
		if i < len(disks) {
			fmt.Fprintf(&list,
				`<Disk ovf:capacity="%d" ovf:diskId="disk%d" ovf:fileRef="file%d"
					ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html"/>`,
				scanDiskSectors*sectorSize, i, i)
		}
	}
	return fmt.Appendf(nil,
		`<?xml version="1.0"?>
		<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
		<References>%s</References><DiskSection><Info>d</Info>%s</DiskSection></Envelope>`, &refs, &list)
}
