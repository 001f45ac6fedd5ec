package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/units"
)

func differNumber(t *testing.T, name string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv("TRUEUP_DIFFER" + name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 63)
	require.NoError(t, err, name)
	return n
}

var differTargets = []string{
	"raw", "vmdk:monolithicSparse", "vmdk:streamOptimized", "vhd:dynamic", "vhd:fixed", "vhdx:dynamic", "vhdx:fixed",
	"qcow2:v2", "qcow2:v3", "qcow2:compressed",
}

// inspectJSON runs inspect --json on the image at path, and returns its exit code, output and decoded result.
func inspectJSON(t *testing.T, path string) (ended, *jsonAnswer) {
	t.Helper()
	end := trueup(t, "inspect", "--json", path)
	a := &jsonAnswer{}
	require.NoError(t, json.Unmarshal([]byte(end.stdout), a), end.stdout)
	return end, a
}

// requireRead requires that a sound disk is read as the tools read it.
func requireRead(t *testing.T, d *differDisk, raw, path string) {
	t.Helper()
	end, a := inspectJSON(t, path)
	if d.label != "" { // a file system on a whole disk may be small enough to be unknown
		want := readSfdisk(t, raw)
		require.Equal(t, want.Label, d.label)
		require.Len(t, want.Partitions, len(d.parts))
		require.Equal(t, want, tableOf(a, raw))
		code := 0
		for _, p := range d.parts {
			code = max(code, p.verdict())
		}
		require.Equal(t, code, end.code, end.stderr)
	}
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	out := disktest.Output(t, "qemu-img", "info", "--output=json", "-f", qemuName(d.format.name), path)
	require.NoError(t, json.Unmarshal([]byte(out), &info))
	require.Equal(t, info.Size, a.Image.Size)
	require.Equal(t, d.format.name, a.Image.Format)
	s, err := OpenSource(path, realign.Reading{})
	require.NoError(t, err)
	defer s.Close()
	require.Empty(t, differentBytes(t, s.Image.Disk, raw, info.Size))
}

// differentBytes compares the first n bytes of a disk with a file, which is zero after its end, and returns the
// differences.
func differentBytes(t *testing.T, got io.ReaderAt, raw string, n int64) string {
	t.Helper()
	f, err := os.Open(raw)
	require.NoError(t, err)
	defer f.Close()
	a, b := make([]byte, units.MiB), make([]byte, units.MiB)
	for off := int64(0); off < n; off += units.MiB {
		k := min(units.MiB, n-off)
		if _, err := got.ReadAt(a[:k], off); err != nil && err != io.EOF {
			return "error: " + err.Error()
		}
		m, err := f.ReadAt(b[:k], off)
		if err != io.EOF {
			require.NoError(t, err)
		}
		clear(b[m:k])
		if !bytes.Equal(a[:k], b[:k]) {
			for i := range k {
				if a[i] != b[i] {
					return fmt.Sprintf("byte %#x is %#x, not %#x", off+i, a[i], b[i])
				}
			}
		}
	}
	return ""
}

// jsonChanges is the list of changes of a copy in JSON.
type jsonChanges struct {
	NewSize  int64      `json:"new_size_bytes"`
	Moves    []jsonGone `json:"moves"`
	GapMoves []jsonGone `json:"gap_moves"`
	Patches  []struct {
		Off int64  `json:"offset_bytes"`
		Old string `json:"old"`
		New string `json:"new"`
	} `json:"patches"`
}

type jsonGone struct {
	From int64 `json:"from_bytes"`
	To   int64 `json:"to_bytes"`
	Size int64 `json:"size_bytes"`
}

// maxReasoned limits the size of disks that are compared in memory, in bytes.
const maxReasoned = 256 << 20

