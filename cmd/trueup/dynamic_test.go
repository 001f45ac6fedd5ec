package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/ldmforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// ldmDisk, ldmVolume and ldmExtent are what ldmtool says, in sectors.
type ldmDisk struct {
	Name, GUID, Device string
	DataStart          int64 `json:"data-start"`
	DataSize           int64 `json:"data-size"`
	MetadataStart      int64 `json:"metadata-start"`
	MetadataSize       int64 `json:"metadata-size"`
}

type ldmVolume struct {
	Name, Type string
	Size       int64
	ChunkSize  int64 `json:"chunk-size"`
	Partitions []string
}

type ldmExtent struct {
	Name        string
	Start, Size int64
	Disk        string
}

// ldmGroup is a disk group as ldmtool reads it from images.
type ldmGroup struct {
	disks   map[string]ldmDisk
	volumes map[string]ldmVolume
	extents map[string]ldmExtent
}

// readLDM asks ldmtool about a group. Without device-mapper it warns that it cannot make devices.
func readLDM(t testing.TB, group string, paths ...string) ldmGroup {
	t.Helper()
	show := func(what ...string) (answers []json.RawMessage) {
		script := "scan " + strings.Join(paths, " ") + "\n"
		for _, w := range what {
			script += "show " + w + "\n"
		}
		for _, text := range strings.Split("\n"+disktest.RunInput(t, script+"quit\n", "ldmtool"), "\n{\n")[1:] {
			var a json.RawMessage
			require.NoError(t, json.NewDecoder(strings.NewReader("{"+text)).Decode(&a), text)
			answers = append(answers, a)
		}
		require.Len(t, answers, len(what))
		return answers
	}
	var all struct{ Volumes, Disks []string }
	require.NoError(t, json.Unmarshal(show("diskgroup " + group)[0], &all))
	g := ldmGroup{showEach[ldmDisk](t, show, "disk "+group, all.Disks), showEach[ldmVolume](t, show, "volume "+group,
		all.Volumes), nil}
	var extents []string
	for _, v := range g.volumes {
		extents = append(extents, v.Partitions...)
	}
	g.extents = showEach[ldmExtent](t, show, "partition "+group, extents)
	return g
}

// showEach has ldmtool show things by their names.
func showEach[T any](t testing.TB, show func(...string) []json.RawMessage, what string, names []string) map[string]T {
	t.Helper()
	var commands []string
	for _, name := range names {
		commands = append(commands, what+" "+name)
	}
	out := map[string]T{}
	for i, a := range show(commands...) {
		var v T
		require.NoError(t, json.Unmarshal(a, &v))
		out[names[i]] = v
	}
	return out
}

// bytesOf returns the bytes of an extent.
func (g ldmGroup) bytesOf(t testing.TB, name string) []byte {
	t.Helper()
	e := g.extents[name]
	d := g.disks[e.Disk]
	b := disktest.ReadFile(t, d.Device)
	return b[(d.DataStart+e.Start)*512:][:e.Size*512]
}

// assemble returns the bytes of a volume: of a mirror those of its halves, one behind the other.
func (g ldmGroup) assemble(t testing.TB, name string) []byte {
	t.Helper()
	v := g.volumes[name]
	var parts [][]byte
	for _, p := range v.Partitions {
		parts = append(parts, g.bytesOf(t, p))
	}
	if v.Type != "striped" {
		return bytes.Join(parts, nil)
	}
	var out []byte
	for at := int64(0); at < int64(len(parts[0])); at += v.ChunkSize * 512 {
		for _, p := range parts {
			out = append(out, p[at:at+v.ChunkSize*512]...)
		}
	}
	return out
}

// unplaced returns a copy of a volume with zeros for the hidden sectors of its boot sectors.
func unplaced(b []byte, boots ...int64) []byte {
	b = bytes.Clone(b)
	for _, at := range boots {
		copy(b[at+0x1c:], make([]byte, 4))
	}
	return b
}

const (
	dynamicStart = 63
	dynamicSpace = 39000 // sectors for volumes
	dynamicSize  = dynamicStart + dynamicSpace + 2100 + 2048
)

// ntfsVolume returns an NTFS of mkntfs that says where it begins on its disk.
func ntfsVolume(t testing.TB, sectors, start int64) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ntfs")
	require.NoError(t, os.WriteFile(path, make([]byte, sectors*512), 0o600))
	disktest.Run(t, "mkntfs", "-q", "-F", "-p", fmt.Sprint(start), "-H", "255", "-S", "63", path)
	b := disktest.ReadFile(t, path)
	return b
}

