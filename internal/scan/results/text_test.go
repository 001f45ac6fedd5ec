package results

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// withPartitions gives the disk of a row partitions at these sectors, of a GiB each.
func (i *Image) withPartitions(format string, lbas ...int64) *Image {
	i.Format, i.Stored = format, 0
	d := &i.Disks[0]
	for n, lba := range lbas {
		off := lba * units.SectorSize
		d.Partitions = append(d.Partitions, report.Partition{
			Number: n + 1, Kind: "primary", StartLBA: lba, Start: off, Size: units.GiB, Alignment: units.Alignment(off),
			Verdict: d.Boundary.Verdict(off),
			Volume:  &report.Volume{Kind: "ntfs", Label: fmt.Sprintf("Disk %d", n+1), Cluster: 4096},
		})
	}
	d.Size = int64(len(lbas)+1) * units.GiB
	i.Size = d.Size
	if d.Verdict != align.Aligned {
		i.Stored = d.Size / 3
		d.Fix.OldSize, d.Fix.NewSize = d.Size, d.Size+units.MiB
	}
	i.Assess(nil)
	return i
}

// someLibrary has a row of every kind.
func someLibrary() (*Summary, []*Image) {
	failed := NewImage("/srv/templates/windows/broken/win2k-sp4-german.vmdk")
	failed.Fail("format", "/srv/templates/windows/broken/win2k-sp4-german.vmdk: vmdk header at 0x0: capacity "+
		"18446744073709551615 sectors, want at most 4611686018427387904; the file may be cut")
	killed := NewImage("/srv/templates/x.qcow2")
	killed.Fail("internal", "the worker was killed after 20 s of processor time")
	orphan := NewImage("/srv/templates/linux/old/sles9-flat.vmdk")
	orphan.State, orphan.Format = Orphan, "raw"
	orphan.Findings = []align.Finding{{Severity: align.Warning, Text: "no image names this extent"}}
	unplanned := row("/srv/templates/windows/nt4.vhd", align.Misaligned, align.UnknownRole, 100, false)
	unplanned.Disks[0].Fix = nil
	unplanned.Assess(nil)
	accepted := row("/srv/templates/vendor/appliance 1.raw", align.Misaligned, align.BootDisk, 100,
		false).withPartitions("raw", 63)
	accepted.Accepted = &Accepted{
		Reason: "an appliance of the vendor, who must not find it changed",
		Until:  "2027-01-31",
	}
	pair := row("/srv/templates/pair.ova", align.Aligned, "", 0, false).withPartitions("ova", 2048)
	pair.Disks[0].Member = "pair-disk1.vmdk"
	pair.Disks = append(pair.Disks,
		Disk{
			Member: "pair-disk2.vmdk", Error: &report.Error{Code: "unsupported", Message: "vmdk: seSparse is not read"},
			Disk: report.Disk{Verdict: align.Aligned, Boundary: align.DefaultBoundary},
		})
	gone := NewImage("/srv/templates/windows/removed.vhd")
	gone.State, gone.Change = Gone, Removed
	list := []*Image{
		failed, killed, orphan, accepted, pair, gone, unplanned,
		row("/srv/templates/windows/server-2003-enterprise-r2-sp2-x64-german-with-office.vmdk", align.Misaligned,
			align.BootDisk, 100, false).withPartitions("vmdk", 63, 2048),
		row("/srv/templates/windows/xp-sp3.vmdk", align.Misaligned, align.BootDisk, 100, true).withPartitions("vmdk",
			63),
		row("/srv/templates/data/テンプレート/データディスク.vhdx", align.Misaligned, align.DataDisk, 12.5,
			false).withPartitions("vhdx", 63, 33_554_495, 67_108_927),
		row("/srv/templates/linux/rhel5.qcow2", align.BelowBoundary, align.BootDisk, 5, false).withPartitions("qcow2",
			2048,
			1_048_584),
		row("/srv/templates/linux/debian-12.qcow2", align.Aligned, "", 0, false).withPartitions("qcow2", 2048),
		row("debian-13.raw", align.Aligned, "", 0, false).withPartitions("raw", 2048, 4_196_352),
	}
	s := summed(list)
	s.Skipped, s.Read = 1234, 45*units.MiB
	s.Unreadable = []Unreadable{{
		"/srv/templates/secret",
		report.Error{Code: "io", Message: "/srv/templates/secret: permission denied"},
	}}
	return s, list
}

