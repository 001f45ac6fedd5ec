package layout_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/ldmforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/stack"
)

// ldmtool runs commands on the image of a dynamic disk. It tells where volumes lie even though it cannot make devices
// of them.
func ldmtool(t *testing.T, path, command string, v any) {
	t.Helper()
	out := disktest.RunInput(t, "scan "+path+"\n"+command+"\nquit\n", "ldmtool")
	_, out, ok := strings.Cut(out, command+"\n")
	if !ok {
		_, out, ok = strings.Cut(out, "]\n") // without a terminal it does not repeat what it reads
	}
	require.True(t, ok, out)
	at := strings.Index(out, "{")
	require.GreaterOrEqual(t, at, 0, out)
	require.NoError(t, json.NewDecoder(strings.NewReader(out[at:])).Decode(v), out)
}

type ldmVolume struct {
	Type, Hint string
	Partitions []string
}

type ldmPartition struct {
	Start, Size int64
	Disk        string
}

// checkLDM holds every extent on every disk of a group against ldmtool. The disk that the image is of is changed by the
// GUID in its private header, at a byte offset.
func checkLDM(t *testing.T, f forge.Bytes, group string, heads []int64, diskIDs map[string]string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	f.Write(t, path)
	var all struct {
		Volumes, Disks []string
	}
	ldmtool(t, path, "show diskgroup "+group, &all)
	require.Len(t, all.Disks, len(diskIDs))
	want := map[string][]stack.LDMExtent{}
	for _, name := range all.Volumes {
		var v ldmVolume
		ldmtool(t, path, "show volume "+group+" "+name, &v)
		size := int64(0) // of a copy
		var parts []ldmPartition
		for i, name := range v.Partitions {
			var p ldmPartition
			ldmtool(t, path, "show partition "+group+" "+name, &p)
			if parts = append(parts, p); i == 0 || v.Type != "mirrored" {
				size += p.Size * 512
			}
		}
		for i, p := range parts { // in the order of the volume
			want[p.Disk] = append(want[p.Disk], stack.LDMExtent{
				Name: v.Partitions[i], Whole: len(parts) == 1 || v.Type == "mirrored", Mirrored: v.Type == "mirrored",
				Begins: v.Type != "RAID5" && (i == 0 || v.Type == "mirrored"), Copy: size,
				Range: disk.Range{Off: (63 + p.Start) * 512, Len: p.Size * 512},
			})
		}
	}
	for name, id := range diskIDs {
		for _, at := range heads {
			f.Put(at+48, []byte(id))
		}
		got, err := stack.ReadLDM(disktest.Memory(f), heads)
		require.NoError(t, err)
		require.ElementsMatch(t, want[name], got.Extents, name)
	}
}

func TestDynamicDiskOfWindows(t *testing.T) {
	f := load(t, disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz"))
	l := read(t, f)
	v := l.Partitions[0].Volume
	require.Equal(t, volume.NTFS, v.Kind, "the volume lies at the start of the partition")
	require.Equal(t, []volume.Part{{Name: "Disk1-01", Kind: "volume", Size: 96256 * 512}}, v.Parts)
	heads := stack.LDMHeads(int64(len(f)), 512)
	ids := map[string]string{}
	path := filepath.Join(t.TempDir(), "disk.img")
	f.Write(t, path)
	const group = "03c0c4fc-8b6f-402b-9431-4be2e5823b1c"
	for i := range 10 {
		var disk struct{ Name, GUID string }
		ldmtool(t, path, fmt.Sprintf("show disk %s Disk%d", group, i+1), &disk)
		ids[disk.Name] = disk.GUID
	}
	checkLDM(t, f, group, heads, ids)
	for i, at := range heads {
		f.Put(at, make([]byte, 512))
		_, err := stack.ReadLDM(disktest.Memory(f), heads)
		require.Equal(t, i == len(heads)-1, err != nil, "a copy of the private header is left")
	}
}

// The dynamic disks that the tests make are some for ldmtool too.
func TestMadeDynamicDisks(t *testing.T) {
	forged := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x42, Start: 63, Sectors: 6000})
	ldmforge.Put(forged, 63, 5000)
	golden := disktest.Fixture(t, disktest.Fixtures(t)["dynamic-disk"])
	for _, f := range []forge.Bytes{forged, disktest.Head(t, golden, golden.Size())} {
		l := read(t, f)
		require.Equal(t, []string{"ldm"}, disktest.Codes(l.Issues))
		require.True(t, l.Issues[0].DiskWide)
		require.Equal(t, volume.LDM, l.Partitions[0].Volume.Kind)
		checkLDM(t, f, "99999999-8888-7777-6666-555555555555", stack.LDMHeads(int64(len(f)), 512),
			map[string]string{"Disk1": "11111111-2222-3333-4444-555555555555"})
	}
}

