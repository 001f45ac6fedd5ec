package results

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// `go test ./internal/scan/results -update` writes the reports of the sample again; read their diff before you commit
// it.
var update = flag.Bool("update", false, "rewrite the golden files")

// part is a partition of 1 GiB that starts at an LBA.
func part(number int, lba int64, kind string) report.Partition {
	start := lba * units.SectorSize
	p := report.Partition{
		Number: number, Kind: "primary", Type: "0x07", TypeName: "HPFS/NTFS/exFAT", StartLBA: lba, Start: start,
		Size: units.GiB, Alignment: units.Alignment(start), Verdict: align.DefaultBoundary.Verdict(start),
		Volume: &report.Volume{Kind: kind, Label: "System", UUID: "1234-5678", Cluster: 4096},
	}
	p.Aligned = report.Aligned{
		To4K: start%4096 == 0, To64K: start%65536 == 0, To1M: start%units.MiB == 0,
		Boundary: align.DefaultBoundary.On(start),
	}
	return p
}

// diskOf is an MBR disk whose verdict is the worst of its partitions.
func diskOf(role align.Role, parts ...report.Partition) Disk {
	d := Disk{Depth: Survey, Disk: report.Disk{
		Size: 8 * units.GiB, Table: report.Table{Scheme: "mbr"}, Boot: report.BootCode{Name: "win2000"},
		Partitions: parts, Boundary: align.DefaultBoundary, Verdict: align.Aligned,
	}}
	for _, p := range parts {
		d.Verdict = d.Verdict.Worse(p.Verdict)
	}
	if d.Verdict != align.Aligned {
		d.Depth, d.Advice, d.Guest = Full, &align.Advice{Role: role}, guestOf(role)
		d.Fix = &Fix{Boundary: align.Kept, OldSize: d.Size, NewSize: d.Size + units.MiB}
		d.Cost = &Cost{
			Storage: "generic", Block: 4096, Partition: parts[0].Number, More: 87.5,
			Text: "each I/O touches 87.5 % more blocks",
		}
	}
	return d
}

// guestOf is a machine of which a boot disk was cloned while it ran, and of which a data disk was closed.
func guestOf(role align.Role) *report.Guest {
	sign := report.Sign{
		State: boot.NotKnown, Partition: 1,
		Text: "whether the volume (xfs) of partition 1 was closed",
	}
	switch role {
	case align.BootDisk:
		sign.State, sign.Text, sign.OnMove = boot.Running, "the log of the NTFS of partition 1 is open",
			"it may be refused"
	case align.DataDisk:
		sign.State, sign.Text = boot.ShutDown, "the log of the NTFS of partition 1 is clean"
	default:
	}
	return &report.Guest{State: sign.State, Signs: []report.Sign{sign}}
}

// judged is an image with disks.
func judged(path, format string, disks ...Disk) *Image {
	i := NewImage(path)
	i.State, i.Format, i.Subformat, i.Stored, i.Disks = Judged, format, "monolithicSparse", 3*units.GiB, disks
	for _, d := range disks {
		i.Size += d.Size
	}
	i.Assess(nil)
	return i
}

// emptyImage is an image on which there is nothing to judge.
func emptyImage(path string, content align.Content) *Image {
	d := diskOf("")
	d.Verdict, d.Content, d.Table.Scheme = align.NothingToJudge, content, "none"
	return judged(path, "raw", d)
}

