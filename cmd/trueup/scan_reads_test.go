package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
)

// What a verdict needs of an image, counted by other means than trueup's own: by the places that the specifications
// name, and, for where the disk's bytes lie in the file, by qemu-img map. The unit is the page of 4 KiB, which is what
// a file system reads at least, and each counts once; of what is compressed it is the whole grain or cluster. These are
//
//   - of each file its first page (magic, header, descriptor), the page at 32 KiB (the mark of a CD), and the end
//
// (footers), 1 KiB;
//   - what the format's header leads to: the text of a VMDK, the header of a dynamic VHD, the two headers of a VHDX,
//
// its two region tables
//
//	  (64 KiB each: their sum is over all of that), its metadata table and items;
//	- of tables (L1 and L2, grain directory and grain tables, BAT) the page of each entry that one of the following
//
// needs;
//   - of the disk sector 0, both copies of a GPT (header and array, whose sum is over all of it), and of each partition
//
// the boot sector or
//
//	superblock, the copy of the boot sector, and what holds the label: record 3 of the MFT, the start of a FAT's root
//
// directory.
//
// A scan reads these when it identifies the file and when it judges it, so twice their size is the bound; and 64 KiB,
// with what cannot be read in parts: what is compressed, the arrays of a GPT, and of a VHDX the first MiB and the
// metadata.
const (
	pageBytes   = 4 << 10
	fewDozen    = 64 << 10
	vhdxFront   = 2*64<<10 + 4*pageBytes // both region tables, both headers, table and items of the metadata
	arraysOfGPT = 2 * 16 << 10
	vhdxRegion  = 64 << 10
	// Of a disk with an MBR a page more can speak for sectors of another size.
	sectorEvidence = pageBytes
)

// occupied are the pages of files that a verdict needs.
type occupied struct {
	t      *testing.T
	pages  map[string]map[int64]bool
	packed map[string]int64 // compressed units by their place
}

// add counts n bytes from off of a file.
func (o *occupied) add(path string, off, n int64) {
	if o.pages[path] == nil {
		o.pages[path] = map[int64]bool{}
	}
	for p := off / pageBytes; n > 0 && p <= (off+n-1)/pageBytes; p++ {
		o.pages[path][p] = true
	}
}

func (o *occupied) size() (pages, packed int64) {
	for _, set := range o.pages {
		pages += int64(len(set)) * pageBytes
	}
	for _, n := range o.packed {
		packed += n
	}
	return pages, packed
}

// number is an integer of a file, big- or little-endian as its format is.
func (o *occupied) number(path string, order binary.ByteOrder, off, size int64) int64 {
	b := readAt(o.t, path, off, size)
	if size == 4 {
		return int64(order.Uint32(b))
	}
	return int64(order.Uint64(b))
}

// ends are what tells the format of a file.
func (o *occupied) ends(path string) {
	st := disktest.Stat(o.t, path)
	o.add(path, 0, min(pageBytes, st.Size()))
	if st.Size() > 32<<10 {
		o.add(path, 32<<10, 16)
	}
	o.add(path, max(0, st.Size()-1024), min(1024, st.Size()))
}

// structure is a part of the disk that a verdict needs.
type structure struct{ off, size int64 }

// needs lists what the disk in a raw file has, by its tables and boot sectors.
func needs(t *testing.T, raw string, d scannedDisk) []structure {
	t.Helper()
	st := disktest.Stat(t, raw)
	list := []structure{{0, sectorSize}}
	if d.gpt {
		list = append(list, structure{sectorSize, 33 * sectorSize}, structure{
			st.Size() - 33*sectorSize,
			33 * sectorSize,
		})
	}
	u := func(off, size int64) int64 {
		b := append(readAt(t, raw, off, size), make([]byte, 8-size)...)
		return int64(binary.LittleEndian.Uint64(b))
	}
	for _, p := range d.parts {
		at := p.start * sectorSize
		switch p.kind {
		case "ntfs":
			cluster := u(at+0x0b, 2) * u(at+0x0d, 1)
			list = append(list, structure{at, sectorSize}, structure{at + u(at+0x28, 8)*sectorSize, sectorSize},
				structure{at + u(at+0x30, 8)*cluster + 3*1024, 1024})
		case "fat32":
			root := u(at+0x0e, 2) + u(at+0x10, 1)*u(at+0x24, 4)
			list = append(list, structure{at, sectorSize}, structure{at + u(at+0x32, 2)*sectorSize, sectorSize},
				structure{at + root*sectorSize, sectorSize})
		default:
			list = append(list, structure{at + 1024, 1024})
		}
	}
	return list
}

