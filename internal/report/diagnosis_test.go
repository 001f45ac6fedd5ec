package report_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/verify"
	"github.com/trueup/trueup/internal/volume"
)

// fdiskRow is the common part of two listings.
type fdiskRow struct{ device, boot, start, end, sectors, id string }

var (
	mbrRow = regexp.MustCompile(
		`(?m)^ ?(\S+)\s+(\*?)\s+(\d+)\s+(\d+)\s+(\d+)\s+(?:[\d.]+ ?[KMGT]?i?B?)\s+([0-9a-f]+)\s`)
	gptRow = regexp.MustCompile(`(?m)^ ?(\S+)()\s+(\d+)\s+(\d+)\s+(\d+)\s+[\d.]+ ?[KMGT]`)
)

func fdiskRows(scheme, text string) []fdiskRow {
	var out []fdiskRow
	row := map[string]*regexp.Regexp{"mbr": mbrRow, "gpt": gptRow}[scheme]
	_, text, _ = strings.Cut(text, "\n\n")
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		r := fdiskRow{device: filepath.Base(m[1]), boot: m[2], start: m[3], end: m[4], sectors: m[5]}
		if len(m) > 6 {
			r.id = m[6]
		}
		out = append(out, r)
	}
	return out
}

func listed(t *testing.T, raw string, d disk.Disk) string {
	t.Helper()
	var out bytes.Buffer
	(&report.Text{W: &out, List: true}).Inspect(inspect(t, raw, d))
	return out.String()
}

// fdisk lists the same disks with the same numbers.
func TestListAgreesWithFdisk(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			d := disktest.Fixture(t, path)
			raw := disktest.Materialize(t, d)
			r := inspect(t, raw, d)
			columns := map[string]string{
				"mbr": "Device,Boot,Start,End,Sectors,Size,Id,Type",
				"gpt": "Device,Start,End,Sectors,Size,Type",
			}[r.Table.Scheme]
			want := disktest.Output(t, "fdisk", "-lu", "-o", columns, raw)
			got := listed(t, raw, d)
			require.Len(t, fdiskRows(r.Table.Scheme, want), len(r.Partitions), want)
			require.Equal(t, fdiskRows(r.Table.Scheme, want), fdiskRows(r.Table.Scheme, got), "%s\n%s", want, got)
			for _, head := range []string{"Units", "Disklabel type", "Disk identifier"} {
				line := regexp.MustCompile(`(?m)^` + head + `.*$`)
				require.Equal(t, line.FindString(want), line.FindString(got))
			}
		})
	}
}

func TestListOfLargeSectors(t *testing.T) {
	raw := disktest.Materialize(t,
		disk.New(64<<20, 512, func(int64) (disk.Run, error) { return disk.Run{Len: 64 << 20}, nil }))
	disktest.RunInput(t, "g\nn\n1\n\n+20M\nn\n2\n7000\n+10M\nw\n", "fdisk", "-b", "4096", raw)
	want := disktest.Output(t, "fdisk", "-b", "4096", "-lu", "-o", "Device,Start,End,Sectors,Size,Type", raw)
	img, err := image.Open(raw, image.Options{Format: "raw"})
	require.NoError(t, err)
	defer img.Close()
	got := listed(t, raw, img.Disk)
	require.Len(t, fdiskRows("gpt", got), 2)
	require.Equal(t, fdiskRows("gpt", want), fdiskRows("gpt", got))
	require.Contains(t, got, "Units: sectors of 1 * 4096 = 4096 bytes")
	require.Regexp(t, `(?m)2472  9\.66 MiB  Linux  32K \(off 64K\)$`, got)
}

// A number directly after a number would be misread: fdisk inserts a p.
func TestListNames(t *testing.T) {
	d := diskOf(100, part(1, 1, 2, align.Aligned))
	for path, want := range map[string]string{
		"a/disk.img": " disk.img1 ", "disk2": " disk2p1 ",
		"vm.ova!a-1": " vm.ova!a-1p1 ", "x\x1b[2J": ` x\u001b[2J1 `,
	} {
		var out bytes.Buffer
		(&report.Text{W: &out, List: true}).Inspect(&report.Inspect{Image: report.Image{Path: path}, Disk: d})
		require.Contains(t, out.String(), want)
	}
}

