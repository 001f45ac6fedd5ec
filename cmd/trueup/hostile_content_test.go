package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// rawWith is a partitioned raw disk over which a guest wrote texts.
func rawWith(texts map[int64]string) func(testing.TB, string) string {
	disk := xpDisk()
	for off, s := range texts {
		disk.Text(off, s)
	}
	return writeForged("disk.raw", disk)
}

// lastSector is where the footer of a VHD and that of a DMG stand.
const lastSector = (xpSectors - 1) * 512

// TestHostileContent judges content that could be of more than one kind, or of another than the user thinks.
func TestHostileContent(t *testing.T) {
	t.Parallel()
	runHostile(t, headersInRaw())
	runHostile(t, polyglots())
	runHostile(t, wrongFormatFlag())
}

// headersInRaw are disks whose guest wrote the header of an image into sector 0. None may be read as raw.
func headersInRaw() []hostile {
	var out []hostile
	for _, c := range []struct{ name, magic string }{{"QED", "QED\x00"}, {"Parallels HDD", "WithoutFreeSpace"}} {
		out = append(out, hostile{
			name: "T40 " + c.name + " header in sector 0", image: rawWith(map[int64]string{0: c.magic}),
			code: "unsupported", says: []string{c.name + ": recognised, not supported; convert it with qemu-img"},
		})
	}
	sesparse := "\xbe\xba\xfe\xca\x00\x00\x00\x00"
	text := "# Disk DescriptorFile\n" + flatOf("/etc/shadow")
	return append(out,
		hostile{
			name: "T40 VHDX header in sector 0", image: rawWith(map[int64]string{0: "vhdxfile"}), code: "format",
			says: []string{"vhdx header at 0x10000"},
		},
		hostile{
			name: "T40 VDI header in sector 0", image: rawWith(map[int64]string{64: "\x7f\x10\xda\xbe"}),
			code: "unsupported", says: []string{"vdi header: not supported: version 0.0, want 1.1"},
		},
		hostile{
			name: "T40 qcow2 header in sector 0", image: rawWith(map[int64]string{0: "QFI\xfb\x00\x00\x00\x03"}),
			code: "format", says: []string{"qcow2 header at 0x14", "cluster_bits 0"},
		},
		hostile{
			name: "T40 sparse VMDK header in sector 0", image: rawWith(map[int64]string{0: "KDMV\x01\x00\x00\x00"}),
			code: "format", says: []string{"vmdk"},
		},
		hostile{
			name: "T40 COWD header in sector 0", image: rawWith(map[int64]string{0: "COWD\x01\x00\x00\x00"}),
			code: "unsupported", says: []string{"VMDK", "COWD", "not supported"},
		},
		hostile{
			name: "T40 seSparse header in sector 0", image: rawWith(map[int64]string{0: sesparse}),
			code: "unsupported", says: []string{"VMDK", "seSparse", "not supported"},
		},
		// The text of a disk of more than 1 MiB is a descriptor that is too big; of a smaller one it has zero bytes.
		hostile{
			name: "T40 descriptor in sector 0", image: rawWith(map[int64]string{0: text}), code: "limit",
			says: []string{"vmdk descriptor", "2097152 bytes"},
		},
		hostile{
			name:  "T40 descriptor in sector 0 of a small disk",
			image: writeText("disk.raw", text+string(make([]byte, 64<<10-len(text)-1))+"x"), code: "format",
			says: []string{"vmdk descriptor", "zero byte"},
		},
		hostile{
			name: "T40 VHD footer in sector 0", image: rawWith(map[int64]string{0: "conectix"}), code: "format",
			says: []string{"vhd footer at 0x40", "checksum 0x0"},
		},
		hostile{
			name: "T40 VHD footer behind an MBR", image: rawWith(map[int64]string{lastSector: "conectix"}),
			code: "format", says: []string{"vhd footer at 0x1ffe40", "checksum 0x0"},
		},
		hostile{
			name: "T40 DMG footer behind an MBR", image: rawWith(map[int64]string{lastSector: "koly"}),
			code: "unsupported", says: []string{"DMG", "not supported"},
		},
	)
}

