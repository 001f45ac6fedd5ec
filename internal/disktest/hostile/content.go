//go:build linux || windows

package hostile

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// rawWith is a partitioned raw disk with texts written by a guest.
func rawWith(texts map[int64]string) Writer {
	disk := Disk()
	for off, s := range texts {
		disk.Text(off, s)
	}
	return writeForged("disk.raw", disk)
}

// lastSector is the position of the footer of a VHD and of a DMG.
const lastSector = (Sectors - 1) * 512

// headersInRaw are disks whose guest wrote the header of an image format into sector 0. None may be read as raw.
func headersInRaw() []Row {
	var out []Row
	for _, c := range []struct{ name, magic string }{{"QED", "QED\x00"}, {"Parallels HDD", "WithoutFreeSpace"}} {
		out = append(out, unread("T40 "+c.name+" header in sector 0", "unsupported",
			rawWith(map[int64]string{0: c.magic}), c.name+": recognised, not supported; convert it with qemu-img"))
	}
	sesparse := "\xbe\xba\xfe\xca\x00\x00\x00\x00"
	text := "# Disk DescriptorFile\n" + flatOf("/etc/shadow")
	return append(out,
		unread("T40 VHDX header in sector 0", "format", rawWith(map[int64]string{0: "vhdxfile"}),
			"vhdx header at 0x10000"),
		unread("T40 VDI header in sector 0", "unsupported", rawWith(map[int64]string{64: "\x7f\x10\xda\xbe"}),
			"vdi header: not supported: version 0.0, want 1.1"),
		unread("T40 qcow2 header in sector 0", "format", rawWith(map[int64]string{0: "QFI\xfb\x00\x00\x00\x03"}),
			"qcow2 header at 0x14", "cluster_bits 0"),
		unread("T40 sparse VMDK header in sector 0", "format",
			rawWith(map[int64]string{0: "KDMV\x01\x00\x00\x00"}), "vmdk"),
		unread("T40 COWD header in sector 0", "unsupported", rawWith(map[int64]string{0: "COWD\x01\x00\x00\x00"}),
			"VMDK", "COWD", "not supported"),
		unread("T40 seSparse header in sector 0", "unsupported", rawWith(map[int64]string{0: sesparse}), "VMDK",
			"seSparse", "not supported"),
		// The text of a disk of more than 1 MiB is too big for a descriptor; that of a smaller one has zero bytes.
		unread("T40 descriptor in sector 0", "limit", rawWith(map[int64]string{0: text}), "vmdk descriptor",
			"2097152 bytes"),
		unread("T40 descriptor in sector 0 of a small disk", "format",
			writeText("disk.raw", text+string(make([]byte, 64<<10-len(text)-1))+"x"), "vmdk descriptor", "zero byte"),
		unread("T40 VHD footer in sector 0", "format", rawWith(map[int64]string{0: "conectix"}),
			"vhd footer at 0x40", "checksum 0x0"),
		unread("T40 VHD footer behind an MBR", "format", rawWith(map[int64]string{lastSector: "conectix"}),
			"vhd footer at 0x1ffe40", "checksum 0x0"),
		unread("T40 DMG footer behind an MBR", "unsupported", rawWith(map[int64]string{lastSector: "koly"}), "DMG",
			"not supported"),
	)
}