// text returns the output of inspect for a fixture on a storage. An empty storage stands for the default.
func text(t *testing.T, fixture, storage string, impacts bool) string {
	t.Helper()
	d := disktest.Fixture(t, disktest.Fixtures(t)[fixture])
	l, err := layout.Read(d, table.Geometry{})
	require.NoError(t, err)
	r, s := inspect(t, fixture, d), align.Generic()
	if storage != "" {
		s, err = align.ParseStorage(storage)
		require.NoError(t, err)
		r.Costs, r.Advice = report.NewCosts(l, s), align.For(l, align.Case{Boundary: r.Boundary, Storage: s})
	}
	if impacts {
		r.AddImpacts(l, s)
	}
	var out bytes.Buffer
	(&report.Text{W: &out}).Inspect(r)
	return out.String()
}

func TestImpactTables(t *testing.T) {
	out := text(t, "two-ntfs-lba63-and-cylinder", "", true)
	require.Contains(t, out, "Partitions 1, 2, clusters of 4 KiB:\n", "what costs the same shares a table")
	require.Regexp(t, `(?m)^ +I/O size +random reads +random writes +sequential reads +sequential writes$`, out)
	require.Regexp(t, `(?m)^ +4 KiB +2\.000 / 1\.000 +4\.000 / 1\.000 +2\.000 / 1\.000 +4\.000 / 1\.000$`, out)
	require.Regexp(t, `(?m)^ +72 KiB +19\.000 / 18\.000 +21\.000 / 18\.000 +19\.000 / 18\.000 +21\.000 / 18\.000$`, out)
	require.Equal(t, 1, strings.Count(out, "I/O size"))
	out = text(t, "gpt", "", true)
	require.Contains(t, out, "blocks of 4 KiB (assumed: the content states none):")
	require.NotContains(t, text(t, "gpt", "", false), "I/O size")
}

// A table of thousands of partitions makes a report of limited length.
func TestFewImpacts(t *testing.T) {
	l := &layout.Layout{Table: &table.Table{Scheme: table.GPT, SectorSize: 512}, Boot: &boot.Result{Code: boot.Empty}}
	for i := range 3000 {
		p := boot.Partition{Volume: &volume.Volume{}}
		p.Number, p.Kind, p.Off, p.Len = i+1, table.Entry, int64(i+63)*512, 512
		l.Partitions = append(l.Partitions, p)
	}
	r := &report.Inspect{Disk: report.NewDisk(l, align.DefaultBoundary, nil)}
	r.AddImpacts(l, align.Generic())
	require.NotNil(t, r.Partitions[1023].Impact)
	require.Nil(t, r.Partitions[1024].Impact)
}

func TestCostsOnAStorage(t *testing.T) {
	for _, tc := range []struct{ fixture, storage, want, not string }{
		{"xp-lba63-one-ntfs", "", "The guest's blocks start in the middle", "On this storage"},
		{
			"xp-lba63-one-ntfs", "netapp",
			"On this storage (NetApp WAFL, 4 KiB blocks) each 4 KiB cluster touches two 4 KiB blocks",
			"start in the middle of the storage's blocks",
		},
		{"xp-lba63-one-ntfs", "flasharray", "that costs nothing: alignment does not matter to it", "instead of one"},
		{"xp-lba63-one-ntfs", "128K", "trueup plan --boundary 128K xp-lba63-one-ntfs", "touches two units"},
		{
			"logical-chain", "64K", "On this storage (blocks of 64 KiB), partitions 1, 5: one 4 KiB cluster in 16",
			"On this storage (blocks of 64 KiB) ",
		},
		{"unused-slots", "4K", "that costs nothing: no I/O touches extra blocks", "instead of one"},
	} {
		t.Run(fmt.Sprint(tc.fixture, " ", tc.storage), func(t *testing.T) {
			out := text(t, tc.fixture, tc.storage, false)
			require.Contains(t, out, tc.want)
			require.NotContains(t, out, tc.not)
		})
	}
}

// starts returns findings of partitions, as align.Check makes them, with or without a cost on a storage with blocks of
// 4 KiB.
func starts(costs ...string) []align.Finding {
	var out []align.Finding
	for i, c := range costs {
		text, free := strings.CutPrefix(c, "free: ")
		out = append(out, align.Finding{
			Subject: fmt.Sprintf("partition %d", i+1), Where: "starts somewhere", Cost: text,
			Free: free, Partition: i + 1,
		})
	}
	return out
}