// requireReasons requires that a copy differs from its moved source only in the listed fields, which had the listed old
// values, and that a copy without moves or repairs does not differ. A refused or unreadable image has no copy. It
// returns the number of copies.
func requireReasons(t *testing.T, path string) (copies int) {
	t.Helper()
	s, err := OpenSource(path, realign.Reading{})
	if err != nil {
		return 0
	}
	defer s.Close()
	size := s.Image.Disk.Size()
	if size > maxReasoned {
		return 0
	}
	was := make([]byte, size)
	_, err = s.Image.Disk.ReadAt(was, 0)
	if err != nil && err != io.EOF { //nolint:errorlint // as io.ReaderAt has it
		return 0
	}
	for _, flags := range [][]string{nil, {"--repair-table"}, {"--boundary", "4K", "--repair-table"}} {
		dest := filepath.Join(t.TempDir(), "reasons.raw")
		args := append([]string{"align", "--json", "--to", "raw", "--allow-unbootable"}, flags...)
		end := trueup(t, append(args, path, dest)...)
		if end.code != 0 {
			require.NoFileExists(t, dest)
			continue
		}
		copies++
		var r struct {
			Disks []jsonChanges `json:"disks"`
		}
		require.NoError(t, json.Unmarshal([]byte(end.stdout), &r), end.stdout)
		c := r.Disks[0]
		is, err := os.ReadFile(dest)
		require.NoError(t, err)
		if len(c.Moves) == 0 && flags == nil {
			require.Empty(t, c.Patches)
			require.True(t, bytes.Equal(was, is), "nothing moves, and the copy differs")
		}
		want := moved(was, c)
		for _, p := range c.Patches {
			before, err := hex.DecodeString(p.Old)
			require.NoError(t, err)
			after, err := hex.DecodeString(p.New)
			require.NoError(t, err)
			require.Equal(t, before, want[p.Off:p.Off+int64(len(before))], "%v: the old value at %#x", flags, p.Off)
			copy(want[p.Off:], after)
		}
		if !bytes.Equal(want, is) {
			at := 0
			for want[at] == is[at] {
				at++
			}
			require.Failf(t, "a byte has no reason", "%v: byte %#x is %#02x, want %#02x", flags, at, is[at], want[at])
		}
		require.NoError(t, os.Remove(dest))
	}
	return copies
}

// moved returns a disk with moved data in its new places; the old places are zero.
func moved(was []byte, c jsonChanges) []byte {
	out := make([]byte, c.NewSize)
	copy(out, was)
	all := append(append([]jsonGone{}, c.Moves...), c.GapMoves...)
	for _, m := range all {
		clear(out[m.From : m.From+m.Size])
	}
	for _, m := range all {
		copy(out[m.To:], was[m.From:m.From+m.Size])
	}
	return out
}

// jsonAnswer is the compared part of the JSON of inspect, plan and a disk of convert.
type jsonAnswer struct {
	Format     string     `json:"format"`
	Image      *jsonImage `json:"image"`
	Table      jsonTable  `json:"table"`
	Partitions []jsonPart `json:"partitions"`
	Verdict    string     `json:"verdict"`
	Content    string     `json:"content"`
	Findings   []coded    `json:"findings"`
	Refusals   []coded    `json:"refusals"`
	Error      *coded     `json:"error"`
	Moves      []struct {
		Partition int `json:"partition"`
	} `json:"moves"`
}

type jsonImage struct {
	Format    string `json:"format"`
	Subformat string `json:"subformat"`
	Size      int64  `json:"size_bytes"`
}

type jsonTable struct {
	Scheme    string `json:"scheme"`
	Signature string `json:"disk_signature"`
	GUID      string `json:"disk_guid"`
}

type jsonPart struct {
	Number int    `json:"number"`
	Type   string `json:"type"`
	Active bool   `json:"active"`
	Name   string `json:"name"`
	GUID   string `json:"guid"`
	Start  int64  `json:"start_lba"`
	Size   int64  `json:"size_bytes"`
}

type coded struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Subject  string `json:"subject"`
	Message  string `json:"message"`
	Text     string `json:"text"`
}

func (c *coded) code() string {
	if c == nil {
		return ""
	}
	return c.Code
}

func (c *coded) message() string {
	if c == nil {
		return ""
	}
	return c.Message
}

// jsonRow is the row of an image in the results of scan.
type jsonRow struct {
	Event   string `json:"event"`
	State   string `json:"state"`
	Verdict string `json:"verdict"`
	Error   *coded `json:"error"`
	Disks   []struct {
		Unplanned *coded `json:"unplanned"`
		Fix       *struct {
			Refusals []coded `json:"refusals"`
		} `json:"fix"`
	} `json:"disks"`
}