// polyglots match two formats: both are listed, and neither is chosen.
func polyglots() []Row {
	const iso = 0x8001
	both := func(name string, texts map[int64]string, first, second string) Row {
		return unread("T40 "+name, "format", rawWith(texts), "image at 0x0: format", first, " and ", second,
			"want the content of one format")
	}
	out := []Row{
		both("ISO and qcow2", map[int64]string{0: "QFI\xfb", iso: "CD001"}, "qcow2", "ISO 9660"),
		both("ISO and VHD", map[int64]string{lastSector: "conectix", iso: "CD001"}, "vhd", "ISO 9660"),
		both("qcow2 and VHD", map[int64]string{0: "QFI\xfb", lastSector: "conectix"}, "vhd", "qcow2"),
		both("VMDK and ISO", map[int64]string{0: "KDMV", iso: "CD001"}, "vmdk", "ISO 9660"),
		both("COWD and ISO", map[int64]string{0: "COWD", iso: "CD001"}, "vmdk", "ISO 9660"),
		both("VHDX and ISO", map[int64]string{0: "vhdxfile", iso: "CD001"}, "vhdx", "ISO 9660"),
	}
	// Whole images followed by the footer of a fixed VHD of their size.
	for _, kind := range slices.Sorted(maps.Keys(wholeImages)) {
		out = append(out, unread("T40 valid "+kind+" and VHD", "format", withFooter(wholeImages[kind]),
			"image at 0x0: format", "vhd", strings.ToLower(strings.Fields(kind)[0]), " and ",
			"want the content of one format"))
	}
	return out
}

// wholeImages are valid, one for each layout of a file. All contain Disk.
var wholeImages = map[string]func() forge.Bytes{
	"qcow2": func() forge.Bytes { return qcow2forge.New(Disk(), qcow2Bits).Bytes },
	"VHDX": func() forge.Bytes {
		return vhdxforge.New(vhdxforge.Layout{Size: Sectors * 512}).Fill(Disk()).Seal().Bytes
	},
	"VMDK":                 func() forge.Bytes { return vmdkforge.NewSparse(Disk()).Bytes },
	"VMDK streamOptimized": func() forge.Bytes { return vmdkforge.NewStream(Disk(), vmdkforge.StreamLayout{}).Bytes },
}

// withFooter makes a fixed VHD of an image.
func withFooter(forged func() forge.Bytes) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		return writeForged("disk.img", vhdforge.NewFixed(forged()).Bytes)(t, dir)
	}
}

// wrongFormatFlag are images of another format than --format.
func wrongFormatFlag() []Row {
	flag := func(name, format string, image Writer, found string) Row {
		r := unread("T40 --format "+name, "format", image, fmt.Sprintf("format %q", found),
			"want "+format+" (given by --format)")
		r.Format = format
		return r
	}
	qcow2 := writeForged("disk.qcow2", wholeImages["qcow2"]())
	vhd := writeForged("disk.vhd", vhdforge.New(Disk(), vhdforge.Layout{}).Bytes)
	return []Row{
		flag("vmdk on raw", "vmdk", rawWith(nil), "no known header"),
		flag("vmdk on qcow2", "vmdk", qcow2, "qcow2"),
		flag("qcow2 on VHD", "qcow2", vhd, "vhd"),
		flag("vhd on VHDX", "vhd", writeForged("disk.vhdx", wholeImages["VHDX"]()), "vhdx"),
		flag("vhdx on VHD", "vhdx", vhd, "vhd"),
		flag("vhd on sparse VMDK", "vhd", writeForged("disk.vmdk", wholeImages["VMDK"]()), "vmdk"),
		flag("vhdx on qcow2", "vhdx", qcow2, "qcow2"),
		flag("vhdx on raw", "vhdx", rawWith(nil), "no known header"),
		flag("vhd on raw", "vhd", rawWith(nil), "no known header"),
		flag("qcow2 on raw", "qcow2", rawWith(nil), "no known header"),
		flag("qcow2 on LUKS", "qcow2", rawWith(map[int64]string{0: luks}), "no known header"),
	}
}

// Files returns files whose kind is doubtful, or that are too short for it.
func Files() []Row {
	return slices.Concat(headersInRaw(), polyglots(), wrongFormatFlag(), luksAndOthers(), sizes(), cuts())
}

// luks is the start of its header: magic and version.
const luks = "LUKS\xba\xbe\x00\x01"