// dynamicGroup forges a group of four disks with an NTFS in every volume: simple, spanned, striped, mirrored and
// RAID-5. The simple ones lie behind each other on the first disk.
func dynamicGroup(t testing.TB) (disks []forge.Bytes) {
	t.Helper()
	const mib = 2048
	piece := func(disk int, start, sectors int64) ldmforge.Piece {
		return ldmforge.Piece{Disk: disk, Start: start, Sectors: sectors}
	}
	for range 4 {
		disks = append(disks, tableforge.NewMBR(dynamicSize, tableforge.Slot{
			Type: 0x42, Start: dynamicStart,
			Sectors: dynamicSpace,
		}))
	}
	volumes := []ldmforge.Volume{
		{Name: "Simple", Kind: ldmforge.Spanned, Copies: [][]ldmforge.Piece{{piece(0, 0, 4*mib)}}},
		{Name: "Inner", Kind: ldmforge.Spanned, Copies: [][]ldmforge.Piece{{piece(0, 4*mib, 5*mib)}}},
		{Name: "Spanned", Kind: ldmforge.Spanned, Copies: [][]ldmforge.Piece{{
			piece(0, 9*mib, 3*mib),
			piece(1, 0, 2*mib),
		}}},
		{Name: "Striped", Kind: ldmforge.Striped, Copies: [][]ldmforge.Piece{{
			piece(1, 2*mib, 4*mib),
			piece(2, 0, 4*mib),
		}}},
		{Name: "Mirror", Kind: ldmforge.Spanned, Copies: [][]ldmforge.Piece{
			{piece(2, 4*mib, 4*mib)},
			{piece(3, 4*mib, 4*mib)},
		}},
		{Name: "Raid", Kind: ldmforge.RAID5, Copies: [][]ldmforge.Piece{{
			piece(3, 0, 2*mib), piece(1, 6*mib, 2*mib),
			piece(2, 8*mib, 2*mib),
		}}},
	}
	ldmforge.PutGroup(disks, dynamicStart, dynamicSpace, volumes...)
	for _, v := range volumes {
		fillVolume(t, v, func(p ldmforge.Piece) forge.Bytes {
			return disks[p.Disk][(dynamicStart+p.Start)*512:][:p.Sectors*512]
		})
	}
	return disks
}

// fillVolume puts an NTFS into the pieces of a volume: of RAID-5 the first row.
func fillVolume(t testing.TB, v ldmforge.Volume, at func(ldmforge.Piece) forge.Bytes) {
	t.Helper()
	const chunk = 128 * 512
	p, total := v.Copies[0], int64(0)
	for _, x := range p {
		total += x.Sectors
	}
	fs := ntfsVolume(t, total, dynamicStart+p[0].Start)
	switch v.Kind {
	case ldmforge.Striped:
		for i := int64(0); i < int64(len(fs)); i += chunk {
			copy(at(p[i/chunk%2])[i/chunk/2*chunk:], fs[i:i+chunk])
		}
	case ldmforge.RAID5: // data, data and their parity
		copy(at(p[0]), fs[:chunk])
		copy(at(p[1]), fs[chunk:2*chunk])
		for i := range chunk {
			at(p[2])[i] = fs[i] ^ fs[chunk+i]
		}
	default:
		for _, x := range p {
			copy(at(x), fs[:x.Sectors*512])
			fs = fs[x.Sectors*512:]
		}
		for _, half := range v.Copies[1:] {
			copy(at(half[0]), at(p[0]))
		}
	}
}

