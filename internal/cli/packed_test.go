package cli

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
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