// differTable is a partition table in sfdisk's JSON.
type differTable struct {
	Label      string       `json:"label"`
	ID         string       `json:"id"`
	Partitions []differSlot `json:"partitions"`
}

type differSlot struct {
	Node  string `json:"node"`
	Start int64  `json:"start"`
	Size  int64  `json:"size"`
	Type  string `json:"type"`
	UUID  string `json:"uuid"`
	Name  string `json:"name"`
	Boot  bool   `json:"bootable"`
}

// tableOf returns the table of a report in sfdisk's terms. of is the file that sfdisk reads.
func tableOf(a *jsonAnswer, of string) differTable {
	out := differTable{Label: a.Table.Scheme, ID: a.Table.GUID}
	switch a.Table.Scheme {
	case "none":
		return differTable{}
	case "mbr":
		out.Label, out.ID = "dos", a.Table.Signature
	}
	for _, p := range a.Partitions {
		s := differSlot{
			Node: of + strconv.Itoa(p.Number), Start: p.Start, Size: p.Size / units.SectorSize,
			Type: strings.TrimPrefix(p.Type, "0x"), UUID: p.GUID, Name: p.Name, Boot: p.Active,
		}
		if p.GUID == "" {
			s.Type = strings.TrimPrefix(s.Type, "0")
		}
		out.Partitions = append(out.Partitions, s)
	}
	out.sort()
	return out
}

// sort orders partitions and normalizes identifiers. It drops entries without sectors, which sfdisk lists.
func (d *differTable) sort() {
	d.Partitions = slices.DeleteFunc(d.Partitions, func(s differSlot) bool { return s.Size == 0 })
	d.ID = strings.ToUpper(d.ID)
	for i := range d.Partitions {
		p := &d.Partitions[i]
		p.Type, p.UUID = strings.ToUpper(p.Type), strings.ToUpper(p.UUID)
	}
	slices.SortFunc(d.Partitions, func(a, b differSlot) int { return strings.Compare(a.Node, b.Node) })
}

// String is one line for each partition.
func (d differTable) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", d.Label, d.ID)
	for _, p := range d.Partitions {
		fmt.Fprintf(&b, "\n  %s: start %d, size %d, type %s %s %q %v",
			filepath.Base(p.Node), p.Start, p.Size, p.Type, p.UUID, p.Name, p.Boot)
	}
	return b.String()
}

// readSfdisk returns sfdisk's table of a raw file.
func readSfdisk(t *testing.T, raw string) differTable {
	t.Helper()
	cmd := exec.Command(disktest.Tool(t, "sfdisk"), "--json", raw)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.Output()
	if err != nil {
		return differTable{} // no table
	}
	if at := bytes.IndexByte(out, '{'); at > 0 {
		out = out[at:] // behind "omitting empty partition (5)"
	}
	var doc struct{ PartitionTable differTable }
	require.NoError(t, json.Unmarshal(out, &doc), "%s", out)
	doc.PartitionTable.sort()
	return doc.PartitionTable
}

// qemuImg runs qemu-img and returns the first line of its error, or an empty string.
func qemuImg(t *testing.T, args ...string) (stdout []byte, complaint string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), disktest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-img"), args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		complaint, _, _ = strings.Cut(errs.String(), "\n")
		return out, err.Error() + ": " + complaint
	}
	return out, ""
}

// Kinds of differences.
const (
	badEnding = "end"  // exit code, output or limits
	inPlan    = "plan" // different from inspect
	inScan    = "scan"
	qemuSays  = "refused" // unreadable for qemu-img, and read here
	inSize    = "size"
	inBytes   = "bytes"
	inTable   = "table"
)

// difference is a difference between actual and expected results.
type difference struct {
	kind, text string
	inspect    *jsonAnswer
	other      *jsonAnswer // of plan
	state      string      // of the row of scan
	planned    string      // error code of the plan of its disk, in that row
	got, want  differTable
}

