package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
)

// A table that is broken where no partition, volume or boot sector lies: a scan that reads only those calls the disk
// aligned, and says how deep it looked. With --check it agrees with inspect, also when an earlier scan looked less
// deep.
func TestScanChecksTables(t *testing.T) {
	t.Chdir(t.TempDir())
	q := qcow2forge.New(tiny(), 16)
	const cluster, copied = 5, uint64(1) << 63
	q.BE64(q.L2+8*cluster, copied|1<<40) // far behind the end of the file
	put(t, "web01.qcow2", q.Bytes)
	require.Equal(t, 1, trueup(t, "inspect", "web01.qcow2").code)
	for _, since := range [][]string{nil, {"--since", "last.ndjson"}} {
		scan := append([]string{"scan", "--isolation", "none", "--json", "web01.qcow2"}, since...)
		r := trueup(t, scan...)
		require.Equal(t, 0, r.code, r.stdout)
		require.Contains(t, r.stdout, `"depth":"survey"`)
		put(t, "last.ndjson", []byte(r.stdout))
		r = trueup(t, append(scan, "--check")...)
		require.Equal(t, 1, r.code, r.stdout)
		require.Contains(t, r.stdout, "1 entries of L1 and L2 tables that lead nowhere")
	}
	putImage(t, "sound.qcow2")
	r := trueup(t, "scan", "--isolation", "none", "--json", "--check", "sound.qcow2")
	require.Equal(t, 0, r.code, r.stdout)
	require.Contains(t, r.stdout, `"depth":"full"`)
}

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

// A file of macOS beside a disk is no disk, whatever it holds, unless it holds one.
func TestFilesOfMacOS(t *testing.T) {
	t.Chdir(t.TempDir())
	disk := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Start: 2048, Sectors: 4096})
	put(t, "x.img", disk)
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "x.img", "x.vmdk")
	for name, content := range map[string][]byte{
		"._x.vmdk": bytes.Repeat([]byte("fork"), 4<<10), "._x.img": bytes.Repeat([]byte("fork"), 1<<20),
	} {
		put(t, name, content)
		r := trueup(t, "scan", "--isolation", "none", "--json", ".")
		require.Equal(t, 0, r.code, r.stdout)
		require.Contains(t, r.stdout, "AppleDouble")
		require.Equal(t, 1, trueup(t, "inspect", name).code, "the user means it")
		require.NoError(t, os.Remove(name))
	}
	put(t, "._x.img", disk)
	r := trueup(t, "scan", "--isolation", "none", ".")
	require.Equal(t, 0, r.code, r.stdout)
	require.Contains(t, r.stdout, "3 images")
	require.NotContains(t, r.stdout, "AppleDouble")
}
