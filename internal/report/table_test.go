package report

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/volume"
)

// tableOf returns what a table looks like.
func tableOf(t Text, rows [][]string, names ...string) string {
	var out bytes.Buffer
	t.W = &out
	t.Table(slices.Values(rows), names...)
	return out.String()
}

func TestTables(t *testing.T) {
	x := Text{Color: true}
	require.Equal(t, strings.Join([]string{
		"  #  name     size  on",
		"  1  データ    1 B  \x1b[32myes\x1b[0m",
		" 10          10 KB  \x1b[31mno\x1b[0m",
		"",
	}, "\n"), tableOf(x, [][]string{
		{"1", "データ", "1 B", x.Paint(Green, "yes")}, {"10", "", "10 KB", x.Paint(Red, "no")},
	}, ">#", "name", ">size", "on"))
	require.Equal(t, " old  why\n 12   first\n 34\n 5    second\n",
		tableOf(Text{}, [][]string{{"12\n34", "first"}, {"5", "second"}}, "old", "<why"))
	require.Equal(t, " a\n", tableOf(Text{}, nil, "a"))
}

// A folded column stays within the width, as far as that leaves room for one, and loses no word.
func TestTablesFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"ntfs", "hidden", "of 1:", "->", "Grün", "データ", strings.Repeat("long", 30)})
		cell := rapid.StringMatching(`[0-9a-f]{0,16}`)
		var rows [][]string
		var words []string
		for range rapid.IntRange(1, 8).Draw(t, "rows") {
			text := strings.Join(rapid.SliceOfN(word, 1, 12).Draw(t, "words"), " ")
			rows = append(rows, []string{cell.Draw(t, "cell"), cell.Draw(t, "cell"), text})
			words = append(words, rows[len(rows)-1]...)
		}
		width := rapid.SampledFrom([]int{0, 40, 80, 100}).Draw(t, "width")
		got := tableOf(Text{Width: width}, rows, ">offset", "new", "<reason")
		blank := func(s string) string { return strings.Join(strings.Fields(s), "") }
		require.Equal(t, len(blank(strings.Join(words, ""))), len(blank(got))-len("offsetnewreason"))
		for line := range strings.Lines(got) {
			cells := Cells(strings.TrimRight(line, "\n"))
			require.True(t, width == 0 || cells <= max(width, 1+16+2+16+2+leastFolded), line)
		}
	})
}

func TestCells(t *testing.T) {
	for s, n := range map[string]int{
		"": 0, "abc": 3, "データ": 6, "e\u0301": 1, "\x1b[31mred\x1b[0m": 3, "█▒·": 3, "😀": 2, "ＡＢ": 4, "\u200b": 0,
	} {
		require.Equal(t, n, Cells(s), "%q", s)
	}
	require.Equal(t, "デ", Trim("データ", 3))
	require.Equal(t, "ータ", TrimLeft("データ", 5))
	require.Equal(t, "ab", Trim("ab", 2))
	require.Equal(t, "ab", TrimLeft("ab", 2))
	require.Empty(t, TrimLeft("ab", 0))
	require.Equal(t, " データ", Pad("データ", 7, true))
}

// Each line fits, no character is lost, and a word is divided only if it is wider than a line.
func TestFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.StringMatching(`[a-zé:.]{1,12}`), rapid.StringMatching(`[a-zデー]{1,90}`))
		words := rapid.SliceOfN(word, 1, 20).Draw(t, "words")
		n := rapid.IntRange(2, 100).Draw(t, "columns")
		lines := Fold(strings.Join(words, " "), n)
		for _, l := range lines {
			require.LessOrEqual(t, Cells(l), n)
		}
		require.Equal(t, strings.Join(words, ""), strings.ReplaceAll(strings.Join(lines, ""), " ", ""))
	})
	require.Equal(t, []string{"a longer", "line"}, Fold("a longer line", 8))
	require.Equal(t, []string{"a longer line "[:13]}, Fold("a longer line ", 0))
}

// Colour neither counts for the width nor continues in the next line.
func TestFoldOfPaintedWords(t *testing.T) {
	painted := (&Text{Color: true}).Paint(Yellow, "Below boundary:")
	require.Equal(t, []string{painted + " the first", "partition"}, Fold(painted+" the first partition", 25))
	require.Equal(t, []string{painted[:10], painted[11:]}, Fold(painted, 4))
}