// luksAndOthers are images beside LUKS, which is content of disks and not an image format.
func luksAndOthers() []Row {
	return []Row{
		unread("T40 LUKS and a broken VHD footer", "format",
			rawWith(map[int64]string{0: luks, lastSector: "conectix"}), "vhd footer at 0x1ffe40", "checksum 0x0"),
		unread("T40 LUKS and ISO", "unsupported", rawWith(map[int64]string{0: luks, 0x8001: "CD001"}), "ISO 9660"),
	}
}

// LUKSInImages returns images that are full of LUKS, with nothing to move.
func LUKSInImages() []Row {
	disk := Disk()
	disk.Text(0, luks+strings.Repeat("\x00", 504))
	return []Row{
		odd("T40 LUKS in sector 0", "", rawWith(map[int64]string{0: luks, 510: "\x00\x00"})),
		odd("T40 LUKS in a fixed VHD", "", writeForged("disk.img", vhdforge.NewFixed(disk).Bytes)),
		odd("T40 LUKS in a qcow2", "", writeForged("disk.img", qcow2forge.New(disk, qcow2Bits).Bytes)),
		odd("T40 LUKS in a sparse VMDK", "", writeForged("disk.img", vmdkforge.NewSparse(disk).Bytes)),
	}
}

// sizes are files of no or few bytes.
func sizes() []Row {
	rows := []Row{unread("T41 empty file", "format", writeForged("disk.raw", nil), "no disk image: the file is empty")}
	for _, n := range []int{1, 511, 513} {
		rows = append(rows, unread(fmt.Sprintf("T41 file of %d bytes", n), "format",
			writeForged("disk.raw", make(forge.Bytes, n)), fmt.Sprintf("its size (%d) is not a multiple of 512", n)))
	}
	for _, format := range []string{"qcow2", "vhd", "vhdx", "vmdk", "raw"} {
		for _, n := range []int{0, 1, 511, 512, 513} {
			if format == "raw" && n == 512 {
				continue // a disk of one sector
			}
			r := unread(fmt.Sprintf("T41 %d bytes as %s", n, format), "format",
				writeForged("disk.img", make(forge.Bytes, n)))
			r.Format = format
			rows = append(rows, r)
		}
	}
	return rows
}

// cuts are a valid sparse VMDK truncated at, before and after the border of every structure.
func cuts() []Row {
	v := vmdkforge.NewSparse(Disk())
	lastGrain := int64(len(v.Bytes)) - vmdkforge.Grain
	var out []Row
	for _, border := range []struct {
		name string
		at   int64
	}{
		{"magic", 5},
		{"header", v.Descriptor},
		{"descriptor", v.RGD},
		{"redundant directory", v.RGT},
		{"redundant table", v.GD},
		{"directory", v.GT},
		{"table", v.GT + 2048},
		{"metadata", v.Grains},
		{"first grain", v.Grains + vmdkforge.Grain},
		{"last grain but one", lastGrain},
		{"last grain", int64(len(v.Bytes))},
	} {
		for _, n := range []int64{border.at - 1, border.at, border.at + 1} {
			if n >= int64(len(v.Bytes)) {
				continue
			}
			h := unread(fmt.Sprintf("T41 cut at the end of the %s, %d bytes", border.name, n), "format",
				writeForged("disk.vmdk", v.Bytes[:n]), "vmdk ", " at 0x", "")
			h.Says[2] = fmt.Sprintf("file of %d bytes", n)
			if n >= v.GT+2048 { // the tables are whole, and point past the end
				h.Says[2] = fmt.Sprintf("the file (%d bytes)", n)
			}
			if n < v.Descriptor {
				h.Says = []string{"vmdk sparse header at 0x0", fmt.Sprintf("file size %d", n), "want at least 512"}
			}
			// If the first grain is whole, inspect can report the disk and the missing grains.
			if n >= v.Grains+vmdkforge.Grain {
				h.End = Broken
			}
			out = append(out, h)
		}
	}
	return out
}