// qcow2 counts the tables of a qcow2 and its compressed clusters. Spec: QEMU, docs/interop/qcow2.
func (o *occupied) qcow2(path string, list []structure) {
	be := binary.BigEndian
	cluster := int64(1) << o.number(path, be, 20, 4)
	l1 := o.number(path, be, 40, 8)
	for _, s := range list {
		for at := s.off / cluster; at <= (s.off+s.size-1)/cluster; at++ {
			entry := l1 + at/(cluster/8)*8
			o.add(path, entry, 8)
			table := o.number(path, be, entry, 8) & 0x00fffffffffffe00
			if table == 0 {
				continue
			}
			o.add(path, table+at%(cluster/8)*8, 8)
			if e := o.number(path, be, table+at%(cluster/8)*8, 8); e>>62&1 == 1 {
				bits := 62 - (o.number(path, be, 20, 4) - 8)
				place, sectors := e&(1<<bits-1), e&(1<<62-1)>>bits
				o.packed[fmt.Sprint(place)] = (sectors+1)*sectorSize - place%sectorSize
			}
		}
	}
}

// sparse counts the text and the tables of a sparse VMDK and its compressed grains. Spec: VMware, Virtual Disk Format
// 5.0.
func (o *occupied) sparse(path string, list []structure) {
	le := binary.LittleEndian
	word := func(off int64) int64 { return o.number(path, le, off, 8) }
	o.add(path, word(28)*sectorSize, word(36)*sectorSize)
	grain, gd, compressed := word(20)*sectorSize, word(56)*sectorSize, o.number(path, le, 8, 4)&0x10000 != 0
	for _, s := range list {
		for at := s.off / grain; at <= (s.off+s.size-1)/grain; at++ {
			o.add(path, gd+at/512*4, 4)
			table := o.number(path, le, gd+at/512*4, 4) * sectorSize
			if table == 0 {
				continue
			}
			o.add(path, table+at%512*4, 4)
			if e := o.number(path, le, table+at%512*4, 4); compressed && e > 1 {
				o.packed[fmt.Sprint(e)] = 12 + o.number(path, le, e*sectorSize+8, 4)
			}
		}
	}
}

// vhd counts the header of a dynamic VHD, its BAT, and the bitmap in front of each block. Spec: VHD 1.0.
func (o *occupied) vhd(path string, list []structure) {
	be := binary.BigEndian
	header := o.number(path, be, 16, 8)
	o.add(path, header, 1024)
	bat, block := o.number(path, be, header+16, 8), o.number(path, be, header+32, 4)
	for _, s := range list {
		entry := bat + s.off/block*4
		o.add(path, entry, 4)
		if e := o.number(path, be, entry, 4); e != 0xffffffff {
			o.add(path, e*sectorSize, sectorSize)
		}
	}
}

// vhdx counts headers, region tables, metadata and BAT. Spec: [MS-VHDX] 2.2, 2.6.
func (o *occupied) vhdx(path string, list []structure) {
	le := binary.LittleEndian
	o.add(path, 64<<10, pageBytes)
	o.add(path, 128<<10, pageBytes)
	o.add(path, 192<<10, vhdxRegion)
	o.add(path, 256<<10, vhdxRegion)
	var bat int64
	for i := range o.number(path, le, 192<<10+8, 4) {
		e := 192<<10 + 16 + 32*i
		at := o.number(path, le, e+16, 8)
		if bytes.HasPrefix(readAt(o.t, path, e, 4), []byte{0x66, 0x77, 0xc2, 0x2d}) {
			bat = at
			continue
		}
		o.add(path, at, pageBytes)
		o.add(path, at+vhdxRegion, 64) // the items follow the table
	}
	const blockBits = 20 // and more: the smallest block has the most entries
	for _, s := range list {
		o.add(path, bat+s.off>>blockBits*8, 8)
	}
}

// data counts where the structures of the disk lie in the files, as qemu-img maps them. What it gives no place for is
// a hole, or compressed, or in a VHDX, and does not count: that makes the bound stricter.
func (o *occupied) data(path string, list []structure) {
	var runs []struct {
		Start, Length int64
		Offset        *int64
		Filename      string
		Data          bool
	}
	require.NoError(o.t, json.Unmarshal([]byte(disktest.Output(o.t, "qemu-img", "map", "--output=json", path)), &runs))
	for _, s := range list {
		for _, r := range runs {
			from, to := max(s.off, r.Start), min(s.off+s.size, r.Start+r.Length)
			if from < to && r.Offset != nil {
				name := r.Filename
				if name == "" {
					name = path
				}
				o.add(name, *r.Offset+from-r.Start, to-from)
			}
		}
	}
}

type scannedPart struct {
	kind  string
	start int64
	size  int64
	typ   string
}

// scannedDisk is an aligned disk that real tools make.
type scannedDisk struct {
	name    string
	sectors int64
	gpt     bool
	parts   []scannedPart
}