// The headline mentions the data if the start of a partition is worse than the verdict.
func TestVerdictOfData(t *testing.T) {
	for start, want := range map[int64]string{
		63 * 512: "Below boundary: the data of partition 1 lie on a multiple of 4 KiB, but not on one of 64 KiB.\n",
		64 * 512: "Below boundary: partition 1 starts on a multiple of 4 KiB, but not on one of 64 KiB.\n",
	} {
		var b strings.Builder
		(&Text{W: &b}).Say("verdict", &Disk{
			Verdict: align.BelowBoundary, Boundary: align.DefaultBoundary,
			Partitions: []Partition{{Number: 1, Start: start, Verdict: align.BelowBoundary}},
		})
		require.Equal(t, want, b.String())
	}
}

// A disk of unknown content is never called aligned.
func TestNothingWritten(t *testing.T) {
	for code, want := range map[string]string{
		"":                        "a.raw is aligned already; nothing was written.\n",
		layout.CodeUnknownContent: "a.raw has no known content; nothing was written.\n",
		layout.CodeBlank:          "a.raw has no known content; nothing was written.\n",
	} {
		var b strings.Builder
		d := &AlignedDisk{Findings: []align.Finding{{Code: code, Severity: align.Info}}}
		r := &Align{Source: "a.raw", Disks: []*AlignedDisk{d}}
		(&Text{W: &b}).Align(r)
		require.Contains(t, b.String(), want)
	}
}

// showInside prints the content of a volume at byte 1 MiB.
func showInside(v *volume.Volume) string {
	var b strings.Builder
	shown := newVolume(v, 1<<20, 0)
	(&Text{W: &b}).insides(Disk{
		Boundary: align.DefaultBoundary, Verdict: align.Aligned, Table: Table{SectorSize: 512},
		Partitions: []Partition{{Number: 2, Volume: shown}},
	})
	return b.String()
}

func TestInside(t *testing.T) {
	require.Empty(t, showInside(&volume.Volume{Kind: volume.NTFS, Label: "plain"}), "nothing to say")
	require.Equal(t, `
  Inside partition 2: LVM2 "vg0", extent size 4 MiB, data from 192 KiB on

      name    kind    start LBA   size  on 64K
      root    linear       2432  8 MiB  yes
      odd     linear       2433  1 MiB  no
      [wide]  raid1           -  2 MiB  -
`, showInside(&volume.Volume{
		Kind: volume.LVM2, Label: "vg0", DataStart: 192 << 10,
		Details: []volume.Detail{{Name: "volume group", Value: "vg0"}, {Name: "extent size", Value: "4 MiB"}},
		Parts: []volume.Part{
			{Name: "root", Kind: "linear", Start: 192 << 10, Size: 8 << 20},
			{Name: "odd", Kind: "linear", Start: 192<<10 + 512, Size: 1 << 20},
			{Name: "[wide]", Kind: "raid1", Start: -1, Size: 2 << 20},
		},
	}))
}

// Texts of an image can neither control the terminal nor fill it.
func TestInsideIsSafeAndShort(t *testing.T) {
	v := &volume.Volume{Kind: volume.LVM2, Details: []volume.Detail{{Name: "group", Value: "\x1b[31m"}}}
	for i := range 300 {
		v.Parts = append(v.Parts, volume.Part{Name: fmt.Sprintf("\x1b]0;%d\a", i), Kind: "\u202e", Start: -1})
	}
	got := showInside(v)
	require.NotContains(t, got, "\x1b")
	require.NotContains(t, got, "\u202e")
	require.Contains(t, got, "... and 236 more\n")
	require.Equal(t, 2+2+64+1, strings.Count(got, "\n"))
}

// A copy is placed beside its image, and a copy of a block device in the current folder, not in /dev.
func TestNamesOfCopies(t *testing.T) {
	quote := shell.Quote("a b")[:1]
	for path, want := range map[string]string{
		"lib/disk.img":                    "trueup align lib/disk.img lib/disk-aligned.img",
		"lib.d/disk":                      "trueup align lib.d/disk lib.d/disk-aligned",
		"nbd://host/":                     "trueup align nbd://host/ disk-aligned.img",
		"nbd+unix:///a/b?socket=s/s":      "trueup align 'nbd+unix:///a/b?socket=s/s' b-aligned.img",
		"/dev/loop0":                      "trueup align /dev/loop0 loop0-aligned.img",
		"/dev/vg/lv-root":                 "trueup align /dev/vg/lv-root lv-root-aligned.img",
		"/dev/disk/by-id/ata-disk.1-part": "trueup align /dev/disk/by-id/ata-disk.1-part ata-disk.1-part-aligned.img",
		"/dev/shm/disk.img":               "trueup align /dev/shm/disk.img /dev/shm/disk-aligned.img",
	} {
		require.Equal(t, strings.ReplaceAll(want, "'", quote), AlignCommand(path, "raw", nil), path)
	}
}

