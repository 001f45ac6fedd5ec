package cli

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
)

// gzipped packs bytes with gzip.
func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(data)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

// zipped packs bytes into a zip archive, under each of the names.
func zipped(t *testing.T, data []byte, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for _, name := range names {
		w, err := archive.Create(name)
		require.NoError(t, err)
		_, err = w.Write(data)
		require.NoError(t, err)
	}
	require.NoError(t, archive.Close())
	return out.Bytes()
}

// No flag has a packed image, or an archive with others in it, overwritten by what is made of it.
func TestPackedSourceIsNeverWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	disk := tiny()
	put(t, "plain.img", disk)
	put(t, "a.img.gz", gzipped(t, disk))
	member := func(name string) tarforge.Member { return tarforge.Member{Name: name, Data: disk} }
	put(t, "t.tar", append(tarforge.New(member("a.img"), member("b.img")), tarforge.End()...))
	box := tarforge.Member{Name: "box.img", Data: qcow2forge.New(disk, 16).Bytes}
	put(t, "vm.box", gzipped(t, append(tarforge.New(box), tarforge.End()...)))
	put(t, "images.zip", zipped(t, disk, "a.img", "b.img"))
	require.NoError(t, os.Link("vm.box", "linked"))
	require.NoError(t, os.Link("a.img.gz", ".new.img.partial"))
	link(t, "images.zip", "symlink")
	for _, c := range [][]string{
		{"align", "--force", "a.img.gz", "a.img.gz"},
		{"align", "--force", "--to", "raw", "vm.box", "vm.box"},
		{"convert", "--force", "vm.box", "vm.box"},
		{"convert", "--force", "vm.box", "linked"},
		{"align", "--force", "images.zip!a.img", "images.zip"},
		{"align", "--force", "images.zip!a.img", "symlink"},
		{"convert", "--force", "t.tar!a.img", "t.tar"},
		{"align", "--force", "--with", "a.img.gz", "plain.img", "a.img.gz"},
		{"align", "--force", "--with", "images.zip!a.img", "plain.img", "images.zip"},
		{"align", "a.img.gz", "new.img"},
		{"align", "--checksums", "a.img.gz", "a.img.gz", "other.img"},
		{"align", "--out", "t.tar", "t.tar!a.img", "other.img"},
		{"inspect", "--spool", ".", "--out", "a.img.gz", "a.img.gz"},
		{"plan", "--out", "t.tar", "t.tar!a.img"},
		{"verify", "--out", "t.tar", "t.tar!a.img", "plain.img"},
	} {
		files := map[string][]byte{}
		for _, name := range []string{"a.img.gz", "t.tar", "vm.box", "images.zip", ".new.img.partial"} {
			files[name] = []byte(read(t, name))
		}
		r := trueup(t, c...)
		require.Equal(t, 64, r.code, "%q %s", c, r.stderr)
		for name, was := range files {
			require.True(t, bytes.Equal(was, []byte(read(t, name))), "%q changed %s", c, name)
		}
	}
}

// scanned runs a scan of one file by the defaults.
func scanned(t *testing.T, path string, flags ...string) string {
	t.Helper()
	r := trueup(t, append([]string{"scan", "--isolation", "none", path}, flags...)...)
	require.Contains(t, []int{0, 1, 3}, r.code, r.stderr)
	return r.stdout
}

// An archive with a file that has the name of an image has a row, which is not judged and has the command that reads
// it. Other archives have none, whatever else is in them.
func TestScanOfArchives(t *testing.T) {
	t.Chdir(t.TempDir())
	tar := func(members ...tarforge.Member) []byte { return append(tarforge.New(members...), tarforge.End()...) }
	image := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Start: 2048, Sectors: 512})
	disk := tarforge.Member{Name: "lab/a.img", Data: image}
	note := tarforge.Member{Name: "note.txt", Data: []byte("note")}
	more := tarforge.Member{Name: "more", Data: make([]byte, 33<<20)}
	put(t, "a.zip", zipped(t, image, "lab/a.img", "b.vmdk"))
	put(t, "b.tar", tar(note, disk))
	put(t, "c.tar.gz", gzipped(t, tar(disk, more)))
	put(t, "vm.box", gzipped(t, tar(note, more, disk)))
	for _, none := range []string{"n.zip", "n.tar", "n.tgz", "far.tar.gz", "junk.tgz"} {
		put(t, none, map[string][]byte{
			"n.zip": zipped(t, []byte("x"), "x.txt"), "n.tar": tar(note), "n.tgz": gzipped(t, tar(note)),
			"far.tar.gz": gzipped(t, tar(more, disk)), "junk.tgz": gzipped(t, []byte("junk")),
		}[none])
	}
	r := trueup(t, "scan", "--isolation", "none", "--json", "--allow-unknown", "--allow-empty", ".")
	require.Zero(t, r.code, r.stderr)
	rows := map[string]string{}
	for line := range strings.Lines(r.stdout) {
		var row struct {
			Path, State, Format string
			Findings            []struct{ Text, Remedy string }
		}
		require.NoError(t, json.Unmarshal([]byte(line), &row))
		if row.Path != "" {
			rows[row.Path] = row.State + " " + row.Format + ": " + row.Findings[0].Text + "; " + row.Findings[0].Remedy
		}
	}
	read := "; to read all of it: trueup inspect --spool DIR "
	packed := func(kind, why string) string {
		return "packed " + kind + ": it is compressed with " + kind + ", and not judged: " + why
	}
	require.Equal(t, map[string]string{
		"a.zip": packed("zip", `an archive with 2 images in it, such as "lab/a.img"`+read+"a.zip"),
		"b.tar": `packed tar: it is packed with tar, and not judged: an archive with the image "lab/a.img"` +
			read + "b.tar",
		"c.tar.gz": packed("gzip", `a tar archive with the image "lab/a.img"`+read+"c.tar.gz"),
		"vm.box": packed("gzip", "a tar archive, and no file in its first 32 MiB has the name "+
			"of an image"+read+"vm.box"),
	}, rows)
	require.Contains(t, trueup(t, "inspect", "--spool", ".", "b.tar").stdout, "Aligned")
}

