package layout_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// rawFile is an image of so many sectors that a tool can fill.
func rawFile(t *testing.T, sectors int64) string {
	t.Helper()
	path := disktest.Blank(t, "disk.img", sectors*512)
	return path
}

func load(t *testing.T, path string) forge.Bytes {
	t.Helper()
	b := disktest.ReadFile(t, path)
	return b
}

// extent is a place in sectors of the disk.
type extent struct{ start, sectors int64 }

// partxSlices are the slices that libblkid finds inside of the partitions of an MBR: it numbers them from 5.
func partxSlices(t *testing.T, path string) []extent {
	t.Helper()
	var out []extent
	for line := range strings.Lines(disktest.Output(t, "partx", "-rgo", "NR,START,SECTORS", path)) {
		f := strings.Fields(line)
		require.Len(t, f, 3)
		start, err := strconv.ParseInt(f[1], 10, 64)
		require.NoError(t, err)
		sectors, err := strconv.ParseInt(f[2], 10, 64)
		require.NoError(t, err)
		if n, err := strconv.Atoi(f[0]); err == nil && n > 4 {
			out = append(out, extent{start, sectors})
		}
	}
	return out
}

// slicesOf are the used slices of a volume that begins at a byte of the disk.
func slicesOf(v *volume.Volume, at int64) []extent {
	var out []extent
	for _, p := range v.Parts {
		if p.Kind != "unused" && p.Kind != "Unassigned" && p.Start >= 0 {
			out = append(out, extent{(at + p.Start) / 512, p.Size / 512})
		}
	}
	return out
}

// fdisk makes labels in slices of all three BSDs, with offsets that count from the start of the disk.
func TestDisklabelsOfFdisk(t *testing.T) {
	for typ, want := range map[string][]string{
		"a5": {"disklabel-offsets", "slice-misaligned"}, "a6": {"disklabel-offsets", "slice-misaligned", "openbsd"},
		"a9": {"disklabel-offsets", "slice-misaligned", "netbsd"},
	} {
		t.Run(typ, func(t *testing.T) {
			path := rawFile(t, 80000)
			disktest.RunInput(t, "63,70000,"+typ+"\n", "sfdisk", "-q", path)
			listed := disktest.RunInput(t,
				"b\ny\nn\na\n79\n20078\nn\nb\n20079\n30000\nn\ne\n40000\n50000\n"+
					"t\na\n7\nt\nb\n1\nt\ne\nb\np\nw\nr\nq\n",
				"fdisk", path)
			l := read(t, load(t, path))
			v := l.Partitions[0].Volume
			require.Equal(t, volume.Disklabel, v.Kind)
			require.Equal(t, []extent{{79, 20000}, {20079, 9922}, {40000, 10001}}, slicesOf(v, 63*512))
			require.Equal(t, partxSlices(t, path), slicesOf(v, 63*512))
			for i, kind := range []string{"4.2BSD", "swap", "HPFS"} {
				require.Equal(t, kind, v.Parts[i].Kind)
				require.Regexp(t, fmt.Sprintf(`(?m)^%s +%d .* %s `, v.Parts[i].Name, v.Parts[i].Start/512+63, kind),
					listed)
			}
			require.Equal(t, want, disktest.Codes(l.Issues), "a lies 16 sectors into the partition, e 39937")
			require.Contains(t, l.Issues[1].Text, "e at byte 20447744 of the partition")
			require.NotContains(t, l.Issues[1].Text, "a at")
		})
	}
}

// FreeBSD counts from the start of the slice since version 10, as its raw slice shows; libblkid agrees.
func TestRelativeDisklabel(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0xa5, 63, 70000))
	tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Start: 16, Sectors: 20000, Type: 7},
		tableforge.Slice{Start: 20016, Sectors: 10000, Type: 1}, tableforge.Slice{Sectors: 70000})
	path := filepath.Join(t.TempDir(), "disk.img")
	f.Write(t, path)
	l := read(t, f)
	require.Equal(t, []extent{{79, 20000}, {20079, 10000}}, slicesOf(l.Partitions[0].Volume, 63*512))
	require.Equal(t, partxSlices(t, path), slicesOf(l.Partitions[0].Volume, 63*512))
	require.Empty(t, l.Issues, "it moves")
}