// The copy of a packed image is beside its archive, even if the folder has such a name.
func TestNamesOfUnpackedCopies(t *testing.T) {
	for path, c := range map[string]struct {
		from image.Unpacked
		want string
	}{
		"a.img.gz.d/a.img.gz":  {image.Unpacked{File: "a.img.gz"}, "a.img.gz.d/a-aligned.img"},
		"lib/link.gz":          {image.Unpacked{File: "b.img.gz"}, "lib/b-aligned.img"},
		"lib/vm.box":           {image.Unpacked{File: "vm.box", Member: "box.img"}, "lib/box-aligned.img"},
		"vm.box.d/vm.box!vm/b": {image.Unpacked{File: "vm.box", Member: "vm/b"}, "vm.box.d/b-aligned"},
	} {
		require.Equal(t, shell.Command("align", []string{"--to", "raw"}, path, c.want),
			alignUnpackedCommand(path, c.from, "raw", []string{"--to", "raw"}), path)
	}
}

// The next step after a copy depends on its format.
func TestUseOfACopy(t *testing.T) {
	formats := map[string]bool{}
	for _, tc := range []struct{ format, subformat, dest, want, folder string }{
		{
			"qcow2", "v3", "a b,c.qcow2",
			`libvirt:   virt-xml VM --edit target=TARGET --disk path="$PWD"/'a b\,c.qcow2',driver.type=qcow2`,
			"/srv/a b",
		},
		{"qcow2", "v3", "a,b.qcow2", `path='/srv/one\,two/a\,b.qcow2',driver.type=qcow2`, "/srv/one,two"},
		{
			"raw", "", "/t/a.img", "libvirt:   virt-xml VM --edit target=TARGET --disk path=/t/a.img,driver.type=raw\n",
			"",
		},
		{"raw", "", `/t/it's "a\b".img`, `--disk path='/t/it\'\''s \"a\\b\".img',driver.type=raw` + "\n", ""},
		{"vhdx", "dynamic", "-it's, a\u2019.vhdx", "-Path \".\\-it's, a\u2019.vhdx\"\n", ""},
		{"vhdx", "dynamic", "t/a.vhdx", "Hyper-V:   Set-VMHardDiskDrive VM -ControllerType TYPE", ""},
		{"vhd", "fixed", "t/a.vhd", "-ControllerLocation N -Path t/a.vhd\n", ""},
		{"vdi", "dynamic", "t/a b.vdi", "VirtualBox:   VBoxManage storageattach VM --storagectl CONTROLLER", ""},
		{"vdi", "dynamic", "t/a b.vdi", "--medium 't/a b.vdi'\n", ""},
		{"vmdk", "vmfs", "t/a.vmdk", "govc vm.disk.attach -vm VM -ds DATASTORE -disk VM/a.vmdk\n", ""},
		{"vmdk", "streamOptimized", "t/a.vmdk", "vSphere:   govc import.vmdk -ds DATASTORE t/a.vmdk\n", ""},
		{
			"vmdk", "monolithicSparse", "t/a.vmdk",
			"vmkfstools -d thin -i t/a.vmdk /vmfs/volumes/DATASTORE/VM/a.vmdk\n", "",
		},
		{"vmdk", "monolithicSparse", "-", "monolithicSparse, ", ""},
		{"vhd", "fixed", "a\nb.vhd", `-Path "a$([char]0xa)b.vhd"` + "\n", ""},
	} {
		formats[tc.format] = true
		var out strings.Builder
		r := &Align{
			Source: "s", Dest: tc.dest, Folder: tc.folder, Written: true,
			Disks: []*AlignedDisk{{Format: tc.format, Subformat: tc.subformat}},
		}
		(&Text{W: &out}).Align(r)
		require.Contains(t, out.String(), tc.want)
		require.Equal(t, tc.dest != "-", strings.Contains(out.String(), "To use it with "),
			out.String())
	}
	require.ElementsMatch(t, image.Names(), slices.Collect(maps.Keys(formats)))
	var out strings.Builder
	(&Text{W: &out}).Align(&Align{Source: "s", Dest: "s", Disks: []*AlignedDisk{{Format: "raw"}}, Written: true})
	require.NotContains(t, out.String(), "To use it with ", "moved in its place")
	out.Reset()
	(&Text{W: &out}).Align(&Align{
		Source: "s.orig.vdi", Dest: "s.vdi", Written: true, Replaced: &Replaced{Original: "s.orig.vdi"},
		Disks: []*AlignedDisk{{Format: "vdi", registered: true}},
	})
	require.Contains(t, out.String(), "VBoxManage internalcommands sethduuid s.vdi UUID\n")
	require.NotContains(t, out.String(), "To use it with ")
}