// smallLibrary is a small library with an image of each kind, ranked, and its sum.
func smallLibrary() (*Summary, []*Image) {
	refused := diskOf(align.BootDisk, part(1, 63, "ext3"))
	refused.Fix.Refusals = []align.Finding{{
		Code: "lilo", Severity: align.Error, Subject: "partition 1",
		Text: "LILO keeps sectors", Remedy: "Run lilo on the copy.",
	}}
	unplanned := diskOf(align.UnknownRole, part(1, 63, "xfs"))
	unplanned.Fix, unplanned.Unplanned = nil, &report.Error{Code: "limit", Message: "more than 128 partitions"}
	broken := Disk{
		Member: "b.vmdk",
		Error:  &report.Error{Code: "format", Message: "grain table at 0x200: ends behind the file"},
	}
	packed := diskOf(align.DataDisk, part(1, 128, "ntfs"), part(2, 2097160, "ntfs"))
	packed.Member = "a.vmdk"
	extended := part(2, 64*2048, "")
	extended.Kind, extended.Verdict, extended.Volume = "extended", "", nil
	whole := diskOf("")
	whole.Volume, whole.Table.Scheme = &report.Volume{Kind: "fat12", Label: "FLOPPY", Cluster: 512}, "none"

	images := []*Image{
		judged("/t/fine.qcow2", "qcow2", diskOf("", part(1, 2048, "ntfs"), extended)),
		judged("/t/data.vmdk", "vmdk", diskOf(align.DataDisk, part(1, 63, "ntfs"))),
		judged("/t/my boot.vmdk", "vmdk", diskOf(align.BootDisk, part(1, 63, "ntfs"))),
		judged("/t/lilo.vmdk", "vmdk", refused),
		judged("/t/many.vmdk", "vmdk", unplanned),
		judged("/t/two.ova", "ova", packed),
		judged("/t/half.ova", "ova", packed, broken),
		judged("/t/floppy.img", "raw", whole),
		judged("/t/retired.vmdk", "vmdk", diskOf(align.DataDisk, part(1, 63, "ntfs"))),
	}
	failed, orphan, gone := NewImage("/t/broken.vhd"), NewImage("/t/lone-s002.vmdk"), NewImage("/t/gone.vhdx")
	failed.Fail("format", "vhd footer at 0x27fe00: checksum 0x1f3c, want 0x1f40")
	orphan.State, orphan.Findings = Orphan,
		[]align.Finding{{Code: "orphan", Severity: align.Warning, Text: "no descriptor names this extent"}}
	gone.State = Gone
	packed7z := NewImage("/t/old.vmdk.gz")
	packed7z.State, packed7z.Format = Packed, "gzip"
	packed7z.Findings = []align.Finding{{
		Code: "packed", Severity: align.Warning,
		Text: "it is compressed with gzip, and not read", Remedy: "gunzip -k old.vmdk.gz",
	}}
	images = append(images, failed, orphan, gone, packed7z, emptyImage("/t/blank.vhd", align.Blank),
		emptyImage("/t/firmware.img", align.UnknownContent))
	images[8].Accepted = &Accepted{Reason: "is replaced", Until: "2027-01-31"}
	Rank(images)

	s := NewSummary()
	s.Complete, s.Paths, s.Boundary, s.Storage, s.Version = true, []string{"/t"}, align.DefaultBoundary, "generic",
		"1.0.0"
	s.Started, s.Finished, s.ExitCode, s.Skipped, s.Changes = "2026-11-21T20:00:00Z", "2026-11-21T20:01:30Z", 1, 4,
		&Changes{}
	s.Isolation.Achieved, s.Took = "sandbox", 90.3
	for _, i := range images {
		i.Change = Same
		if i.State == Gone {
			i.Change = Removed
		}
		s.Add(i)
	}
	s.Unreadable = []Unreadable{{Path: "/t/secret", Error: report.Error{Code: "io", Message: "permission denied"}}}
	return s, images
}

