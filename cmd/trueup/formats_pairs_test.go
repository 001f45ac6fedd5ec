package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/image"
)

// qemuMade is a way to make a disk with qemu-img.
type qemuMade struct {
	format  string // name in trueup
	qemu    string // name in qemu-img
	options string
	flags   []string
}

// qemuFormats lists the formats that qemu-img writes, one row for each kind of file.
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

// qemuNames maps our names of formats to those of qemu-img, if different.
var qemuNames = map[string]string{"vhd": "vpc"}

func qemuName(format string) string {
	if n, ok := qemuNames[format]; ok {
		return n
	}
	return format
}

// pairDisk is a disk with a misaligned partition, data in odd places and a size that is not a multiple of any grain.
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

// TestEveryPairOfFormats converts a disk from every format into every format; make test converts each into a sixth of
// them, so that each is written at least twice. qemu-img compares the bytes, and checks the tables if it can.
func TestEveryPairOfFormats(t *testing.T) {
	t.Parallel()
	raw := pairDisk(t)
	var written []string // arguments of --to, one for each kind of file
	for f := range image.All {
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

// qemuOptions maps options of qemu-img create to the tested values, by qemu-img's name of the format. A value may
// include further required options.
var qemuOptions = map[string]map[string][]string{
	"raw": {},
	"vmdk": {
		"adapter_type": {"ide", "lsilogic", "buslogic", "legacyESX"}, "compat6": {"on", "off"},
		"hwversion": {"4", "17"},
		"subformat": {
			"monolithicSparse", "monolithicFlat", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat", "streamOptimized",
		},
		"toolsversion": {"2147483647"}, "zeroed_grain": {"on", "off", "on,subformat=twoGbMaxExtentSparse"},
	},
	"vpc": {
		"force_size": {"on", "off"}, "subformat": {"dynamic", "fixed", "dynamic,force_size=on", "fixed,force_size=on"},
	},
	"vhdx": {
		"block_size": {"0", "1M", "2M", "32M", "256M"}, "block_state_zero": {"on", "off"}, "log_size": {"1M", "4M"},
		"subformat": {"dynamic", "fixed"},
	},
	"qcow2": {
		"cluster_size": {"512", "1k", "4k", "64k", "2M"}, "compat": {"0.10", "1.1", "v2", "v3"},
		"compression_type": {"zlib", "zstd"},
		"extended_l2":      {"on", "on,cluster_size=16k", "on,cluster_size=2M"}, "lazy_refcounts": {"on", "off"},
		"preallocation": {"off", "metadata", "falloc", "full"}, "refcount_bits": {"1", "2", "8", "16", "32", "64"},
	},
}

// qemuOptionsElsewhere have their own scripts: parents in snapshots.txtar, refused images in qemu_refused.txtar. The
// size is in every test.
var qemuOptionsElsewhere = regexp.MustCompile(`^(size|backing_.*|data_file.*|encrypt.*)$`)

// knownWarnings are correct for valid images: blocks of some containers are off 4 KiB, a forged NTFS has no files, and
// some disks are noise.
var knownWarnings = regexp.MustCompile(
	`warning: .*(its blocks of 4 KiB lie off|the files of the partition cannot|there is no partition table|if ` +
		`Windows starts from another disk)`)

// TestEveryOptionOfQemu writes new images with every option of QEMU's writers, in make test with the first value of
// each, and compares the disks that QEMU and trueup read.
func TestEveryOptionOfQemu(t *testing.T) {
	t.Parallel()
	for format, options := range qemuOptions {
		help := disktest.Run(t, "qemu-img", "create", "-f", format, "-o", "help")
		var names []string // of the listed options
		for _, m := range regexp.MustCompile(`(?m)^  ([a-z_0-9.-]+)=<`).FindAllStringSubmatch(help, -1) {
			if !qemuOptionsElsewhere.MatchString(m[1]) {
				names = append(names, m[1])
			}
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(options)), names,
			"qemu-img knows other options of %s than are tried here", format)
		for _, name := range names {
			for i, value := range options[name] {
				if i > 0 && !disktest.Exhaustive {
					break
				}
				t.Run(format+" "+name+"="+value, func(t *testing.T) {
					t.Parallel()
					dir, option := t.TempDir(), name+"="+value
					image := filepath.Join(dir, "disk."+format)
					disktest.Run(t, "qemu-img", "create", "-q", "-f", format, "-o", option, image, "9M")
					code := 0 // noise is neither a table nor a volume
					if strings.Contains(option, "streamOptimized") {
						code = 3
						// qemu-io cannot write to one, because each grain is written once.
						disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", format, "-o", option, pairDisk(t),
							image)
					} else {
						disktest.Run(t, "qemu-io", "-f", format, "-c", "write -P 1 0 1M", "-c", "write -P 2 3000k 300k",
							"-c", "write -P 3 700k 10k", "-c", "write -z 256k 192k", "-c", "write -P 4 8M 1M", "-c",
							"discard 8200k 128k", image)
					}
					raw, ours := filepath.Join(dir, "qemu.raw"), filepath.Join(dir, "ours.raw")
					disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", image, raw)
					r := trueup(t, "convert", "--to", "raw", image, ours)
					require.Equal(t, 0, r.code, r.stderr)
					disktest.Run(t, "cmp", raw, ours)

					r = trueup(t, "inspect", "--allow-unknown", image)
					require.Equal(t, code, r.code, r.stderr)
					require.NotRegexp(t, `(?m)^(error|warning):`, knownWarnings.ReplaceAllString(r.stdout, ""))
				})
			}
		}
	}
}