// summed is what a run makes of a list.
func summed(list []*Image) *Summary {
	s := NewSummary()
	s.Complete, s.Boundary, s.Storage, s.Paths = true, align.DefaultBoundary, "generic",
		[]string{"/srv/templates", "debian-13.raw"}
	s.Started, s.Finished, s.Took = "2026-11-21T21:00:00Z", "2026-11-21T21:00:12Z", 12.3
	s.Changes = &Changes{Since: "2026-11-20T21:00:00Z"}
	s.Isolation = Isolation{
		Wanted: "sandbox", Achieved: "process", Layers: []string{"rlimits"},
		Note: "the kernel has no Landlock",
	}
	for _, i := range list {
		if i.Change == "" {
			i.Change = New
		}
		s.Add(i)
	}
	Rank(list)
	return s
}

func tableOf(t report.Text, s *Summary, list []*Image) string {
	var out bytes.Buffer
	t.W = &out
	writeTable(&t, s, slices.Values(list))
	return out.String()
}

func TestTablesAreGolden(t *testing.T) {
	s, list := someLibrary()
	for name, to := range map[string]report.Text{
		"40": {Columns: 40, Width: 40}, "80": {Columns: 80, Width: 80}, "120": {Columns: 120, Width: 100},
		"200": {Columns: 200, Width: 100}, "verbose-100": {Columns: 100, Width: 100, Verbose: true},
		"color-80": {Columns: 80, Width: 80, Color: true}, "file": {Width: 100},
	} {
		t.Run(name, func(t *testing.T) {
			path := "testdata/table/" + name + ".txt"
			got := tableOf(to, s, list)
			if *update {
				require.NoError(t, os.MkdirAll("testdata/table", 0o755))
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want := disktest.ReadFile(t, path)
			require.Equal(t, string(want), got, "go test ./internal/scan/results -update writes "+path)
			requireWidth(t, got, to.Columns)
		})
	}
}

// requireWidth requires that no line is wider than a terminal, except commands, which are for pasting.
func requireWidth(t require.TestingT, out string, width int) {
	for l := range strings.Lines(out) {
		if width > 0 && !strings.HasPrefix(l, "  trueup ") {
			require.LessOrEqual(t, report.Cells(strings.TrimSuffix(l, "\n")), width, l)
		}
	}
}

func TestOneSentenceWhereAllIsAligned(t *testing.T) {
	var list []*Image
	for n := range 3 {
		list = append(list, row(fmt.Sprintf("%d.raw", n), align.Aligned, "", 0, false).withPartitions("raw", 2048))
	}
	s := summed(list)
	s.Changes, s.Isolation = nil, Isolation{Wanted: "none", Achieved: "none"}
	require.Equal(t, `#  verdict  off  start LBA  format   disk  to copy  role  guest  fix  path
-  aligned  0/1       2048  raw     2 GiB        -  -     -      -    0.raw
-  aligned  0/1       2048  raw     2 GiB        -  -     -      -    1.raw
-  aligned  0/1       2048  raw     2 GiB        -  -     -      -    2.raw

Aligned: every judged partition of all 3 images is aligned to 64 KiB.
Read 0 B in 12.3 s.
`, tableOf(report.Text{Columns: 120, Width: 100}, s, list))
	require.Contains(t, tableOf(report.Text{Verbose: true}, s, list), "\nIsolation: none.\n")
}

func TestNothingFound(t *testing.T) {
	s := summed(nil)
	s.Changes, s.Isolation = nil, Isolation{}
	require.Equal(t, "No image was found.\n", tableOf(report.Text{}, s, nil))
}

// The totals cover all images, so a run that shows only some must state it.
func TestChangedRowsAloneAreSaidToBe(t *testing.T) {
	s := summed([]*Image{row("/srv/a.raw", align.Misaligned, align.DataDisk, 100, false)})
	s.Changes = &Changes{Since: "2026-11-20T10:00:00Z", Same: 1}
	const words = "Rows and exit code are those of what is new, changed or removed alone.\n"
	require.NotContains(t, tableOf(report.Text{}, s, nil), words)
	s.ChangedOnly = true
	require.Contains(t, tableOf(report.Text{}, s, nil), words)
	require.Contains(t, scriptOf(t, s, nil), "# The scan showed only what is new or changed")
}

func TestAnInterruptedRunSaysSo(t *testing.T) {
	list := []*Image{row("a.raw", align.Aligned, "", 0, false).withPartitions("raw", 2048)}
	s := summed(list)
	s.Complete, s.Found = false, 4711
	out := tableOf(report.Text{}, s, list)
	require.Contains(t, out, "\nInterrupted after 1 of 4,711 images: this is incomplete.\nAligned: every judged "+
		"partition of the image is aligned to 64 KiB.\n")
	none := tableOf(report.Text{}, &Summary{Boundary: align.DefaultBoundary}, nil)
	require.Equal(t, "Interrupted after 0 images: this is incomplete.\n", none)
	s.Found = 0
	require.Contains(t, tableOf(report.Text{}, s, list), "Interrupted after 1 image: this is incomplete.\n")
}

// A package with aligned disks and an unreadable one is not all right.
func TestADiskThatWasNotJudgedIsNotPassedOver(t *testing.T) {
	var list []*Image
	for n := range 30 {
		list = append(list, row(fmt.Sprintf("%d.ova", n), align.Aligned, "", 0, false).withPartitions("ova", 2048))
	}
	list[7].Disks[0].Member, list[7].Disks[0].Error = "b.vmdk", &report.Error{Message: "broken"}
	out := tableOf(report.Text{Columns: 80, Width: 80}, summed(list), list)
	require.Contains(t, out,
		"  7.ova\n    b.vmdk: broken\n29 images that need no action are not shown (-v shows them).\n")
	require.Contains(t, out, "\nNot all judged: in 1 image a disk could not be; the verdict is about the others.\n")
	require.NotContains(t, out, "Aligned:")
}

// A large library must not hide problems behind good rows.
func TestAlignedImagesAreCountedWhereThereAreMany(t *testing.T) {
	var list []*Image
	for n := range 9_900 {
		list = append(list, row(fmt.Sprintf("lib/fine-%05d.vmdk", n), align.Aligned, "", 0, false))
	}
	for n := range 100 {
		list = append(list, row(fmt.Sprintf("lib/off-%05d.vmdk", n), align.Misaligned, align.DataDisk, 100,
			false).withPartitions("vmdk", 63))
	}
	s := summed(list)
	out := tableOf(report.Text{Columns: 80, Width: 80}, s, list)
	require.Contains(t, out, "\n9,900 images that need no action are not shown (-v shows them).\n")
	require.Less(t, strings.Count(out, "\n"), 130)
	for n := range 100 {
		require.Contains(t, out, fmt.Sprintf("lib/off-%05d.vmdk\n", n))
	}
	out = tableOf(report.Text{Columns: 80, Width: 80, Verbose: true}, s, list)
	for n := range 9_900 {
		require.Contains(t, out, fmt.Sprintf("lib/fine-%05d.vmdk\n", n))
	}
}

func TestAcceptedAndRemovedImagesAreCountedWhereThereAreMany(t *testing.T) {
	var list []*Image
	for n := range 21 {
		accepted := row(fmt.Sprintf("accepted-%d", n), align.Misaligned, align.DataDisk, 100, false)
		accepted.Accepted = &Accepted{Reason: "known"}
		gone := NewImage(fmt.Sprintf("gone-%d", n))
		gone.State, gone.Change = Gone, Removed
		list = append(list, accepted, gone, row(fmt.Sprintf("off-%d", n), align.Misaligned, align.DataDisk, 100,
			false))
	}
	out := tableOf(report.Text{}, summed(list), list)
	require.Contains(t, out,
		"\n42 images that need no action are not shown (-v shows them).\n")
	require.Equal(t, 21, strings.Count(out, "  off-"))
	out = tableOf(report.Text{Verbose: true}, summed(list), list)
	require.Equal(t, 21, strings.Count(out, "  gone-"))
	require.Equal(t, 21, strings.Count(out, "  accepted-"))
}

// hostileRow has everything that a stranger can put into names, labels and messages, and more.
func hostileRow() *rapid.Generator[string] {
	piece := rapid.SampledFrom([]string{
		"\x1b]0;x\a", "\x1b[2J", "\x1b]8;;http://x\x1b\\", "\x1b]52;c;eA==\a", "\r", "\n", "\t", "\x9b", "\u009b",
		"\u202e", "\xff\xfe", "\x7f", "\u2028", "\x00", "e\u0301", "データ", "/", "/", "a", "b.vmdk",
		strings.Repeat("long", 40), strings.Repeat("広", 50), "%s", "👩\u200d👩", " ", "..", "'", "-",
	})
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(piece, 1, 12).Draw(t, "pieces"), "")
	})
}