// TestDynamicDiskGroups aligns each disk of a group alone. ldmtool finds the same volumes, and these hold the same
// bytes but for the hidden sectors.
func TestDynamicDiskGroups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var sources, copies []string
	for i, f := range dynamicGroup(t) {
		sources = append(sources, filepath.Join(dir, fmt.Sprintf("disk%d.img", i+1)))
		copies = append(copies, filepath.Join(dir, fmt.Sprintf("aligned%d.img", i+1)))
		f.Write(t, sources[i])
		require.Equal(t, 4, trueup(t, "align", sources[i], copies[i]).code)
		answer := trueupJSON[jsonAlign](t, 0, "align", "--dynamic-disks", sources[i], copies[i])
		require.Equal(t, 1, answer.Moved)
		require.True(t, trueupJSON[jsonVerify](t, 0, "verify", sources[i], copies[i]).Equal)
		require.Zero(t, trueup(t, "inspect", copies[i]).code)
	}
	before, after := readLDM(t, ldmforge.GroupID, sources...), readLDM(t, ldmforge.GroupID, copies...)
	require.Equal(t, before.volumes, after.volumes)
	require.Equal(t, before.extents, after.extents)
	require.Len(t, after.volumes, 6)
	for name, d := range after.disks {
		was := before.disks[name]
		require.Equal(t, int64(2048), d.DataStart)
		was.DataStart, was.Device = d.DataStart, d.Device
		require.Equal(t, was, d, "the database and all sizes stay")
	}
	for name, boots := range map[string][]int64{
		"Simple": {0, 4<<20 - 512}, "Inner": {0, 5<<20 - 512}, "Spanned": {0}, "Striped": {0}, "Raid": nil,
		"Mirror": {0, 4<<20 - 512, 4 << 20, 8<<20 - 512},
	} {
		was, is := before.assemble(t, name), after.assemble(t, name)
		require.Equal(t, sha256.Sum256(unplaced(was, boots...)), sha256.Sum256(unplaced(is, boots...)), name)
		first := after.extents[after.volumes[name].Partitions[0]]
		for _, at := range boots {
			require.Equal(t, 2048+first.Start, int64(binary.LittleEndian.Uint32(is[at+0x1c:])), "%s at %d", name, at)
		}
		if name == "Raid" { // the parity of the third disk covers it
			require.Equal(t, uint32(63), binary.LittleEndian.Uint32(is[0x1c:]))
			continue
		}
		path := filepath.Join(t.TempDir(), "volume")
		require.NoError(t, os.WriteFile(path, is[:after.volumes[name].Size*512], 0o600))
		disktest.Run(t, "ntfsresize", "-f", "-i", path)
	}
}

// TestCorpusDynamicDiskMoves is the same for a disk of Windows Server 2003 R2, for readers that follow its headers.
func TestCorpusDynamicDiskMoves(t *testing.T) {
	t.Parallel()
	const group = "03c0c4fc-8b6f-402b-9431-4be2e5823b1c"
	source := disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz")
	before := readLDM(t, group, source)
	r := trueup(t, "align", "--dynamic-disks", source, filepath.Join(t.TempDir(), "no.img"))
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "version 2.11")
	r = trueup(t, "convert", "--to", "raw,align=1G", source, filepath.Join(t.TempDir(), "no.img"))
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "would grow from 52428800")
	for boundary, start := range map[string]int64{"4K": 64, "auto": 128, "1M": 2048} {
		dest := filepath.Join(t.TempDir(), "aligned.img")
		answer := trueupJSON[jsonAlign](t, 0, "align", "--dynamic-disks", "--allow-unbootable", "--boundary", boundary,
			source, dest)
		require.Equal(t, 1, answer.Moved)
		require.True(t, trueupJSON[jsonVerify](t, 0, "verify", source, dest).Equal)
		after := readLDM(t, group, dest)
		require.Equal(t, before.volumes, after.volumes)
		require.Equal(t, before.extents, after.extents)
		d := before.disks["Disk1"]
		d.DataStart, d.Device = start, dest
		require.Equal(t, d, after.disks["Disk1"])
		was, is := before.assemble(t, "Volume1"), after.assemble(t, "Volume1")
		boots := []int64{0, 96256*512 - 512}
		require.Equal(t, unplaced(was, boots...), unplaced(is, boots...))
		for _, at := range boots {
			require.Equal(t, start, int64(binary.LittleEndian.Uint32(is[at+0x1c:])))
		}
		again := filepath.Join(t.TempDir(), "again.img")
		require.Zero(t, trueupJSON[jsonAlign](t, 0, "align", "--dynamic-disks", "--boundary", boundary, dest,
			again).Moved)
	}
	r = trueup(t, "align", "--dynamic-disks", "--boundary", "4M", source, filepath.Join(t.TempDir(), "no.img"))
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "in front of the database at LBA 100352")
}