// diskFormat is a format that align reads and writes.
type diskFormat struct {
	name      string // in names of test cases
	container string // names in trueup and qemu-img
	subformat string
	ext       string
}

var (
	formatRaw    = diskFormat{name: "raw", container: "raw", ext: ".raw"}
	formatSparse = diskFormat{name: "sparse vmdk", container: "vmdk", subformat: "monolithicSparse", ext: ".vmdk"}
	formatFlat   = diskFormat{name: "flat vmdk", container: "vmdk", subformat: "monolithicFlat", ext: ".vmdk"}
	formatVMFS   = diskFormat{name: "vmfs vmdk", container: "vmdk", subformat: "vmfs", ext: ".vmdk"}
)

var diskFormats = []diskFormat{formatRaw, formatSparse, formatFlat, formatVMFS}

// convert writes the raw disk as name in dir, in format f, and returns its path.
func (f diskFormat) convert(t testing.TB, raw, dir, name, adapter string) string {
	t.Helper()
	path := filepath.Join(dir, name+f.ext)
	if f.container == "raw" {
		disktest.Run(t, "cp", "--sparse=always", raw, path)
		return path
	}
	subformat := f.subformat
	if f.subformat == "vmfs" {
		subformat = "monolithicFlat" // the same files except for two words of the descriptor
	}
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk",
		"-o", "subformat="+subformat+",adapter_type="+adapter, raw, path)
	if f.subformat == "vmfs" { // another createType, and an extent line without the offset column, like ESXi
		flat := name + "-flat.vmdk"
		replaceInFile(t, path, `createType="monolithicFlat"`, `createType="vmfs"`)
		replaceInFile(t, path, fmt.Sprintf("FLAT %q 0\n", flat), fmt.Sprintf("VMFS %q\n", flat))
	}
	return path
}

// files lists the files of the image at path.
func (f diskFormat) files(path string) []string {
	if f == formatFlat || f == formatVMFS {
		return []string{path, strings.TrimSuffix(path, ".vmdk") + "-flat.vmdk"}
	}
	return []string{path}
}

// rawOf reads the image with qemu-img and returns the disk as a sparse raw file.
func (f diskFormat) rawOf(t testing.TB, path string) string {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "disk.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", f.container, "-O", "raw", path, raw)
	return raw
}

// hashFiles returns the SHA-256 of each file of the image.
func (f diskFormat) hashFiles(t testing.TB, path string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, file := range f.files(path) {
		sums[filepath.Base(file)] = sha256Of(t, file)
	}
	return sums
}

// extract copies bytes [off, off+size) of a raw disk into a file, for tools that need a bare volume.
func extract(t testing.TB, raw string, off, size int64) string {
	t.Helper()
	part := filepath.Join(t.TempDir(), "volume")
	disktest.Run(t, "dd", "if="+raw, "of="+part, "bs=1M", "iflag=skip_bytes,count_bytes", "conv=sparse",
		fmt.Sprintf("skip=%d", off), fmt.Sprintf("count=%d", size), "status=none")
	require.NoError(t, os.Truncate(part, size)) // dd leaves a hole at the end out
	return part
}