func hostileImage(t *rapid.T, n int) *Image {
	text := func(what string) string { return hostileRow().Draw(t, what) }
	path := fmt.Sprintf("%s#%d", text("path"), n)
	if rapid.Bool().Draw(t, "failed") {
		i := NewImage(path)
		i.Fail("format", text("message"))
		return i
	}
	v := rapid.SampledFrom([]align.Verdict{align.Aligned, align.BelowBoundary, align.Misaligned}).Draw(t, "verdict")
	i := row(path, v, align.Role(text("role")), 1, rapid.Bool().Draw(t, "refused"))
	i.withPartitions(text("format"), rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 0, 3).Draw(t, "starts")...)
	for n := range i.Disks[0].Partitions {
		i.Disks[0].Partitions[n].Volume.Label = text("label")
	}
	i.Disks[0].Member = text("member")
	if rapid.Bool().Draw(t, "disk error") {
		i.Disks[0].Error = &report.Error{Message: text("disk error")}
	}
	i.Findings = []align.Finding{{Severity: align.Warning, Text: text("finding")}}
	if rapid.Bool().Draw(t, "accepted") {
		i.Accepted = &Accepted{Reason: text("reason"), Until: "2027-01-31"}
	}
	return i
}

// No text from an image moves the cursor, makes a line too wide, loses a row, or truncates a path in a file.
func TestHostileTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*Image
		for n := range rapid.IntRange(0, 6).Draw(t, "images") {
			list = append(list, hostileImage(t, n))
		}
		s := summed(list)
		s.Unreadable = []Unreadable{{hostileRow().Draw(t, "place"), report.Error{Message: hostileRow().Draw(t, "why")}}}
		s.Isolation.Note, s.Isolation.Layers = hostileRow().Draw(t, "note"), []string{hostileRow().Draw(t, "layer")}
		s.Paths = []string{hostileRow().Draw(t, "root")}
		s.Complete = rapid.Bool().Draw(t, "complete")
		columns := rapid.SampledFrom([]int{0, 40, 41, 57, 80, 120, 200}).Draw(t, "columns")
		out := tableOf(report.Text{
			Columns: columns, Width: min(max(columns, 40), 100),
			Verbose: rapid.Bool().Draw(t, "verbose"),
		}, s, list)
		require.True(t, utf8.ValidString(out))
		for _, r := range out {
			require.False(t, r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028'), "%U", r)
		}
		requireWidth(t, out, columns)
		for n, i := range list {
			end := fmt.Sprintf("#%d\n", n)
			require.Contains(t, out, end)
			if columns == 0 {
				require.Contains(t, out, report.SafeMessage(i.Path)+"\n")
			}
		}
	})
}