// A start without cost on most storage is not reported as if it had one.
func TestNoCosts(t *testing.T) {
	for _, tc := range []struct {
		name      string
		fs        []align.Finding
		want, not string
	}{
		{
			"one cost", starts("it is slow", "it is slow"), "in the middle of the storage's blocks: it is slow. " +
				"Most reads",
			"artitions 1, 2: ",
		},
		{
			"two costs", starts("it is slow", "it is late"), "partition 1: it is slow; partition 2: it is " +
				"late. Most reads",
			"",
		},
		{
			"one of them none", starts("it is slow", "free: it is well"),
			"it is slow. Most reads and writes cost more. The guest can neither see nor fix this. Moving " +
				"the " +
				"partition fixes it.\nPartition 2: it is well.\n", "",
		},
		{
			"none", starts("free: it is well", "free: it is well"),
			"Partition 2 starts somewhere.\nPartitions 1, 2: it is well.\n", "Most reads",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := diskOf(10)
			d.Findings = tc.fs
			var out bytes.Buffer
			(&report.Text{W: &out}).Inspect(&report.Inspect{Disk: d})
			require.Contains(t, out.String(), tc.want)
			if tc.not != "" {
				require.NotContains(t, out.String(), tc.not)
			}
		})
	}
	require.NotContains(t, text(t, "unused-slots", "", false), "Most reads", "all is on 4 KiB")
}

// A package is written with all of its disks, or not at all.
func TestPackageCommand(t *testing.T) {
	disk := func(v align.Verdict, action align.Action, refusals ...align.Finding) report.PackageDisk {
		d := diskOf(10, part(1, 0, 5, v))
		d.Verdict = v
		r := &report.Inspect{Disk: d, Refusals: refusals, Advice: align.Advice{Action: action}}
		return report.PackageDisk{Inspect: r}
	}
	bad, good := disk(align.Misaligned, align.Align), disk(align.Aligned, align.Nothing)
	for _, tc := range []struct {
		name  string
		disks []report.PackageDisk
		want  bool
	}{
		{"one is misaligned", []report.PackageDisk{good, bad}, true},
		{"all are aligned", []report.PackageDisk{good, good}, false},
		{"another is refused", []report.PackageDisk{
			bad,
			disk(align.Misaligned, align.Refused, align.Finding{Subject: "disk"}),
		}, false},
		{"another is malformed", []report.PackageDisk{disk(align.Aligned, align.Repair), bad}, false},
		{"another cannot be read", []report.PackageDisk{bad, {Error: &report.Error{Message: "x"}}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			(&report.Text{W: &out}).PackageInspect(&report.PackageInspect{
				Package: report.Package{Path: "a.ova"},
				Disks:   tc.disks,
			})
			require.Equal(t, tc.want, strings.Contains(out.String(), "trueup align a.ova a-aligned.ova"))
		})
	}
}

// Only the question is bold, on a terminal of any width.
func TestOnlyTheQuestionIsBold(t *testing.T) {
	for _, width := range []int{10, 40, 100} {
		var out bytes.Buffer
		r := &report.Inspect{
			Disk:   diskOf(10, part(1, 0, 5, align.Misaligned)),
			Advice: align.Advice{Action: align.Align, Text: strings.Repeat("more words ", 20)},
		}
		r.Boot.Text = "unknown"
		(&report.Text{W: &out, Width: width, Color: true}).Inspect(r)
		if width > 20 {
			require.Contains(t, out.String(), "\n\x1b[1mShould you bother?\x1b[0m more words")
		}
		require.Equal(t, width > 20, strings.Contains(out.String(), "\x1b[1m"))
		for line := range strings.Lines(out.String()) {
			require.NotRegexp(t, `words.*\x1b`, line)
			require.NotRegexp(t, ` \n$`, line)
		}
	}
}

// No boot code is reported for a disk without a table: sector 0 belongs to the volume, which may have its own.
func TestVolumesAloneHaveNoBootCode(t *testing.T) {
	d := diskOf(10)
	d.Table.Scheme = "none"
	var out bytes.Buffer
	(&report.Text{W: &out}).Inspect(&report.Inspect{Disk: d})
	require.NotContains(t, out.String(), "oot")
}

// If there is nothing to judge, the text states the content, and not that the disk is aligned.
func TestNothingToJudge(t *testing.T) {
	for content, want := range map[align.Content]string{
		align.Blank: "Nothing to judge: the disk is blank: zeros where partition tables and file systems " +
			"begin.",
		align.UnknownContent: "Nothing to judge: no partition table, and no known volume.",
		align.NoPartitions:   "Nothing to judge: no partition inside the extended one.",
	} {
		d := diskOf(10)
		d.Verdict, d.Content, d.Table.Scheme = align.NothingToJudge, content, "none"
		if content == align.NoPartitions {
			d.Table.Scheme, d.Partitions = "mbr", []report.Partition{part(1, 0, 5, "")}
		}
		var out bytes.Buffer
		(&report.Text{W: &out}).Inspect(&report.Inspect{Disk: d})
		require.Contains(t, out.String(), want)
		require.NotContains(t, out.String(), "Aligned")
	}
}