// The file system of a striped, spanned or RAID-5 volume is larger than its part of a disk. That of a volume in one
// place is not.
func TestMemberOfASpreadVolume(t *testing.T) {
	f := tableforge.NewMBR(16384, tableforge.Slot{Type: 0x42, Start: 63, Sectors: 6000},
		tableforge.Slot{Type: 0x42, Start: 7000, Sectors: 6000})
	ldmforge.Put(f, 63, 5000)
	for _, lba := range []int64{63, 7000} {
		fsforge.PutNTFS(f, lba, 6000)
		f[lba*512:].U64(fsforge.NTFSTotal, 12000)
	}
	var bad []int
	for _, i := range read(t, f).Issues {
		if i.Code == "volume" {
			bad = append(bad, i.Partition)
		}
	}
	require.Equal(t, []int{1}, bad)
}

// On a disk with a GPT the database of Windows lies in the metadata partition.
func TestDynamicDiskWithGPT(t *testing.T) {
	windows := load(t, disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz"))
	path := rawFile(t, 102400)
	disktest.Run(t, "sgdisk", "-a", "1", "-n", "1:34:2081", "-t", "1:4201", "-n", "2:2145:100000", "-t", "2:4200", path)
	f := load(t, path)
	f.Put(34*512, windows[len(windows)-1<<20:])
	for _, at := range []int64{34 + 1856, 34 + 2047} {
		f[at*512:].BE64(ldmforge.ConfigStart, 34)
		f[at*512:].BE64(283, 2145)
	}
	f.Write(t, path)
	l := read(t, f)
	require.Equal(t, []string{"ldm", "ldm"}, disktest.Codes(l.Issues))
	require.True(t, l.Issues[0].DiskWide && l.Issues[1].DiskWide)
	require.Empty(t, l.Partitions[0].Volume.Parts)
	require.Equal(t, []volume.Part{{Name: "Disk1-01", Kind: "volume", Size: 96256 * 512}}, l.Partitions[1].Volume.Parts)
	var want ldmVolume
	ldmtool(t, path, "show volume 03c0c4fc-8b6f-402b-9431-4be2e5823b1c Volume1", &want)
	require.Equal(t, "E:", want.Hint)
}

// A damaged database is reported, and the type refuses the move all the same. A damaged private header has copies.
func TestDamagedDynamicDisk(t *testing.T) {
	head := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x42, Start: 63, Sectors: 6000})
	ldmforge.Put(head, 63, 5000)
	head[ldmforge.Head:].BE64(ldmforge.ConfigStart, 1<<63)
	require.Equal(t, []string{"ldm"}, disktest.Codes(read(t, head).Issues))
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x42, Start: 63, Sectors: 6000})
	f.Text(ldmforge.Put(f, 63, 5000)+ldmforge.VMDB, "gone")
	l := read(t, f)
	require.Equal(t, []string{"ldm-database", "ldm"}, disktest.Codes(l.Issues))
	require.Contains(t, l.Issues[0].Text, "ldm vmdb at 0x302200: magic")
}
