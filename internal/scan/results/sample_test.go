package results

import (
	"bytes"
	"flag"
	"fmt"
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

// `go test ./internal/scan/results -update` writes the reports of the sample again; read the diff before you commit it.
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

// guestOf is a machine whose boot disk was cloned while running, and whose data disk was closed.
func guestOf(role align.Role) *report.Guest {
	sign := boot.Sign{
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
	return &report.Guest{State: sign.State, Signs: []boot.Sign{sign}}
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

// smallLibrary is a small library with an image of each kind, ranked, with its totals.
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

// hostile are unfortunate names and labels.
var hostile = []string{
	"a\nb", "a\r\nb", `quo"te`, "com,ma", "a;=1+1", "=cmd|' /C calc'!A0", "+1", "-1", "@x", "\t=1", "\r=1", "\uff1d1",
	"\uff0b1", "\uff0d1", "\uff201", ` "=1`, "<script>alert(1)</script>", "]]>", "<![CDATA[", "&amp;", "<!--", "-->",
	"\xff\xfe", "\u2028", "\ufffe", "\uffff", "\ufffd", "\U0001fffe", "\x1b]0;x\a", "\x01", "\u202eevil",
	"$(touch pwned)", "`touch pwned`", "it's", `back\`, "#", " shellcheck disable=all", "-rf", "'", "''", "{a,b}", "~",
	strings.Repeat("x", 4000), "日本語",
}

// hostiles is a library in which everything under a stranger's control is hostile.
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

// written returns the output of a report.
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

// python runs a program in Debian's Python, which has Debian's modules, and returns the output.
func python(t *testing.T, program string, args ...string) string {
	t.Helper()
	return disktest.Output(t, disktest.DataFile(t, "/usr/bin/python3"), append([]string{"-c", program}, args...)...)
}

// write prints images in a format.
func write(w io.Writer, f Format, s *Summary, images []*Image) error {
	return f.Write(w, &Report{Summary: s, Images: slices.Values(images), Rows: len(images)})
}

// The reports of the sample equal those in testdata.
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
		require.NoError(t, err)
		require.Equal(t, string(want), got, "go test ./internal/scan/results -update writes "+golden)
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

// A write error of a report, even at its last byte, is returned.
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

// The exact bytes of a file name survive in a row that went through JSON.
func TestExactPath(t *testing.T) {
	i := judged("/t/\xff.vmdk", "vmdk", diskOf(align.DataDisk, part(1, 63, "ntfs")))
	command := i.Priority.Command
	require.Equal(t, `trueup align "$(printf '/t/\377.vmdk')" "$(printf '/t/\377-aligned.vmdk')"`, command)
	i.Path = "/t/\ufffd.vmdk"
	require.Equal(t, "/t/\xff.vmdk", i.ExactPath())
	i.Assess(nil)
	require.Equal(t, command, i.Priority.Command)
	require.Equal(t, "/t/x", NewImage("/t/x").ExactPath())
}

// part describes a partition of a sample by its first LBA, its size in bytes, and what it holds.
type pagePart struct {
	lba, size         int64
	typ, volume, name string
}

// sampleDisk is a disk in a scan: verdicts and findings follow from its starts.
func sampleDisk(scheme, boot string, size int64, parts ...pagePart) Disk {
	d := Disk{Disk: report.Disk{
		Size: size, Table: report.Table{Scheme: scheme, SectorSize: units.SectorSize},
		Boot: report.BootCode{Name: boot, Text: boot}, Boundary: align.DefaultBoundary, Verdict: align.Aligned,
		Partitions: []report.Partition{}, Findings: []align.Finding{},
	}, Depth: Survey}
	for n, p := range parts {
		out := report.Partition{
			Number: n + 1, Active: n == 0 && scheme == "mbr", Type: p.typ, TypeName: p.typ, StartLBA: p.lba,
			Start: p.lba * units.SectorSize, Size: p.size, Alignment: units.Alignment(p.lba * units.SectorSize),
		}
		if p.volume != "" {
			out.Verdict = d.Boundary.Verdict(out.Start)
			out.Volume = &report.Volume{Kind: p.volume, Label: p.name, Cluster: 4096}
			d.Verdict = d.Verdict.Worse(out.Verdict)
			d.Findings = append(d.Findings, sampleFindings(out, d.Boundary)...)
		}
		d.Partitions = append(d.Partitions, out)
	}
	return d
}

func sampleFindings(p report.Partition, boundary align.Boundary) []align.Finding {
	f := align.Finding{Severity: align.Warning, Subject: fmt.Sprintf("partition %d", p.Number)}
	switch p.Verdict {
	case align.Misaligned:
		f.Code = "misaligned"
		f.Text = fmt.Sprintf("starts at LBA %d (byte %d), %d bytes past a 4 KiB boundary: each 4 KiB cluster touches "+
			"two 4 "+
			"KiB blocks of the storage instead of one",
			p.StartLBA, p.Start, p.Start%align.Block)
	case align.BelowBoundary:
		f.Code = "below-boundary"
		f.Text = fmt.Sprintf("starts at byte %d, %s past a multiple of %s: I/O of 64 KiB touches two units of a "+
			"storage "+
			"that works in such units, instead of one",
			p.Start, units.Format(boundary.Past(p.Start)), boundary.Text())
	default:
		return nil
	}
	return []align.Finding{f}
}

// fixed gives a disk that is off its boundary the fields of a full survey.
func fixed(d Disk, role align.Role, refusals ...align.Finding) Disk {
	d.Depth, d.Guest = Full, guestOf(role)
	text := map[align.Role]string{align.BootDisk: "boot", align.DataDisk: "data"}[role]
	d.Advice = &align.Advice{
		Action: align.Align, Gain: align.High, Role: role,
		Text: "Yes: random I/O of 4 KiB touches 100 % more blocks of the storage than it must. This is a " + text +
			" disk. 2 stored positions change with the move; all can be rewritten.",
	}
	if len(refusals) > 0 {
		d.Advice.Text = "It would help (random I/O of 4 KiB touches 100 % more blocks of the storage than it must), " +
			"but a " +
			"copy would be refused now. " +
			"This is a boot disk."
	}
	if d.Verdict == align.BelowBoundary {
		d.Advice.Text = "That depends on the storage: one with 4 KiB blocks gains nothing, one with larger blocks " +
			"may; --storage says which it is."
	}
	d.Fix = &Fix{Boundary: align.DefaultBoundary, OldSize: d.Size, NewSize: d.Size, Refusals: refusals}
	for _, p := range d.Partitions {
		if p.Verdict == align.Misaligned || p.Verdict == align.BelowBoundary {
			to := align.DefaultBoundary.Up(p.Start)
			d.Fix.Moves = append(d.Fix.Moves,
				report.Move{Partition: p.Number, From: p.Start, To: to, Size: p.Size, Delta: to - p.Start})
			d.Fix.NewSize = max(d.Fix.NewSize, units.AlignUp(to+p.Size, units.MiB))
		}
	}
	if d.Verdict == align.Misaligned {
		d.Cost = &Cost{
			Storage: "generic", Block: align.Block, Partition: 1, More: 100,
			Text: "random I/O of 4 KiB touches 100 % more blocks of the storage than it must",
		}
	}
	return d
}

// sample is an image of a library with its disks.
func htmlSample(path, format, subformat string, stored int64, disks ...Disk) *Image {
	i := NewImage(path)
	i.State, i.Format, i.Subformat, i.Stored, i.Disks = Judged, format, subformat, stored, disks
	for _, d := range disks {
		i.Size += d.Size
	}
	i.Files = []File{{Name: path[len(path)-4:], Size: stored, Allocated: stored}}
	i.Assess(nil)
	return i
}

const gib = units.GiB

func xpDisk(label string, size int64) Disk {
	return fixed(sampleDisk("mbr", "Windows 2000 to 2003", size,
		pagePart{63, size - 63*units.SectorSize, "07 NTFS/exFAT", "ntfs", label}), align.BootDisk)
}

func dataDisk(label string, size int64) Disk {
	return fixed(sampleDisk("mbr", "none", size, pagePart{63, size / 2, "07 NTFS/exFAT", "ntfs", label},
		pagePart{63 + size/1024, size / 3, "07 NTFS/exFAT", "ntfs", "LOGS"}), align.DataDisk)
}

func gptDisk(size int64) Disk {
	return sampleDisk("gpt", "protective", size, pagePart{2048, 100 * units.MiB, "EFI system", "fat32", "SYSTEM"},
		pagePart{206848, 16 * units.MiB, "Microsoft reserved", "", ""},
		pagePart{239616, size - 118*units.MiB, "Windows data", "ntfs", "Windows"})
}

func linuxDisk(size int64) Disk {
	d := sampleDisk("mbr", "GRUB 2", size, pagePart{2048, 512 * units.MiB, "83 Linux", "ext4", "boot"},
		pagePart{1052670, size - 514*units.MiB, "05 extended", "", ""},
		pagePart{1052672, size - 515*units.MiB, "8e Linux LVM", "lvm2", ""})
	d.Partitions[2].Number, d.Partitions[2].Kind = 5, "logical"
	return d
}

var lilo = align.Finding{
	Code: "lilo", Severity: align.Error, Subject: "disk",
	Text:   "LILO keeps the sectors of its second stage and its map, which a move changes",
	Remedy: "install GRUB in the guest, or run lilo on the copy and pass --allow-unbootable",
}

// sampleLibrary is a library of every state, with its sums, in the order of Rank.
func sampleLibrary() (*Summary, []*Image) {
	var images []*Image
	add := func(i *Image, change Change) {
		i.Change = change
		images = append(images, i)
	}
	for n, name := range []string{"crm-2003", "print-01", "pos-kiosk", "vpn-gw", "licence-server"} {
		add(htmlSample("/vmfs/templates/legacy/"+name+".vmdk", "vmdk", "monolithicSparse",
			int64(3+n)*gib+int64(n)*313*units.MiB, xpDisk("SYSTEM", int64(8+n*4)*gib)), Same)
	}
	for n, name := range []string{"sql-data", "exchange-store"} {
		add(htmlSample("/vmfs/templates/legacy/"+name+".vhd", "vhd", "dynamic", int64(41+n*30)*gib,
			dataDisk("DATA", int64(64+n*64)*gib)), []Change{New, Same}[n])
	}
	suse := fixed(sampleDisk("mbr", "LILO", 20*gib, pagePart{63, 18 * gib, "83 Linux", "reiserfs", ""}),
		align.BootDisk,
		lilo)
	add(htmlSample("/vmfs/templates/legacy/suse-9.vmdk", "vmdk", "twoGbMaxExtentSparse", 7*gib, suse), Same)
	kiosk := htmlSample("/vmfs/templates/legacy/kiosk-nt4.qcow2", "qcow2", "", 900*units.MiB, xpDisk("", 4*gib))
	kiosk.Accepted = &Accepted{Reason: "retired with the branch in March", Until: "2027-03-31"}
	add(kiosk, Same)
	ova := htmlSample("/vmfs/templates/appliances/erp-suite.ova", "ova", "", 19*gib, xpDisk("OS", 40*gib),
		dataDisk("ERP", 120*gib))
	ova.Disks[0].Member, ova.Disks[1].Member = "erp-suite-disk1.vmdk", "erp-suite-disk2.vmdk"
	add(ova, Changed)
	below := fixed(sampleDisk("mbr", "Windows Vista to 11", 60*gib,
		pagePart{64, 20 * gib, "07 NTFS/exFAT", "ntfs", "System"},
		pagePart{20*2097152 + 2048, 30 * gib, "07 NTFS/exFAT", "ntfs", "Daten"}), align.BootDisk)
	add(htmlSample("/vmfs/templates/win/office-2008.vhdx", "vhdx", "dynamic", 22*gib, below), Same)
	for n, name := range []string{
		"win2012r2", "win2016-core", "win2016", "win2019-core", "win2019", "win2022-core", "win2022", "win2025",
	} {
		add(htmlSample("/vmfs/templates/win/"+name+".vmdk", "vmdk", "streamOptimized", int64(6+n)*gib,
			gptDisk(int64(40+n*8)*gib)), Same)
	}
	for n, name := range []string{
		"debian-10", "debian-11", "debian-12", "ubuntu-18.04", "ubuntu-20.04", "ubuntu-22.04",
		"ubuntu-24.04", "rhel-7", "rhel-8", "rhel-9", "sles-15", "rocky-9", "alma-9",
	} {
		add(htmlSample("/vmfs/templates/linux/"+name+".qcow2", "qcow2", "", int64(1+n%4)*gib+int64(n)*97*units.MiB,
			linuxDisk(int64(10+n*2)*gib)), Same)
	}
	raw := htmlSample("/vmfs/templates/linux/swap.img", "raw", "", 2*gib, Disk{Disk: report.Disk{
		Size: 2 * gib, Boundary: align.DefaultBoundary, Verdict: align.Aligned,
		Table: report.Table{Scheme: "none"}, Volume: &report.Volume{Kind: "swap"},
	}})
	raw.Parents = []string{"base.img"}
	add(raw, New)
	for _, f := range [][4]string{
		{
			"/vmfs/templates/legacy/mail-old.vmdk", "format",
			"vmdk header at 0x0: grain directory at sector 4294967295, beyond the end of the file at 1310720", "vmdk",
		},
		{"/vmfs/templates/win/vista.vhd", "checksum", "vhd footer at 0x27fe00: checksum 0x1f3c, want 0x1f40", "vhd"},
		{
			"/vmfs/templates/upload/unknown.vhdx", "crash",
			"the worker was killed while it read this image (512 MiB of memory were not enough)", "",
		},
	} {
		i := NewImage(f[0])
		i.Format, i.Stored = f[3], 4*gib
		i.Fail(f[1], f[2])
		add(i, Same)
	}
	orphan := NewImage("/vmfs/templates/upload/web-s003.vmdk")
	orphan.State, orphan.Format, orphan.Stored = Orphan, "vmdk", 1900*units.MiB
	orphan.Findings = []align.Finding{{
		Code: "orphan", Severity: align.Warning, Subject: "image",
		Text:   "an extent of a disk in several files whose descriptor is not there",
		Remedy: "look for web.vmdk, or remove the extent",
	}}
	add(orphan, New)
	gone := NewImage("/vmfs/templates/win/win2008.vmdk")
	gone.State = Gone
	add(gone, Removed)
	return sampleSummary(images), images
}

// sampleSummary ranks and counts.
func sampleSummary(images []*Image) *Summary {
	Rank(images)
	s := NewSummary()
	s.Complete, s.Paths, s.Boundary, s.Storage, s.Version = true, []string{"/vmfs/templates"}, align.DefaultBoundary,
		"generic (4 KiB blocks, as most storage has)", "1.4.0"
	s.Started, s.Finished, s.Took = "2026-11-20T22:00:00Z", "2026-11-20T22:00:42Z", 42
	s.Changes = &Changes{Since: "2026-11-13T22:00:41Z"}
	s.Isolation = Isolation{Wanted: "sandbox", Achieved: "sandbox", Layers: []string{
		"landlock-5", "seccomp",
		"rlimits",
	}}
	s.Skipped, s.FailOn, s.ExitCode, s.Worst = 118, "4K", 1, images[0].Path
	s.Unreadable = []Unreadable{{
		Path:  "/vmfs/templates/private",
		Error: report.Error{Code: "io", Message: "permission denied"},
	}}
	for _, i := range images {
		i.Read = 48 * units.KiB
		s.Add(i)
	}
	return s
}

// largeLibrary has n rows in the proportions of the sample.
func largeLibrary(n int) (*Summary, []*Image) {
	_, few := sampleLibrary()
	images := make([]*Image, 0, n)
	for k := range n {
		i := *few[k%len(few)]
		i.Disks = slices.Clone(i.Disks)
		i.SetPath(fmt.Sprintf("/vmfs/volumes/datastore%02d/%05d%s", k%17, k, i.Path))
		i.Stored += int64(k) * 4096
		if i.Priority != nil {
			i.Assess(nil)
		}
		images = append(images, &i)
	}
	return sampleSummary(images), images
}