// The only next step for a malformed disk is its repair.
func TestNoCommandForTheMalformed(t *testing.T) {
	r := inspect(t, "x", disktest.Fixture(t, disktest.Fixtures(t)["xp-lba63-one-ntfs"]))
	r.Advice.Action = align.Repair
	var out bytes.Buffer
	(&report.Text{W: &out}).Inspect(r)
	require.NotContains(t, out.String(), "trueup align")
}

// A difference names its partition, and the report its consequence.
func TestDifferencesNameTheirPartitions(t *testing.T) {
	l := &layout.Layout{Partitions: []boot.Partition{
		{Partition: table.Partition{Number: 2, Kind: table.Extended, Range: disk.Range{Off: 4096, Len: 1 << 20}}},
		{
			Partition: table.Partition{Number: 5, Kind: table.Logical, Range: disk.Range{Off: 8192, Len: 8192}},
			Volume:    &volume.Volume{Kind: volume.NTFS, Label: "SYSTEM"},
		},
	}}
	d := &report.VerifiedDisk{Source: "a", Dest: "b", Differences: report.NewDifferences([]verify.Difference{
		{Range: disk.Range{Off: 512, Len: 512}, Text: "x"},
		{Range: disk.Range{Off: 4096, Len: 512}, Text: "x"},
		{Range: disk.Range{Off: 8192, Len: 512}, Text: "x"},
		{Text: "x"},
	}, l)}
	r := &report.Verify{Source: "a", Dest: "b", Disks: []*report.VerifiedDisk{d}}
	var out bytes.Buffer
	(&report.Text{W: &out}).Verify(r)
	require.Equal(t, `Different: b differs from an aligned copy of a:
  bytes 512 to 1023: x
  bytes 4096 to 4607: x, in partition 2
  bytes 8192 to 8703: x, in partition 5 (NTFS "SYSTEM")
  x
The copy was changed after it was made, is a copy of another SOURCE, or was made by another version of trueup or with `+
		"other options (--skip-free): do not use it. Align SOURCE again, or verify with the same version and "+
		"options.\n", out.String())
}

// Lines are wrapped between words, and commands are not wrapped.
func TestNarrowTerminals(t *testing.T) {
	r := &report.Inspect{Image: report.Image{Path: "/srv/templates/windows/xp.vmdk", Format: "vmdk"}, Disk: report.Disk{
		Verdict: align.Misaligned, Boundary: align.DefaultBoundary,
		Table: report.Table{Scheme: "mbr", Signature: "0x58505031", Heads: 255, Sectors: 63},
	}}
	var out bytes.Buffer
	(&report.Text{W: &out, Width: 60}).Inspect(r)
	require.Contains(t, out.String(),
		"\n  Table      MBR, disk signature 0x58505031, 255 heads, 63\n             sectors per track\n")
	require.Contains(t, out.String(), "\nTo see what would change:\n  trueup plan /srv/templates/windows/xp.vmdk\n")
	out.Reset()
	(&report.Text{W: &out, Width: 100}).Inspect(r)
	require.Contains(t, out.String(), "\nTo see what would change:   trueup plan /srv/templates/windows/xp.vmdk\n")
}

// The steps of a boot path contain file names, which must not move the cursor of a terminal. A path is not longer than
// a screen.
func TestChainInText(t *testing.T) {
	r := &report.Inspect{Disk: report.Disk{Table: report.Table{Scheme: "mbr"}, Boot: report.BootCode{Name: "empty"}}}
	r.Chain = []boot.Link{{Partition: 1, Text: "starts \\EFI\\\x1b]0;title\a.efi"}}
	for i := range 40 {
		r.Chain = append(r.Chain, boot.Link{Text: fmt.Sprintf("step %d", i)})
	}
	var out bytes.Buffer
	(&report.Text{W: &out}).Inspect(r)
	require.NotContains(t, out.String(), "\x1b")
	require.NotContains(t, out.String(), "\a")
	require.Contains(t, out.String(), "\n  Boot path  starts \\EFI\\\\u001b]0;title")
	require.Contains(t, out.String(), "\n             step 30\n             ... and 9 more\n")
	require.Equal(t, 1, strings.Count(out.String(), "Boot path"))
}