// hostile are names and labels as they should not be chosen.
var hostile = []string{
	"a\nb", "a\r\nb", `quo"te`, "com,ma", "a;=1+1", "=cmd|' /C calc'!A0", "+1", "-1", "@x", "\t=1", "\r=1", "\uff1d1",
	"\uff0b1", "\uff0d1", "\uff201", ` "=1`, "<script>alert(1)</script>", "]]>", "<![CDATA[", "&amp;", "<!--", "-->",
	"\xff\xfe", "\u2028", "\ufffe", "\uffff", "\ufffd", "\U0001fffe", "\x1b]0;x\a", "\x01", "\u202eevil",
	"$(touch pwned)", "`touch pwned`", "it's", `back\`, "#", " shellcheck disable=all", "-rf", "'", "''", "{a,b}", "~",
	strings.Repeat("x", 4000), "日本語",
}

// hostiles is a library in which all that can be chosen by a stranger is hostile.
func hostiles() (*Summary, []*Image) {
	s, _ := smallLibrary()
	s.Paths, s.Version, s.Storage, s.Errors = hostile, hostile[0], hostile[1], map[string]int{hostile[2]: 1}
	var images []*Image
	for _, text := range hostile {
		d := diskOf(align.DataDisk, part(1, 63, "ntfs"))
		d.Partitions[0].Volume.Label, d.Partitions[0].Name, d.Member = text, text, text
		refused := diskOf(align.BootDisk, part(1, 63, "ntfs"))
		refused.Fix.Refusals = []align.Finding{{Subject: text, Text: text, Remedy: text}}
		failed, accepted, orphan := NewImage("failed "+text), judged("accepted "+text, "vmdk", d),
			NewImage("orphan "+text)
		failed.Fail(text, text)
		accepted.Accepted = &Accepted{Reason: text, Until: text}
		orphan.State, orphan.Findings = Orphan, []align.Finding{{Text: text}}
		images = append(images, judged(text, "vmdk", d), judged("/t/"+text, "vmdk", d),
			judged("refused "+text, "vmdk", refused), failed, accepted, orphan)
		s.Unreadable = append(s.Unreadable, Unreadable{text, report.Error{Code: text, Message: text}})
	}
	Rank(images)
	return s, images
}

// written is what a report writes.
func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, write(&out))
	return out.String()
}

// saved puts a report into a file for another program.
func saved(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
	return path
}

// python is Debian's own, which has Debian's modules.
func python(t *testing.T, program string, args ...string) string {
	t.Helper()
	return disktest.Output(t, disktest.DataFile(t, "/usr/bin/python3"), append([]string{"-c", program}, args...)...)
}

// write prints images in a format.
func write(w io.Writer, f Format, s *Summary, images []*Image) error {
	return f.Write(w, &Report{Summary: s, Images: slices.Values(images), Shown: NewShown(images...)})
}

// The reports of the sample are those that stand in testdata.
func TestSample(t *testing.T) {
	s, images := smallLibrary()
	for name, show := range map[string]func(io.Writer) error{
		"sample.csv":  func(w io.Writer) error { return write(w, csvFormat, NewSummary(), images) },
		"sample.xml":  func(w io.Writer) error { return write(w, junitFormat, s, images) },
		"sample.prom": func(w io.Writer) error { return write(w, metricsFormat, s, nil) },
		"sample.sh":   func(w io.Writer) error { return Script(w, s, slices.Values(images)) },
	} {
		golden, got := filepath.Join("testdata", name), written(t, show)
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err, "go test ./internal/scan/results -update makes it")
		require.Equal(t, string(want), got, name)
	}
}

// full is a writer without room.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// A report that could not be written is never taken for one, to its last byte.
func TestReportsSayWhenTheyAreCut(t *testing.T) {
	s, images := hostiles()
	for name, show := range map[string]func(w io.Writer) error{
		"csv":     func(w io.Writer) error { return write(w, csvFormat, NewSummary(), images) },
		"html":    func(w io.Writer) error { return write(w, htmlFormat, s, images) },
		"junit":   func(w io.Writer) error { return write(w, junitFormat, s, images) },
		"metrics": func(w io.Writer) error { return write(w, metricsFormat, s, nil) },
		"script":  func(w io.Writer) error { return Script(w, s, slices.Values(images)) },
	} {
		whole := len(written(t, show))
		for _, room := range []int{0, 5000, whole - 1} {
			if room < whole {
				require.ErrorIs(t, show(&full{room}), io.ErrShortWrite, "%s: %d of %d bytes", name, room, whole)
			}
		}
		require.NoError(t, show(&full{whole}), name)
	}
}

// What a name is on disk survives a row that went through JSON.
func TestExactPath(t *testing.T) {
	i := judged("/t/\xff.vmdk", "vmdk", diskOf(align.DataDisk, part(1, 63, "ntfs")))
	command := i.Priority.Command
	require.Equal(t, `trueup align $'/t/\xff.vmdk' $'/t/\xff-aligned.vmdk'`, command)
	i.Path = "/t/\ufffd.vmdk"
	require.Equal(t, "/t/\xff.vmdk", i.ExactPath())
	i.Assess(nil)
	require.Equal(t, command, i.Priority.Command)
	require.Equal(t, "/t/x", NewImage("/t/x").ExactPath())
}
