package cli

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/units"
)

// differDisk is a random disk made by partitioning tools, mkfs and qemu-img. Positions are in sectors.
type differDisk struct {
	rng     *rand.Rand
	seed    uint64
	sectors int64
	label   string // for sfdisk: dos or gpt; empty without a table
	parts   []differPart
	format  differFormat
}

// differPart is a partition of a random disk.
type differPart struct {
	number         int
	start, sectors int64
	typ            string
	logical        bool
	name, guid     string
	mkfs           []string // command that makes its file system; nil: noise
	data           int64    // the first cluster of a FAT, from start; 0: none
}

// extendedTypes are the types of extended partitions.
var extendedTypes = []string{"5", "f", "85"}

func (p differPart) extended() bool { return slices.Contains(extendedTypes, strings.ToLower(p.typ)) }

// biosBoot is the GPT type of a BIOS boot partition, which has no verdict unless it contains a volume.
const biosBoot = "21686148-6449-6E6F-744E-656564454649"

// verdict returns the exit code of inspect for the partition: of its start, or of the first cluster if that is better.
func (p differPart) verdict() int {
	if p.extended() || p.typ == biosBoot && p.mkfs == nil {
		return 0
	}
	code := func(lba int64) int {
		switch {
		case lba%128 == 0:
			return 0
		case lba%8 == 0:
			return 2
		}
		return 3
	}
	return min(code(p.start), code(p.start+p.data))
}

// differFormat is an image format for qemu-img, with its options.
type differFormat struct {
	name, suffix string
	options      []string // one of which is drawn
	flags        []string
}

// qemuName returns qemu-img's name for the format.
func qemuName(format string) string {
	if format == "vhd" {
		return "vpc"
	}
	return format
}

var differFormats = []differFormat{
	{name: "raw", suffix: ".img"},
	{name: "raw", suffix: ".img"},
	{name: "vmdk", suffix: ".vmdk", options: []string{
		"subformat=monolithicSparse", "subformat=monolithicFlat", "subformat=twoGbMaxExtentSparse",
		"subformat=twoGbMaxExtentFlat",
		"subformat=monolithicSparse,adapter_type=lsilogic", "subformat=monolithicSparse,zeroed_grain=on",
	}},
	{name: "vmdk", suffix: ".vmdk", options: []string{"subformat=streamOptimized"}},
	{name: "vhd", suffix: ".vhd", options: []string{
		"subformat=dynamic", "subformat=dynamic,force_size=on", "subformat=fixed", "subformat=fixed,force_size=on",
	}},
	{name: "vhdx", suffix: ".vhdx", options: []string{
		"subformat=dynamic", "subformat=dynamic,block_size=1M", "subformat=fixed,block_size=2M",
		"subformat=dynamic,block_size=1M,block_state_zero=off",
	}},
	{name: "qcow2", suffix: ".qcow2", options: []string{
		"cluster_size=64k", "cluster_size=512", "cluster_size=4k,compat=0.10", "cluster_size=2M", "refcount_bits=1",
		"refcount_bits=64,cluster_size=1k",
		"extended_l2=on,cluster_size=16k", "lazy_refcounts=on", "preallocation=metadata",
	}},
	{name: "qcow2", suffix: ".qcow2", flags: []string{"-c"}, options: []string{
		"compression_type=zlib", "compression_type=zstd,cluster_size=8k",
	}},
}

// differRand is a source of numbers that depends only on its name.
func differRand(name ...any) *rand.Rand {
	return rand.New(rand.NewChaCha8(sha256.Sum256(fmt.Append(nil, name...))))
}

func drawDifferDisk(seed uint64) *differDisk {
	d := &differDisk{rng: differRand("differ ", seed), seed: seed}
	d.label = []string{"dos", "dos", "dos", "gpt", "gpt", "gpt", "gpt", "dos", "dos", ""}[d.rng.IntN(10)]
	d.format = differFormats[d.rng.IntN(len(differFormats))]
	at := int64(1 + d.rng.IntN(100))
	switch d.label {
	case "dos":
		at = d.drawMBR(at)
	case "gpt":
		at = d.drawGPT(at + 34)
	default:
		d.parts = []differPart{{sectors: 2048 + d.rng.Int64N(8192), mkfs: drawMkfs(d.rng)}}
		at = d.parts[0].sectors
	}
	d.sectors = at + d.rng.Int64N(3000)
	if d.label == "gpt" {
		d.sectors += 33
	}
	return d
}