// A verdict by a head says so.
func TestAlignedByHead(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "a.qcow2.gz", gzipped(t, qcow2forge.New(tiny(), 16).Bytes))
	out := scanned(t, "a.qcow2.gz")
	require.Contains(t, out, "Aligned:")
	require.Contains(t, out, "By head: 1 image, packed")
}

// The error of a packed image that cannot be read is that of the image, and nothing more.
func TestPackedErrors(t *testing.T) {
	t.Chdir(t.TempDir())
	junk := bytes.Repeat([]byte("junk"), 1<<18)
	put(t, "junk.vmdk", junk)
	put(t, "junk.vmdk.gz", gzipped(t, junk))
	want := strings.ReplaceAll(trueup(t, "inspect", "junk.vmdk").stderr, "junk.vmdk:", "junk.vmdk.gz:")
	require.Equal(t, want, trueup(t, "inspect", "--spool", ".", "junk.vmdk.gz").stderr)
}

// The name of a packed file cannot command the terminal. This one says that it unpacks to 2^60 bytes.
func TestPackedWarningIsSafe(t *testing.T) {
	t.Chdir(t.TempDir())
	name := "a\x1b[31m\n.img.zst"
	put(t, name, []byte("\x28\xb5\x2f\xfd\xc0\x00\x00\x00\x00\x00\x00\x00\x00\x10\x01\x00\x00"))
	r := trueup(t, "inspect", "--spool", ".", name)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "trying all the same")
	require.NotContains(t, r.stderr, "\x1b")
	require.Equal(t, 2, strings.Count(r.stderr, "\n"), r.stderr)
}

// Work that needs a file is refused before anything is unpacked: there is no folder for that.
func TestPackedIsRefusedFirst(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "a.img.gz", gzipped(t, tiny()))
	for _, args := range [][]string{{"view", "a.img.gz", "d.vmdk"}, {"move", "a.img.gz"}} {
		r := trueup(t, args...)
		require.Equal(t, 4, r.code, r.stderr)
		require.Contains(t, r.stderr, args[0]+" needs an image in a file of its own")
	}
}

// A file of an archive with a name that no image may have does not keep the others from being read.
func TestOddNamesInZip(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "odd.zip", zipped(t, []byte("text"), "M\x94ller.txt", `dir\read.txt`, "b.txt"))
	require.Contains(t, trueup(t, "inspect", "--spool", ".", "odd.zip").stderr, "no image (files in it: 3)")
	r := trueup(t, "inspect", "--spool", ".", `odd.zip!dir\read.txt`)
	require.Contains(t, r.stderr, "has a backslash")

	put(t, "image.zip", zipped(t, qcow2forge.New(tiny(), 16).Bytes, `dir\a.qcow2`))
	require.Contains(t, trueup(t, "inspect", "--spool", ".", "image.zip").stderr, "has a backslash")
}

// A message lists images so that a shell reads their names, and not all of many.
func TestImagesOfAnArchiveAreListed(t *testing.T) {
	t.Chdir(t.TempDir())
	names := []string{"it's.qcow2"}
	for i := range 11 {
		names = append(names, strconv.Itoa(i)+".qcow2")
	}
	put(t, "a.zip", zipped(t, qcow2forge.New(tiny(), 16).Bytes, names...))
	r := trueup(t, "inspect", "--spool", ".", "a.zip")
	require.Equal(t, 64, r.code)
	require.Contains(t, r.stderr, `'a.zip!it'\''s.qcow2', 'a.zip!0.qcow2'`)
	require.Contains(t, r.stderr, "and 2 more")
}

// Packed bytes that many files of an archive share would be unpacked for each.
func TestFilesOfZipDoNotOverlap(t *testing.T) {
	t.Chdir(t.TempDir())
	data := zipped(t, tiny(), "a.img", "b.img")
	second := bytes.LastIndex(data, []byte("PK\x01\x02"))
	copy(data[second+42:], []byte{0, 0, 0, 0})
	put(t, "a.zip", data)
	require.Contains(t, trueup(t, "inspect", "--spool", ".", "a.zip!b.img").stderr, "overlap")
}

// A plan counts the room for what is unpacked.
func TestPlanOfPacked(t *testing.T) {
	t.Chdir(t.TempDir())
	disk := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	put(t, "a.qcow2.gz", gzipped(t, qcow2forge.New(disk, 16).Bytes))
	r := trueup(t, "plan", "--spool", ".", "a.qcow2.gz")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, strings.Join(strings.Fields(r.stdout), " "), "Unpacking needs up to ")
}