// TestDynamicDiskWithGPT moves the data partition of a dynamic disk, and leaves the one with the database.
func TestDynamicDiskWithGPT(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, dest := filepath.Join(dir, "gpt.img"), filepath.Join(dir, "aligned.img")
	const total, data, sectors = 40000, 2082, 30000
	require.NoError(t, os.WriteFile(source, make([]byte, total*512), 0o600))
	disktest.Run(t, "sgdisk", "-a", "1", "-n", "1:34:2081", "-t", "1:4201", "-n",
		fmt.Sprintf("2:%d:%d", data, data+sectors-1), "-t", "2:4200", source)
	raw := disktest.ReadFile(t, source)
	f := forge.Bytes(raw)
	ldmforge.PutDatabase(f, 34*512, 1, ldmforge.Volume{
		Name: "Simple", Kind: ldmforge.Spanned, Copies: [][]ldmforge.Piece{{{Start: 2048, Sectors: 8192}}},
	})
	head := ldmforge.PrivateHead(ldmforge.DiskID(0), data, sectors, 34, 2048)
	f.Put((34+1856)*512, head)
	f.Put(2081*512, head)
	f.Put((data+2048)*512, ntfsVolume(t, 8192, data+2048))
	f.Write(t, source)

	require.Contains(t, trueup(t, "inspect", source).stdout,
		"Misaligned: an extent of the dynamic disk in partition 2 starts")
	require.Equal(t, int64(data+2048)*512, trueupJSON[jsonInspect](t, 3, "inspect", source).Partitions[1].Extent)
	require.Equal(t, 4, trueup(t, "align", source, dest).code)
	require.Equal(t, 1, trueupJSON[jsonAlign](t, 0, "align", "--dynamic-disks", source, dest).Moved)
	require.True(t, trueupJSON[jsonVerify](t, 0, "verify", source, dest).Equal)
	r := trueup(t, "inspect", dest)
	require.Zero(t, r.code, "the database stays off the boundary")
	require.Contains(t, r.stdout, "Aligned: every volume of the dynamic disk starts on a multiple of 64 KiB.")
	before, after := readLDM(t, ldmforge.GroupID, source), readLDM(t, ldmforge.GroupID, dest)
	require.Equal(t, before.volumes, after.volumes)
	require.Equal(t, before.extents, after.extents)
	d := before.disks["Disk1"]
	d.DataStart, d.Device = 4096, dest
	require.Equal(t, d, after.disks["Disk1"])
	parts := sfdiskParts(t, dest)
	require.Equal(t, []int64{34, 4096}, []int64{parts[0].Start, parts[1].Start})
	require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
	is := after.assemble(t, "Simple")
	require.Equal(t, uint32(4096+2048), binary.LittleEndian.Uint32(is[0x1c:]))
	boots := []int64{0, 8191 * 512}
	require.Equal(t, unplaced(before.assemble(t, "Simple"), boots...), unplaced(is, boots...))
}

// TestLinuxReadsDynamicDisks has ldmtool read each disk alone, and in make exhaustive the kernel too, before and after:
// it makes a partition of each extent.
func TestLinuxReadsDynamicDisks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	paths := []string{disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz")}
	for i, f := range dynamicGroup(t) {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("disk%d.img", i+1)))
		f.Write(t, paths[i+1])
	}
	for _, source := range slices.Clone(paths) {
		paths = append(paths, filepath.Join(dir, "aligned-"+filepath.Base(source)))
		require.Zero(t, trueup(t, "align", "--dynamic-disks", "--allow-unbootable", source, paths[len(paths)-1]).code)
	}
	setup := linuxSetup{readOnly: "on"}
	for _, path := range paths {
		setup.add(guestDisk{path, "raw", sectorSize})
	}
	var guest *linuxGuest
	if disktest.Exhaustive {
		guest = setup.boot(t)
	}
	for i, path := range paths {
		group := ldmforge.GroupID
		if i%5 == 0 {
			group = "03c0c4fc-8b6f-402b-9431-4be2e5823b1c"
		}
		g := readLDM(t, group, path)
		name := fmt.Sprintf("vd%c", 'a'+i)
		want, got := map[string]bool{}, map[string]bool{}
		for e, x := range g.extents {
			if d := g.disks[x.Disk]; d.Device == path {
				b := g.bytesOf(t, e)
				start := sha256.Sum256(fmt.Appendf(nil, "%d\n", d.DataStart+x.Start))
				want[fmt.Sprintf("%x at %x", sha256.Sum256(b), start)] = true
			}
		}
		require.NotEmpty(t, want)
		if guest == nil {
			continue
		}
		for _, part := range guest.ask(t, guestRequest{Op: "list", Path: "/sys/block/" + name}).Names {
			if strings.HasPrefix(part, name) {
				start := guest.ask(t, guestRequest{Op: "sum", Path: "/sys/block/" + name + "/" + part +
					"/start"}).Stdout
				got[guest.ask(t, guestRequest{Op: "sum", Path: "/dev/" + part}).Stdout+" at "+start] = true
			}
		}
		require.Equal(t, want, got, path)
	}
}