// A step that needs more than one line must not look like two.
func TestLongStepsInText(t *testing.T) {
	r := &report.Inspect{Disk: report.Disk{Table: report.Table{Scheme: "mbr"}, Boot: report.BootCode{Name: "empty"}}}
	r.Chain = []boot.Link{{Text: strings.Repeat("word ", 12) + "end"}, {Text: "next"}}
	var out bytes.Buffer
	(&report.Text{W: &out, Width: 60}).Inspect(r)
	require.Regexp(t, `\n  Boot path  (word ){8}word\n {15}word word word end\n {13}next\n`, out.String())
}

// A moving piece can contain several partitions of the list, and other bytes.
func TestGapMoves(t *testing.T) {
	p := &plan.Plan{
		OldSize: 1000, Size: 1100, SectorSize: 512,
		Moves: []plan.Move{{Partition: 1, From: 100, To: 110, Len: 50}, {Partition: 2, From: 170, To: 180, Len: 30}},
		Pieces: []disk.Shift{
			{From: 0, To: 0, Len: 90},
			{From: 95, To: 105, Len: 120},
			{From: 400, To: 400, Len: 10},
			{From: 900, To: 1000, Len: 100},
		},
	}
	require.Equal(t, []report.GapMove{
		{From: 95, To: 105, Size: 5},
		{From: 150, To: 160, Size: 20},
		{From: 200, To: 210, Size: 15},
		{From: 900, To: 1000, Size: 100},
	}, report.NewChanges(p).GapMoves)
	p.Moves, p.Pieces = nil, []disk.Shift{{Len: 1000}}
	require.Empty(t, report.NewChanges(p).GapMoves)
}

// longPlan returns a plan with positions in files with long names, and with a reason that several share.
func longPlan() *report.Plan {
	const system = "Windows.old/Windows/System32/config/RegBack/of/an/earlier/Windows/SYSTEM"
	const dirty = "sequence numbers 99 and 206 differ: Windows was not shut down cleanly"
	r := &report.Plan{References: []report.Reference{
		{
			Kind: "drive letter C:", Partition: 2, File: system, Off: 7635760, Points: 51232256, Target: 2,
			To: 51232256, Stays: dirty,
		},
		{
			Kind: "drive letter D:", Partition: 2, File: system, Off: 7635860, Points: 51232256, Target: 2,
			To: 51232256, Stays: dirty,
		},
		{
			Kind: "winre \x1b[31mLocation", Partition: 2, File: "a\x1b]0;b", Off: 3, Points: 1, To: 1,
			Stays: "no partition starts at byte 1",
		},
		{
			Kind: "fat32 hidden sectors, backup boot sector", Partition: 1, Off: 102399516, Points: 149812510720,
			Target: 1, To: 149813198848,
		},
		{Kind: "fat32 hidden sectors", Partition: 3, Off: 28, Points: 5 << 20, Target: 3, To: 5 << 20},
		{Kind: "grub2 core image", Off: 92, Points: 17408, Target: 1, To: 1048576},
	}}
	r.Moved = 1
	r.Patches = []report.Patch{
		{
			Off: 0x22e3169e1c, Len: 4, Old: "c0c27011", New: "00c87011",
			Reason: fmt.Sprintf("drive letter C: in %q of partition 2: 1 -> 2", system),
		},
		{
			Off: 0x5ffbe20, Len: 24, Old: strings.Repeat("22", 24), New: strings.Repeat("23", 24),
			Reason: "backup GPT: first and last LBA of partition 1",
		},
	}
	return r
}

// TestReferencesFitTheTerminal prints a plan on terminals of usual widths.
func TestReferencesFitTheTerminal(t *testing.T) {
	for _, width := range []int{80, 100} {
		var out bytes.Buffer
		(&report.Text{W: &out, Width: width}).Plan(longPlan())
		_, shown, _ := strings.Cut(out.String(), "Changed fields")
		shown, _, _ = strings.Cut(shown, "\nThe result")
		for line := range strings.Lines(shown) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
		}
		require.NotContains(t, shown, "\x1b")
		require.Equal(t, 1, strings.Count(strings.Join(strings.Fields(shown), " "),
			"stays: sequence numbers 99 and 206 differ"), "one reason for both letters")
		require.Regexp(t, `2{16}   (23){8}   backup GPT.*\n +2{16}…  (23){8}…`, shown, "all of 16 bytes")
		require.Contains(t, shown, "\n partition 3:\n   fat32 hidden sectors")
		require.Contains(t, shown, "the same\n the disk:\n   grub2 core image")
		require.Contains(t, shown, "149812510720 (partition 1)  149813198848\n")
	}
}