// after returns a start at or after at: directly, on a boundary, or anywhere.
func (d *differDisk) after(at int64) int64 {
	unit := []int64{1, 1, 8, 63, 128, 2048}[d.rng.IntN(6)]
	return units.AlignUp(at+d.rng.Int64N(2)*d.rng.Int64N(1500), unit)
}

var dosTypes = []string{"1", "6", "7", "b", "c", "e", "27", "82", "83", "8e", "da", "fd"}

func (d *differDisk) drawMBR(at int64) int64 {
	slots := d.rng.Perm(4)[:1+d.rng.IntN(4)]
	box := d.rng.IntN(2 * len(slots))
	for i, slot := range slots {
		p := d.draw(slot+1, &at)
		p.typ = dosTypes[d.rng.IntN(len(dosTypes))]
		if i != box {
			d.parts = append(d.parts, p)
			continue
		}
		p.typ = extendedTypes[d.rng.IntN(3)]
		inner := p.start
		var logical []differPart
		for n := range d.rng.IntN(6) {
			inner += 2 + d.rng.Int64N(64)
			l := d.draw(5+n, &inner)
			l.typ, l.logical = dosTypes[d.rng.IntN(len(dosTypes))], true
			logical = append(logical, l)
		}
		p.sectors = max(p.sectors, inner-p.start+d.rng.Int64N(100))
		at = p.start + p.sectors
		d.parts = append(append(d.parts, p), logical...)
	}
	return at
}

var gptTypes = []string{
	"0FC63DAF-8483-4772-8E79-3D69D8477DE4", "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7",
	"C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
	"E6D6D379-F507-44C2-A23C-238F2A3DF928", biosBoot,
	"0657FD6D-A4AB-43C4-84E5-0933C84B4F4F",
}

func (d *differDisk) drawGPT(at int64) int64 {
	for _, slot := range d.rng.Perm(12)[:d.rng.IntN(7)] {
		p := d.draw(slot+1, &at)
		p.typ, p.guid = gptTypes[d.rng.IntN(len(gptTypes))], d.guid()
		p.name = []string{"", "Basic data partition", "Größe", "日本", "a+b=c;d"}[d.rng.IntN(5)]
		d.parts = append(d.parts, p)
	}
	return at
}

func (d *differDisk) guid() string {
	r := d.rng
	return fmt.Sprintf("%08X-%04X-4%03X-8%03X-%012X",
		r.Uint32(), r.IntN(1<<16), r.IntN(1<<12), r.IntN(1<<12), r.Int64N(1<<48))
}

// draw draws a partition at or after at, and advances that to its end.
func (d *differDisk) draw(number int, at *int64) differPart {
	p := differPart{number: number, start: d.after(*at), sectors: 1 + d.rng.Int64N(2000)}
	if d.rng.IntN(4) == 0 {
		p.sectors, p.mkfs = 2048+d.rng.Int64N(6000), drawMkfs(d.rng)
	}
	*at = p.start + p.sectors
	return p
}

// drawMkfs draws a command that makes a file system in the file that is its last argument.
func drawMkfs(rng *rand.Rand) []string {
	const uuid = "6f3a1d4e-1f2b-4c5d-8e9f-0a1b2c3d4e5f" // the same in each run
	return [][]string{
		{"mkfs.fat", "-i", "12345678"},
		{"mke2fs", "-q", "-F", "-t", "ext4", "-U", uuid, "-E", "hash_seed=" + uuid},
		{"mkswap", "-q", "-U", uuid},
		{"mkntfs", "-q", "-F", "-Q", "-p", "63", "-H", "255", "-S", "63", "-s", "512"},
	}[rng.IntN(4)]
}

// make builds the disk as a raw file in dir.
func (d *differDisk) make(t *testing.T, dir string) string {
	t.Helper()
	raw := filepath.Join(dir, "disk.raw")
	f, err := os.Create(raw)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(d.sectors*units.SectorSize))
	d.partition(t, raw)
	for i := range d.parts {
		p := &d.parts[i]
		if p.extended() {
			continue
		}
		_, err := f.WriteAt(d.content(t, p, dir), p.start*units.SectorSize)
		require.NoError(t, err)
	}
	return raw
}