// OpenBSD's raw slice is the disk, and its label lists what lies in other partitions. Its version 1 has offsets of 48
// bits.
func TestOpenBSDDisklabel(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0xa6, 64, 70000), slot(6, 70064, 9000))
	slices := make([]tableforge.Slice, 16)
	slices[0] = tableforge.Slice{Start: 64, Sectors: 20000, Type: 7}
	slices[1] = tableforge.Slice{Start: 20064, Sectors: 10000, Type: 1}
	slices[2] = tableforge.Slice{Sectors: 80000}
	slices[8] = tableforge.Slice{Start: 70064, Sectors: 9000, Type: 8}
	tableforge.PutDisklabel(f, 65*512, slices...)
	f.Put(65*512+64, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.U16(65*512+tableforge.BSDVersion, 1)
	tableforge.SealDisklabel(f[65*512:])
	path := filepath.Join(t.TempDir(), "disk.img")
	f.Write(t, path)
	l := read(t, f)
	v := l.Partitions[0].Volume
	require.Equal(t, "0102030405060708", v.UUID)
	require.Equal(t, []extent{{64, 20000}, {20064, 10000}}, slicesOf(v, 64*512))
	require.Equal(t, partxSlices(t, path)[:2], slicesOf(v, 64*512))
	require.Equal(t, volume.Part{Name: "i", Kind: "MS-DOS", Start: -1, Size: 9000 * 512}, v.Parts[2])
	require.Equal(t, []string{"openbsd"}, disktest.Codes(l.Issues))
}

// The type of a partition can say less than the label in it.
func TestLabelsOfOtherTypes(t *testing.T) {
	relative := func(f forge.Bytes) { tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Sectors: 64, Type: 7}) }
	absolute := func(f forge.Bytes) {
		tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Start: 63, Sectors: 64, Type: 7}, tableforge.Slice{},
			tableforge.Slice{Sectors: 8192})
	}
	outside := func(f forge.Bytes) {
		tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Start: 7000, Sectors: 64, Type: 7})
	}
	vtoc := func(f forge.Bytes) { tableforge.PutVTOC(f, 63, tableforge.Slice{Start: 8, Sectors: 64, Type: 2}) }
	for name, c := range map[string]struct {
		typ  byte
		put  func(forge.Bytes)
		want []string
	}{
		"a FreeBSD":                             {0xa5, relative, nil},
		"a label in a partition of Linux":       {0x83, relative, []string{"disklabel"}},
		"FreeBSD's type with OpenBSD's label":   {0xa5, absolute, []string{"disklabel"}},
		"a slice outside of the partition":      {0xa5, outside, []string{"slice-outside"}},
		"Solaris in its old type, that of swap": {0x82, vtoc, []string{"solaris"}},
		"Solaris":                               {0xbf, vtoc, []string{"solaris"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8192, slot(c.typ, 63, 6000))
			c.put(f)
			l := read(t, f)
			require.Equal(t, c.want, disktest.Codes(l.Issues))
			for _, i := range l.Issues {
				require.Equal(t, ondisk.Refuse, i.Effect)
				require.True(t, i.OnMove)
			}
		})
	}
}

// libblkid reads the label of Solaris on a PC too, in partitions of its old type.
func TestSolarisVTOC(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0x82, 63, 70000))
	tableforge.PutVTOC(f, 63, tableforge.Slice{Start: 16065, Sectors: 20000, Type: 2},
		tableforge.Slice{Start: 4096, Sectors: 8000, Type: 3}, tableforge.Slice{Sectors: 70000, Type: 5})
	path := filepath.Join(t.TempDir(), "disk.img")
	f.Write(t, path)
	v := read(t, f).Partitions[0].Volume
	require.Equal(t, volume.VTOC, v.Kind)
	got := slicesOf(v, 63*512)
	require.Equal(t, []extent{{16128, 20000}, {4159, 8000}}, got)
	require.Equal(t, got, partxSlices(t, path)[:2], "it lists the whole disk as well")
	require.Equal(t, "SunOS root", v.Parts[0].Kind)
}