// badEnd returns the faults in the exit code and the error messages of a command.
func badEnd(e ended, a *jsonAnswer) (out []string) {
	if !slices.Contains([]int{0, 1, 2, 3, 4}, e.code) {
		out = append(out, fmt.Sprintf("exit code %d", e.code))
	}
	if lines := strings.Count(e.stderr, "\n"); e.code == ExitError && lines != 1 {
		out = append(out, fmt.Sprintf("%d lines of errors: %q", lines, e.stderr))
	}
	c := a.Error.code()
	// a file that the image refers to
	missing := c == "io" && strings.Contains(a.Error.Message, "no such file or directory")
	if slices.Contains([]string{"internal", "io", "verify", "changed", "usage"}, c) && !missing {
		out = append(out, fmt.Sprintf("code %q: %s", c, a.Error.Message))
	}
	return out
}

// disagreements returns where plan and scan differ from inspect about a file.
func disagreements(t *testing.T, path string, in ended, a *jsonAnswer) (out []difference) {
	t.Helper()
	p, row := &jsonAnswer{}, &jsonRow{}
	add := func(kind, format string, args ...any) {
		out = append(out, difference{
			kind: kind, text: fmt.Sprintf(format, args...), inspect: a, other: p, state: row.State,
			planned: row.unplanned(),
		})
	}
	end := trueup(t, "plan", "--json", path)
	require.NoError(t, json.Unmarshal([]byte(end.stdout), p), end.stdout)
	for _, text := range badEnd(end, p) {
		add(inPlan, "%s", text)
	}
	want, code := 0, a.Error.code()
	switch {
	case code != "":
		want = in.code
	case len(a.Refusals) > 0:
		want, code = ExitRefused, p.Error.code()
	}
	if end.code != want || p.Error.code() != code {
		add(inPlan, "plan ends with %d (%s), inspect with %d (%s)", end.code, end.stderr, in.code, in.stderr)
	}
	if a.Error == nil && !reflect.DeepEqual(a.Refusals, p.Refusals) {
		add(inPlan, "plan refuses %v, inspect %v", p.Refusals, a.Refusals)
	}
	end = trueup(t, "scan", "--isolation", "none", "--json", path)
	first, _, _ := strings.Cut(end.stdout, "\n")
	require.NoError(t, json.Unmarshal([]byte(first), row), end.stdout)
	if got := row.code(); got != a.Error.code() || got == "" && row.Verdict != a.Verdict {
		add(inScan, "scan says %q (%q), inspect %q (%q): %.400s\n%s",
			got, row.Verdict, a.Error.code(), a.Verdict, first, in.stderr)
	}
	if want = in.code; want == ExitRefused {
		want = ExitError // of a row that failed
	}
	if end.code != want {
		add(inScan, "scan ends with %d (%s), inspect with %d (%s)", end.code, end.stderr, in.code, in.stderr)
	}
	return out
}

// code returns the error code of the image, or of its only disk.
func (r *jsonRow) code() string {
	if r.Error == nil {
		return r.unplanned()
	}
	return r.Error.code()
}

// unplanned returns the code of the error that prevented a plan of the only disk. It is empty for several disks.
func (r *jsonRow) unplanned() string {
	if len(r.Disks) != 1 {
		return ""
	}
	return r.Disks[0].Unplanned.code()
}

// qemuReading is a disk read by qemu-img.
type qemuReading struct {
	size int64
	raw  string
	read int64 // number of bytes in raw
}

// qemuRead reads an image with qemu-img: all of it, or the first 64 MiB of a possibly large one.
func qemuRead(t *testing.T, format, path string, large bool) (q qemuReading, complaint string) {
	t.Helper()
	q.raw = filepath.Join(t.TempDir(), "qemu.raw")
	if !large {
		if _, complaint := qemuImg(t, "convert", "-f", format, "-O", "raw", path, q.raw); complaint != "" {
			return q, complaint
		}
		info := disktest.Stat(t, q.raw)
		q.size, q.read = info.Size(), info.Size()
		return q, ""
	}
	out, complaint := qemuImg(t, "info", "--output=json", "-f", format, path)
	if complaint != "" {
		return q, complaint
	}
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	require.NoError(t, json.Unmarshal(out, &info))
	q.size, q.read = info.Size, 64*units.MiB
	_, complaint = qemuImg(t, "dd", "-f", format, "-O", "raw", "bs=1M", "count=64", "if="+path, "of="+q.raw)
	return q, complaint
}

// Resource limits of three commands in this process: far more than the budgets in other tests, to notice explosions.
const (
	mostMemory    = 512 << 20
	mostProcessor = 30 * time.Second
)