// dataArea matches the sector of the first cluster in the output of fsck.fat.
var dataArea = regexp.MustCompile(`Data area starts at byte \d+ \(sector (\d+)\)`)

// content returns the first bytes of a partition.
func (d *differDisk) content(t *testing.T, p *differPart, dir string) []byte {
	t.Helper()
	if p.mkfs == nil {
		b := make([]byte, units.SectorSize*min(p.sectors, 1+d.rng.Int64N(200)))
		for i := range b {
			b[i] = byte(d.rng.Uint32())
		}
		return b
	}
	part := filepath.Join(dir, "part")
	defer os.Remove(part)
	disktest.MakeBlank(t, part, p.sectors*units.SectorSize)
	disktest.Run(t, p.mkfs[0], append(p.mkfs[1:len(p.mkfs):len(p.mkfs)], part)...)
	if p.mkfs[0] == "mkfs.fat" {
		m := dataArea.FindStringSubmatch(disktest.Output(t, "fsck.fat", "-nv", part))
		require.NotNil(t, m)
		var err error
		p.data, err = strconv.ParseInt(m[1], 10, 64)
		require.NoError(t, err)
	}
	return disktest.ReadFile(t, part)
}

// partition writes the table with sfdisk, or some GPTs with sgdisk.
func (d *differDisk) partition(t *testing.T, raw string) {
	t.Helper()
	switch {
	case d.label == "":
	case d.label == "gpt" && d.rng.IntN(2) == 0:
		args := []string{"-a", "1", "-U", d.guid()}
		for _, p := range d.parts {
			args = append(args, "-n", fmt.Sprintf("%d:%d:%d", p.number, p.start, p.start+p.sectors-1),
				"-t", fmt.Sprintf("%d:%s", p.number, p.typ), "-u", fmt.Sprintf("%d:%s", p.number, p.guid),
				"-c", fmt.Sprintf("%d:%s", p.number, p.name))
		}
		disktest.Run(t, "sgdisk", append(args, raw)...)
	default:
		d.sfdisk(t, raw)
	}
}

// sfdisk writes the table with the program of this name. It skips the test if the program finds no room for a
// partition, which can happen although there is room.
func (d *differDisk) sfdisk(t *testing.T, raw string) {
	t.Helper()
	cmd := exec.Command(disktest.Tool(t, "sfdisk"), "--no-reread", "--no-tell-kernel", raw)
	cmd.Stdin = strings.NewReader(d.script(raw))
	out, err := cmd.CombinedOutput()
	if err != nil && strings.Contains(string(out), "Failed to add") {
		t.Skipf("sfdisk does not make this table: %s", out)
	}
	require.NoError(t, err, "%s", out)
}

// script is the input of sfdisk.
func (d *differDisk) script(raw string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "label: %s\ngrain: 512\nunit: sectors\n", d.label)
	if d.label == "gpt" {
		fmt.Fprintf(&b, "label-id: %s\nfirst-lba: 34\n", d.guid())
	} else {
		fmt.Fprintf(&b, "label-id: %#x\nfirst-lba: 1\n", d.rng.Uint32())
	}
	active := d.rng.IntN(8)
	for i, p := range d.parts {
		fmt.Fprintf(&b, "%s%d : start=%d, size=%d, type=%s", raw, p.number, p.start, p.sectors, p.typ)
		switch {
		case p.guid != "":
			fmt.Fprintf(&b, ", uuid=%s, name=%q", p.guid, p.name)
		case i == active && !p.logical && !p.extended():
			b.WriteString(", bootable")
		}
		b.WriteString("\n")
	}
	return b.String()
}

// image converts the disk to its format with qemu-img, in dir.
func (d *differDisk) image(t *testing.T, raw, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "disk"+d.format.suffix)
	args := append([]string{"convert", "-f", "raw", "-O", qemuName(d.format.name)}, d.format.flags...)
	if n := len(d.format.options); n > 0 {
		args = append(args, "-o", d.format.options[d.rng.IntN(n)])
	}
	disktest.Run(t, "qemu-img", append(args, raw, path)...)
	return path
}