// partedSlices are the partitions that parted prints, in sectors.
func partedSlices(t *testing.T, path, label string) []extent {
	t.Helper()
	var out []extent
	for i, line := range strings.Split(strings.TrimSpace(disktest.Output(t, "parted", "-ms", path, "unit", "s",
		"print")),
		"\n") {
		f := strings.Split(line, ":")
		if i < 2 {
			require.True(t, i == 0 || f[5] == label, line)
			continue
		}
		start, err := strconv.ParseInt(strings.TrimSuffix(f[1], "s"), 10, 64)
		require.NoError(t, err)
		sectors, err := strconv.ParseInt(strings.TrimSuffix(f[3], "s"), 10, 64)
		require.NoError(t, err)
		out = append(out, extent{start, sectors})
	}
	return out
}

// A disk of a BSD without a partition table is reported as such. parted does not renew the checksum of its label.
func TestLabelOnly(t *testing.T) {
	path := rawFile(t, 81920)
	disktest.Run(t, "parted", "-s", path, "mklabel", "bsd", "unit", "s", "mkpart", "ext2", "64", "20000",
		"mkpart", "linux-swap", "30000", "40000")
	l := read(t, load(t, path))
	require.Nil(t, l.Table)
	require.Equal(t, volume.Disklabel, l.Volume.Kind)
	require.Equal(t, partedSlices(t, path, "bsd"), slicesOf(l.Volume, 0))
	require.Subset(t, disktest.Codes(l.Issues), []string{"volume", "label-only"})
}

// FreeBSD's "dangerously dedicated" disks have boot code with an entry in sector 0 that is no partition: it starts with
// the table. Source: FreeBSD, stand/i386/boot2/boot1.S.
func TestDedicatedDisk(t *testing.T) {
	f := tableforge.NewMBR(80000)
	tableforge.PutSlot(f, 0, 3, tableforge.Slot{Flag: 0x80, Type: 0xa5, Start: 0, Sectors: 50000})
	tableforge.PutDisklabel(f, 512, tableforge.Slice{Start: 16, Sectors: 60000, Type: 7}, tableforge.Slice{},
		tableforge.Slice{Sectors: 80000})
	l := read(t, f)
	require.Nil(t, l.Table)
	require.Equal(t, volume.Disklabel, l.Volume.Kind)
	require.Equal(t, []extent{{16, 60000}}, slicesOf(l.Volume, 0))
	require.Equal(t, []string{"label-only"}, disktest.Codes(l.Issues))
}

// The magic number of a Sun label stands where the fourth entry of an MBR has half of its count.
func TestCountThatLooksLikeASunLabel(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0x83, 64, 8))
	tableforge.PutSlot(f, 0, 3, slot(0x83, 128, 0xbeda0000))
	l := read(t, f)
	require.NotNil(t, l.Table)
	require.NotContains(t, disktest.Codes(l.Issues), "ambiguous-sector-0")
}

// sgdisk sets the types of partitions by its own codes, so that a wrong GUID would show.
func TestRefusedGUIDs(t *testing.T) {
	want := map[string]string{
		"4200": "ldm", "4201": "ldm", "4202": "storage-spaces", "a600": "openbsd", "a902": "netbsd", "a903": "netbsd",
		"a904": "netbsd", "a905": "netbsd", "a906": "netbsd", "be00": "solaris", "bf00": "solaris", "bf01": "solaris",
		"bf02": "solaris", "bf03": "solaris", "bf04": "solaris", "bf05": "solaris", "bf06": "solaris", "fb00": "vmfs",
		"eb00": "beos", "a901": "", "a500": "", "a501": "", "a502": "", "a503": "", "a504": "", "a580": "", "0700": "",
		"8300": "", "fb01": "",
	}
	path := rawFile(t, 8192)
	var args, order []string
	for code := range want {
		order = append(order, code)
		n := len(order)
		args = append(args, "-n", fmt.Sprintf("%d:%d:+10", n, 34+20*n), "-t", fmt.Sprintf("%d:%s", n, code))
	}
	disktest.Run(t, "sgdisk", append(append([]string{"-a", "1"}, args...), path)...)
	l := read(t, load(t, path))
	for n, code := range order {
		require.NotEmpty(t, l.Partitions[n].TypeName(), code)
		var got string
		for _, i := range l.Issues {
			own := i.Partition == n+1 && strings.HasPrefix(i.Text, "it has type")
			// what is wide names its partition
			if own || strings.HasPrefix(i.Text, fmt.Sprintf("partition %d has type", n+1)) {
				got = i.Code
			}
		}
		require.Equal(t, want[code], got, code)
	}
}