// polyglots match two formats: both are listed, and neither is chosen.
func polyglots() []hostile {
	const iso = 0x8001
	both := func(name string, texts map[int64]string, first, second string) hostile {
		return hostile{
			name: "T40 " + name, image: rawWith(texts), code: "format",
			says: []string{"image at 0x0: format", first, " and ", second, "want the content of one format"},
		}
	}
	out := []hostile{
		both("ISO and qcow2", map[int64]string{0: "QFI\xfb", iso: "CD001"}, "qcow2", "ISO 9660"),
		both("ISO and VHD", map[int64]string{lastSector: "conectix", iso: "CD001"}, "vhd", "ISO 9660"),
		both("qcow2 and VHD", map[int64]string{0: "QFI\xfb", lastSector: "conectix"}, "vhd", "qcow2"),
		both("VMDK and ISO", map[int64]string{0: "KDMV", iso: "CD001"}, "vmdk", "ISO 9660"),
		both("COWD and ISO", map[int64]string{0: "COWD", iso: "CD001"}, "vmdk", "ISO 9660"),
		both("VHDX and ISO", map[int64]string{0: "vhdxfile", iso: "CD001"}, "vhdx", "ISO 9660"),
	}
	// Whole images, behind which the footer of a fixed VHD of their size stands.
	for _, kind := range slices.Sorted(maps.Keys(wholeImages)) {
		out = append(out, hostile{
			name: "T40 valid " + kind + " and VHD", image: withFooter(wholeImages[kind]), code: "format",
			says: []string{
				"image at 0x0: format", "vhd", strings.ToLower(strings.Fields(kind)[0]), " and ",
				"want the content of one format",
			},
		})
	}
	return out
}

// wholeImages are valid, one for each layout of a file. All hold xpDisk.
var wholeImages = map[string]func() forge.Bytes{
	"qcow2": func() forge.Bytes { return qcow2forge.New(xpDisk(), qcow2Bits).Bytes },
	"VHDX": func() forge.Bytes {
		return vhdxforge.New(vhdxforge.Layout{Size: xpSectors * 512}).Fill(xpDisk()).Seal().Bytes
	},
	"VMDK":                 func() forge.Bytes { return vmdkforge.NewSparse(xpDisk()).Bytes },
	"VMDK streamOptimized": func() forge.Bytes { return vmdkforge.NewStream(xpDisk(), vmdkforge.StreamLayout{}).Bytes },
}

// withFooter makes a fixed VHD of an image.
func withFooter(forged func() forge.Bytes) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		return writeForged("disk.img", vhdforge.NewFixed(forged()).Bytes)(t, dir)
	}
}

// wrongFormatFlag are images that are not what --format says.
func wrongFormatFlag() []hostile {
	flag := func(name, format string, image func(testing.TB, string) string, found string) hostile {
		return hostile{
			name: "T40 --format " + name, image: image, args: []string{"--format", format}, code: "format",
			says: []string{"format " + fmt.Sprintf("%q", found), "want " + format + ", as --format says"},
		}
	}
	qcow2 := func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, "disk.qcow2")
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "1M")
		return path
	}
	return []hostile{
		flag("vmdk on raw", "vmdk", rawWith(nil), "no known header"),
		flag("vmdk on qcow2", "vmdk", qcow2, "qcow2"),
		flag("qcow2 on VHD", "qcow2", vhdDisk(func(*vhdforge.File) {}), "vhd"),
		flag("vhd on VHDX", "vhd", vhdxDisk(func(*vhdxforge.File) {}), "vhdx"),
		flag("vhdx on VHD", "vhdx", vhdDisk(func(*vhdforge.File) {}), "vhd"),
		flag("vhd on sparse VMDK", "vhd", sparseImage(func(*vmdkforge.Sparse) {}), "vmdk"),
		flag("vhdx on qcow2", "vhdx", qcow2, "qcow2"),
		flag("vhdx on raw", "vhdx", rawWith(nil), "no known header"),
		flag("vhd on raw", "vhd", rawWith(nil), "no known header"),
		flag("qcow2 on raw", "qcow2", rawWith(nil), "no known header"),
		flag("qcow2 on LUKS", "qcow2", rawWith(map[int64]string{0: luks}), "no known header"),
	}
}

// luks is the start of its header: magic and version.
const luks = "LUKS\xba\xbe\x00\x01"

