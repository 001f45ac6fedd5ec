package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/image"
)

// qemuMade is one way to have qemu-img make a disk.
type qemuMade struct {
	format  string // as trueup calls it
	qemu    string // as qemu-img calls it
	options string
	flags   []string
}

// qemuFormats are the formats that qemu-img writes, one row for each kind of file.
var qemuFormats = []qemuMade{
	{"raw", "raw", "", nil},
	{"vmdk", "vmdk", "subformat=monolithicSparse", nil},
	{"vmdk", "vmdk", "subformat=monolithicFlat", nil},
	{"vmdk", "vmdk", "subformat=twoGbMaxExtentSparse", nil},
	{"vmdk", "vmdk", "subformat=twoGbMaxExtentFlat", nil},
	{"vmdk", "vmdk", "subformat=streamOptimized", nil},
	{"vhd", "vpc", "subformat=fixed,force_size=on", nil},
	{"vhd", "vpc", "subformat=dynamic,force_size=on", nil},
	{"vdi", "vdi", "static=on", nil},
	{"vdi", "vdi", "static=off", nil},
	{"vhdx", "vhdx", "subformat=fixed", nil},
	{"vhdx", "vhdx", "subformat=dynamic", nil},
	{"qcow2", "qcow2", "compat=0.10", nil},
	{"qcow2", "qcow2", "compat=1.1", nil},
	{"qcow2", "qcow2", "compat=1.1", []string{"-c"}},
	{"qcow2", "qcow2", "compression_type=zstd", []string{"-c"}},
	{"qcow2", "qcow2", "extended_l2=on", nil},
}

func (q qemuMade) name() string {
	return strings.Join(append([]string{q.format, q.options}, q.flags...), " ")
}

// make writes a raw disk in the format and returns the path of the image.
func (q qemuMade) make(t testing.TB, raw string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk."+q.format)
	args := append([]string{"convert", "-f", "raw", "-O", q.qemu}, q.flags...)
	if q.options != "" {
		args = append(args, "-o", q.options)
	}
	disktest.Run(t, "qemu-img", append(args, raw, path)...)
	return path
}

// qemuNames are the names that qemu-img has for our formats, where they differ.
var qemuNames = map[string]string{"vhd": "vpc"}

func qemuName(format string) string {
	if n, ok := qemuNames[format]; ok {
		return n
	}
	return format
}

// pairDisk is a disk with a misaligned partition, data in odd places and a size that is no multiple of any grain.
func pairDisk(t testing.TB) string {
	t.Helper()
	disk := tableforge.NewMBR(21001, slot(0x07, trackSectors, 20000))
	fsforge.PutNTFS(disk, trackSectors, 20000)
	for i, at := range []int64{5000, 9000, 12345, 15000, 20990} {
		place := at*sectorSize + int64(i)
		disk.Put(place, noise("pair", int(min((at/50)*sectorSize, 21001*sectorSize-place))))
	}
	return writeForged("pair.raw", disk)(t, t.TempDir())
}

// TestEveryPairOfFormats converts one disk from every format into every format, and in make test from each into a sixth
// of them, so that each is written at least twice. qemu-img compares the bytes and checks the tables where it can.
func TestEveryPairOfFormats(t *testing.T) {
	t.Parallel()
	raw := pairDisk(t)
	var written []string // the arguments of --to, one for each kind of file
	for _, f := range image.Writable() {
		if len(f.Subformats) == 0 {
			written = append(written, f.Name)
		}
		for _, s := range f.Subformats {
			written = append(written, f.Name+":"+s)
		}
	}
	for i, from := range qemuFormats {
		t.Run(from.name(), func(t *testing.T) {
			t.Parallel()
			source := from.make(t, raw)
			for k, to := range written {
				if !disktest.Exhaustive && (i+k)%6 != 0 {
					continue
				}
				dest := filepath.Join(t.TempDir(), "copy."+strings.Replace(to, ":", ".", 1))
				r := trueup(t, "convert", "--to", to, source, dest)
				require.Equal(t, 0, r.code, "%s: %s", to, r.stderr)

				format, _, _ := strings.Cut(to, ":")
				said := disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", qemuName(format), raw, dest)
				require.Equal(t, "Images are identical.\n", said, "%s: of another size it only warns", to)
				out, err := exec.Command("qemu-img", "check", "-f", qemuName(format), dest).CombinedOutput()
				if !strings.Contains(string(out), "does not support checks") {
					require.NoError(t, err, "%s: %s", to, out)
					said := strings.ReplaceAll(string(out), "No errors were found", "")
					require.NotRegexp(t, `(?i)leaked|corrupt|error`, said, to)
				}
			}
		})
	}
}