func TestShorten(t *testing.T) {
	for _, tc := range []struct {
		path, want string
		n          int
	}{
		{"/srv/lib/a.vmdk", "/srv/lib/a.vmdk", 15},
		{"/srv/lib/a.vmdk", "…rv/lib/a.vmdk", 14},
		{"/srv/lib/a.vmdk", "…/a.vmdk", 8},
		{"/srv/lib/a.vmdk", "….vmdk", 6},
		{"a-long-name.vmdk", "…ame.vmdk", 9},
		{"/a-long-name.vmdk", "…ame.vmdk", 9},
		{"lib/データ.vmdk", "…b/データ.vmdk", 14},
		{"lib/データ.vmdk", "…タ.vmdk", 9},
		{"/srv/lib/a.vmdk", "/srv/lib/a.vmdk", 0}, // no limit
		{"ab", "…", 1},
	} {
		require.Equal(t, tc.want, shorten(tc.path, tc.n), "%q in %d", tc.path, tc.n)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -123: "-123",
		-123456: "-123,456",
	} {
		require.Equal(t, want, thousands(n))
	}
}

// An image with one bad disk has its reason once.
func TestAReasonIsSaidOnce(t *testing.T) {
	i := NewImage("x.ova")
	i.Fail("format", `"a.vmdk": no disk image`)
	i.Disks = []Disk{
		{Member: "a.vmdk", Error: &report.Error{Message: "no disk image"}},
		{Member: "b.vmdk", Error: &report.Error{Message: "truncated"}},
	}
	out := tableOf(report.Text{}, summed([]*Image{i}), []*Image{i})
	require.Equal(t, 1, strings.Count(out, "no disk image"), out)
	require.Contains(t, out, "b.vmdk: truncated")
}