var scannedDisks = []scannedDisk{
	{name: "mbr, ntfs", sectors: 256 << 11, parts: []scannedPart{{"ntfs", 2048, 520192, "7"}}},
	{name: "mbr, ntfs at 64 KiB", sectors: 96 << 11, parts: []scannedPart{{"ntfs", 128, 190000, "7"}}},
	{name: "mbr, two volumes", sectors: 300 << 11, parts: []scannedPart{
		{"fat32", 2048, 204800, "c"},
		{"ext4", 206848, 400000, "83"},
	}},
	{name: "gpt, esp and ext4", sectors: 512 << 11, gpt: true, parts: []scannedPart{
		{"fat32", 2048, 131072, "U"},
		{"ext4", 133120, 900000, "L"},
	}},
}

func (d scannedDisk) make(t *testing.T, raw string) {
	t.Helper()
	disktest.MakeBlank(t, raw, d.sectors*sectorSize)
	table := "label: dos\n"
	if d.gpt {
		table = "label: gpt\n"
	}
	for i, p := range d.parts {
		table += fmt.Sprintf("start=%d, size=%d, type=%s\n", p.start, p.size, p.typ)
		part := filepath.Join(t.TempDir(), fmt.Sprint(i))
		madeVolume{kind: p.kind, label: "LABEL", start: p.start, sectors: p.size}.make(t, part)
		disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=4096", "conv=sparse,notrunc", "oflag=seek_bytes",
			fmt.Sprintf("seek=%d", p.start*sectorSize), "status=none")
	}
	disktest.RunInput(t, table, "sfdisk", "--quiet", "--no-tell-kernel", raw)
}

// scannedFormats are what qemu-img makes of a disk, and what of it a verdict needs beside the data.
var scannedFormats = []struct {
	name   string
	args   []string
	tables func(o *occupied, path string, list []structure)
}{
	{"disk.qcow2", []string{"-O", "qcow2"}, (*occupied).qcow2},
	{"packed.qcow2", []string{"-c", "-O", "qcow2"}, (*occupied).qcow2},
	{"sparse.vmdk", []string{"-O", "vmdk", "-o", "subformat=monolithicSparse"}, (*occupied).sparse},
	{"stream.vmdk", []string{"-O", "vmdk", "-o", "subformat=streamOptimized"}, (*occupied).sparse},
	{
		"flat.vmdk",
		[]string{"-O", "vmdk", "-o", "subformat=monolithicFlat"},
		func(o *occupied, path string, _ []structure) {
			o.ends(strings.TrimSuffix(path, ".vmdk") + "-flat.vmdk")
		},
	},
	{"dynamic.vhd", []string{"-O", "vpc", "-o", "subformat=dynamic,force_size=on"}, (*occupied).vhd},
	{"fixed.vhd", []string{"-O", "vpc", "-o", "subformat=fixed,force_size=on"}, nil},
	{"dynamic.vhdx", []string{"-O", "vhdx", "-o", "subformat=dynamic"}, (*occupied).vhdx},
	{"disk.raw", []string{"-O", "raw"}, nil},
}

// A scan reads of an aligned image what the verdict needs, and nothing that grows with the image.
func TestScanReadsLittle(t *testing.T) {
	t.Parallel()
	for _, d := range scannedDisks {
		t.Run(d.name, func(t *testing.T) {
			raw := filepath.Join(t.TempDir(), "source.raw")
			d.make(t, raw)
			list := needs(t, raw, d)
			for _, f := range scannedFormats {
				path := filepath.Join(t.TempDir(), f.name)
				disktest.Run(t, "qemu-img", append(append([]string{"convert"}, f.args...), raw, path)...)
				o := &occupied{t, map[string]map[int64]bool{}, map[string]int64{}}
				o.ends(path)
				if f.tables != nil {
					f.tables(o, path, list)
				}
				o.data(path, list)
				pages, packed := o.size()
				few := fewDozen + sectorEvidence + 2*packed
				if d.gpt {
					few += arraysOfGPT
				}
				if strings.HasSuffix(path, ".vhdx") {
					few += vhdxFront
				}
				s := scan(t, filepath.Dir(path))
				require.Equal(t, 0, s.code, s.stderr)
				require.Contains(t, s.rows, path)
				require.Equal(t, align.Aligned, s.rows[path].Verdict, s.stdout)
				read := s.rows[path].Read
				t.Logf("%-13s %6d bytes read, %6d in pages and %6d compressed are needed", f.name, read, pages, packed)
				require.LessOrEqual(t, read, 2*(pages+packed), f.name)
				require.LessOrEqual(t, read, few, f.name)
			}
		})
	}
}
