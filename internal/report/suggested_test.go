package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/shell"
)

// A copy goes beside its image, and one of a block device into the current folder: /dev is no place for it.
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

// The copy of a packed image lies beside the file that it was packed in, also where the folder has a name like that.
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

// A name leaves room for those that the files of the copy have while they are written, and is cut between letters.
func TestLongNamesOfCopies(t *testing.T) {
	for path, want := range map[string]string{
		strings.Repeat("n", 228) + ".raw":              strings.Repeat("n", 228) + "-aligned.raw",
		"d/" + strings.Repeat("n", 251) + ".raw":       "d/" + strings.Repeat("n", 228) + "-aligned.raw",
		"d/n" + strings.Repeat("\u00e9", 120) + ".raw": "d/n" + strings.Repeat("\u00e9", 113) + "-aligned.raw",
		strings.Repeat("n", 251) + ".ovf":              strings.Repeat("n", 228) + "-aligned.ova",
		strings.Repeat("n", 255):                       strings.Repeat("n", 232) + "-aligned",
		"d/n." + strings.Repeat("x", 250):              "d/n-aligned." + strings.Repeat("x", 250),
	} {
		require.Equal(t, want, CopyName(path), path)
	}
	require.Equal(t, strings.Repeat("n", 228)+"-aligned.ova", PackageCopyName(strings.Repeat("n", 251)+".zip"))
}