// TestLUKSInImages is about LUKS where it meets the header of an image: a disk that is full of it can have a VHD
// footer, and lie inside any image.
func TestLUKSInImages(t *testing.T) {
	t.Parallel()
	disk := xpDisk()
	disk.Text(0, luks+strings.Repeat("\x00", 504))
	for name, image := range map[string]forge.Bytes{
		"fixed VHD": vhdforge.NewFixed(disk).Bytes, "qcow2": qcow2forge.New(disk, qcow2Bits).Bytes,
		"sparse VMDK": vmdkforge.NewSparse(disk).Bytes,
	} {
		t.Run(name, func(t *testing.T) {
			path := writeForged("disk.img", image)(t, t.TempDir())
			ends := measure(t, []string{"inspect", "--json", path}, []string{"inspect", path})
			require.Equal(t, 0, ends[0].code, ends[0].stderr)
			require.Equal(t, int64(xpSectors*512), parseFailure(t, ends[0]).Image.SizeBytes)
			require.Contains(t, ends[1].stdout, "LUKS")
		})
	}
	runHostile(t, []hostile{
		{
			name: "T40 LUKS and a broken VHD footer", image: rawWith(map[int64]string{0: luks, lastSector: "conectix"}),
			code: "format", says: []string{"vhd footer at 0x1ffe40", "checksum 0x0"},
		},
		{
			name: "T40 LUKS and ISO", image: rawWith(map[int64]string{0: luks, 0x8001: "CD001"}), code: "unsupported",
			says: []string{"ISO 9660"},
		},
	})
}

// TestLUKSInSectorZero puts LUKS into sector 0. It is no format of images but content of disks, so the disk is raw; the
// report names what fills it.
func TestLUKSInSectorZero(t *testing.T) {
	t.Parallel()
	path := rawWith(map[int64]string{0: luks, 510: "\x00\x00"})(t, t.TempDir())
	var report jsonInspect
	r := measure(t, []string{"inspect", "--json", path})[0]
	require.Equal(t, 0, r.code, r.stderr)
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &report))
	require.Equal(t, "none", report.Table.Scheme)
	require.Contains(t, measure(t, []string{"inspect", path})[0].stdout, "LUKS")
}

// TestHostileSizes opens files that are too short for what they should be.
func TestHostileSizes(t *testing.T) {
	t.Parallel()
	var rows []hostile
	for _, n := range []int{0, 1, 511, 513} {
		rows = append(rows, hostile{
			name: fmt.Sprintf("T41 file of %d bytes", n), image: writeForged("disk.raw", make(forge.Bytes, n)),
			code: "format",
			says: []string{"no disk image: ", map[bool]string{
				true:  "the file is empty",
				false: fmt.Sprintf("its size (%d) is no multiple of 512", n),
			}[n == 0]},
		})
	}
	runHostile(t, append(rows, cuts()...))
}

// cuts are a valid sparse VMDK that ends at, before and behind the border of every structure.
func cuts() []hostile {
	v := vmdkforge.NewSparse(xpDisk())
	lastGrain := int64(len(v.Bytes)) - vmdkforge.Grain
	var out []hostile
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
			h := hostile{
				name: fmt.Sprintf("T41 cut at the end of the %s, %d bytes", border.name, n), code: "format",
				image: writeForged("disk.vmdk", v.Bytes[:n]), says: []string{"vmdk ", " at 0x", ""},
			}
			h.says[2] = fmt.Sprintf("file of %d bytes", n)
			if n >= v.GT+2048 { // the tables are whole, and lead behind the end
				h.says[2] = fmt.Sprintf("the file (%d bytes)", n)
			}
			if n < v.Descriptor {
				h.says = []string{"vmdk sparse header at 0x0", fmt.Sprintf("file size %d", n), "want at least 512"}
			}
			// Where the first grain is whole, inspect can report the disk and the grains that it lacks.
			h.report = n >= v.Grains+vmdkforge.Grain
			out = append(out, h)
		}
	}
	return out
}

// TestSizesWithoutTable reads disks in which there is nothing to find. qemu-img
// takes 512 bytes for a disk of one sector, and so do we.
func TestSizesWithoutTable(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int64{"T41 one sector": 512, "T41 8 TiB without partitions": 8 << 40} {
		t.Run(name, func(t *testing.T) {
			path := disktest.Blank(t, "disk.raw", size)
			dest := filepath.Join(t.TempDir(), "dest.raw")
			ends := measure(t, []string{"inspect", "--json", path}, []string{"plan", "--json", path},
				[]string{"inspect", path})
			for _, r := range ends {
				require.Equal(t, 0, r.code, r.stderr)
				require.Empty(t, r.stderr)
			}
			require.Equal(t, size, parseFailure(t, ends[0]).Image.SizeBytes)
			require.Contains(t, ends[2].stdout, "Nothing to judge: the disk is blank")

			copied := measure(t, []string{"align", "--json", path, dest})[0]
			require.Equal(t, 0, copied.code, copied.stderr)
			info := disktest.Stat(t, dest)
			require.Equal(t, size, info.Size())
		})
	}
}
