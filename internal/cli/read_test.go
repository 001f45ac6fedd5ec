package cli

import (
	"archive/zip"
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
)

// A sound image whose tables are larger than what may be read for one image keeps the verdict that it has without
// --check, also as one of several disks of a package.
func TestScanKeepsTheVerdictOfLargeTables(t *testing.T) {
	t.Chdir(t.TempDir())
	misaligned := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	for name, disk := range map[string]forge.Bytes{"web01.qcow2": tiny(), "web02.qcow2": misaligned} {
		data := make([]byte, 8<<20) // 4 MiB of data that only --check reads
		for i := range data[:len(data)/2] {
			data[len(data)/2+i] = 1
		}
		copy(data, disk)
		put(t, name, qcow2forge.New(data, 16).Bytes)
	}
	put(t, "vm.ovf", []byte(strings.Replace(envelope, "d.vmdk", "web01.qcow2", 1)))
	for _, job := range []scan.Job{{Path: "web01.qcow2"}, {Path: "web02.qcow2"}, {Path: "vm.ovf", Package: true}} {
		j := scan.Inspector{Boundary: align.Kept, Storage: align.Generic(), Check: true}
		whole := j.Image(job)
		require.Nil(t, whole.Error)
		require.Equal(t, results.Full, whole.Disks[0].Depth)
		j.Most = 2 << 20
		got := j.Image(job)
		require.Nil(t, got.Error, job.Path)
		require.Equal(t, results.Judged, got.State)
		require.Equal(t, whole.Verdict, got.Verdict)
		require.Equal(t, whole.Disks[0].Fix, got.Disks[0].Fix)
		fs := got.Disks[0].Findings
		f := fs[len(fs)-1]
		require.Equal(t, []any{"unchecked", align.Warning}, []any{f.Code, f.Severity})
		require.Regexp(t,
			"^the tables were not checked as a whole: .*reading: limit exceeded of 2097152 bytes for one "+
				"image$", f.Text)
		require.Equal(t, "look at it alone with trueup inspect "+job.Path, f.Remedy)
		j.Check = false
		require.Equal(t, j.Image(job).Disks[0].Verdict, got.Disks[0].Verdict)
	}
}

// The name of a packed file cannot command the terminal. This one says that it unpacks to 2^60 bytes.
func TestPackedWarningIsSafe(t *testing.T) {
	t.Chdir(t.TempDir())
	name := "a\x1b[31m\n.img.zst"
	put(t, name, []byte("\x28\xb5\x2f\xfd\xc0\x00\x00\x00\x00\x00\x00\x00\x00\x10\x01\x00\x00"))
	r := trueup(t, "inspect", "--spool", ".", name)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "trying anyway")
	require.NotContains(t, r.stderr, "\x1b")
	require.Equal(t, 2, strings.Count(r.stderr, "\n"), r.stderr)
}

// Packed bytes that many files of an archive share would be unpacked for each.
func TestFilesOfZipDoNotOverlap(t *testing.T) {
	t.Chdir(t.TempDir())
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, name := range []string{"a.img", "b.img"} {
		f, err := w.Create(name)
		require.NoError(t, err)
		_, err = f.Write(tiny())
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	data := archive.Bytes()
	second := bytes.LastIndex(data, []byte("PK\x01\x02"))
	copy(data[second+42:], []byte{0, 0, 0, 0})
	put(t, "a.zip", data)
	require.Contains(t, trueup(t, "inspect", "--spool", ".", "a.zip!b.img").stderr, "overlap")
}
