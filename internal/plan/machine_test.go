package plan_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/verify"
)

// The first partition of a Windows disk: a FAT with room for a hive.
const (
	windowsSectors = 20000
	hiveRoom       = 24 << 10
	oldest         = 63
)

// windowsVolume is a FAT with a file for a hive, at byte hive.
type windowsVolume struct {
	bytes []byte
	hive  int
}

func newWindowsVolume(t *testing.T) windowsVolume {
	t.Helper()
	return volumeWithHive(t, "WINDOWS", "SYSTEM32", "CONFIG", "SYSTEM")
}

// volumeWithHive has the file at a path, which is given by its elements.
func volumeWithHive(t *testing.T, path ...string) windowsVolume {
	t.Helper()
	dir := t.TempDir()
	volume, file := filepath.Join(dir, "fat"), filepath.Join(dir, "hive")
	mark := bytes.Repeat([]byte("the place of the hive. "), hiveRoom/23+1)[:hiveRoom]
	require.NoError(t, os.WriteFile(volume, make([]byte, windowsSectors*512), 0o600))
	require.NoError(t, os.WriteFile(file, mark, 0o600))
	disktest.Run(t, "mkfs.fat", "-F", "16", "-h", fmt.Sprint(oldest), volume)
	folder := "::"
	for _, name := range path[:len(path)-1] {
		folder += "/" + name
		disktest.Run(t, "mmd", "-i", volume, folder)
	}
	disktest.Run(t, "mcopy", "-i", volume, file, folder+"/"+path[len(path)-1])
	b := disktest.ReadFile(t, volume)
	w := windowsVolume{b, bytes.Index(b, mark)}
	require.Positive(t, w.hive, "the file lies in one piece")
	return w
}

// with returns the volume with a hive with letters.
func (w windowsVolume) with(t require.TestingT, dirty bool, letters map[string]boot.Place) []byte {
	var values []hiveforge.Value
	for _, letter := range slices.Sorted(maps.Keys(letters)) {
		at := letters[letter]
		data := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, at.Disk), ondisk.U64(at.Off))
		values = append(values, hiveforge.Value{Name: `\DosDevices\` + letter + ":", Type: 3, Data: data})
	}
	return w.put(t, dirty,
		hiveforge.Key{
			Name: "SYSTEM",
			Keys: []hiveforge.Key{{Name: "MountedDevices", Values: values}, {Name: "Select"}},
		})
}

// put returns the volume with a hive.
func (w windowsVolume) put(t require.TestingT, dirty bool, root hiveforge.Key) []byte {
	hive := hiveforge.New(3, root)
	require.LessOrEqual(t, len(hive), hiveRoom)
	if dirty {
		hive.U32(hiveforge.Sequence2, 6)
		hiveforge.Seal(hive)
	}
	b := slices.Clone(w.bytes)
	clear(b[w.hive : w.hive+hiveRoom])
	copy(b[w.hive:], hive)
	return b
}

// systemDisk returns an MBR disk whose first partition contains a Windows with drive letters.
func systemDisk(signature uint32, volume []byte, more ...tableforge.Slot) forge.Bytes {
	entries := append([]tableforge.Slot{{Type: 6, Start: oldest, Sectors: windowsSectors}}, more...)
	f := dataDisk(signature, entries...)
	f.Put(oldest*512, volume)
	return f
}

// dataDisk returns an MBR disk with a signature, and room after its last partition.
func dataDisk(signature uint32, entries ...tableforge.Slot) forge.Bytes {
	last := entries[len(entries)-1]
	f := tableforge.NewMBR(int(last.Start+last.Sectors)+8192, entries...)
	f.U32(tableforge.MBRSignature, signature)
	return f
}

// machineDisk is a disk of a machine and its plan.
type machineDisk struct {
	disk   disk.Disk
	layout *layout.Layout
	plan   *plan.Plan
}

// planMachine plans the disks of a machine together.
func planMachine(t require.TestingT, disks ...forge.Bytes) []machineDisk {
	m := &layout.Machine{}
	var out []machineDisk
	for _, f := range disks {
		d := disktest.Memory(f)
		l := read(t, d)
		require.NoError(t, l.ReadGaps(d))
		p := newPlan(t, l, align.GoalFor(l, align.Boundary{}))
		m.Add(l, p.Starts())
		out = append(out, machineDisk{d, l, p})
	}
	for _, x := range out {
		x.layout.Relate(m)
		x.plan.Join(x.layout, m)
	}
	return out
}

func (x machineDisk) codes() []string {
	out := []string{}
	for _, f := range x.plan.Notes {
		if f.Effect >= ondisk.Warn {
			out = append(out, f.Code)
		}
	}
	return out
}

// letters returns the drive letters in the hive of a disk.
func letters(l *layout.Layout) map[string]boot.Place {
	out := map[string]boot.Place{}
	for _, r := range l.Boot.Refs {
		letter, ok := strings.CutPrefix(r.Kind, "drive letter ")
		if ok && r.Disk == 0 {
			out[letter[:1]] = boot.Place{Disk: l.Table.Signature, Off: r.Points}
		} else if ok {
			out[letter[:1]] = r.Names()
		}
	}
	return out
}

// at is a place on a disk, in sectors.
func at(disk uint32, lba int64) boot.Place { return boot.Place{Disk: disk, Off: lba * 512} }

const (
	sysSignature = 0xa1a1a1a1
	datSignature = 0xb2b2b2b2
)

// The letters of a machine with two disks follow the partitions of both.
func TestLettersFollowPartitionsOfAnotherDisk(t *testing.T) {
	hive := newWindowsVolume(t).with(t, false, map[string]boot.Place{
		"C": at(sysSignature, oldest), "D": at(datSignature, 63), "E": at(datSignature, 10063),
		"F": at(datSignature, 5000), "G": at(0xc3c3c3c3, 63),
	})
	sys := systemDisk(sysSignature, hive)
	dat := dataDisk(datSignature, slot(7, 63, 9000), slot(7, 10063, 9000))
	fsforge.PutNTFS(dat, 63, 9000)
	got := planMachine(t, sys, dat)
	after := read(t, got[0].plan.View(got[0].disk))
	require.Equal(t, map[string]boot.Place{
		"C": at(sysSignature, 2048), "D": at(datSignature, 2048), "E": at(datSignature, 12288),
		"F": at(datSignature, 5000), "G": at(0xc3c3c3c3, 63),
	}, letters(after))
	require.NoError(t, verify.Promise(got[0].plan, got[0].layout, after))
	require.NotContains(t, got[1].codes(), layout.KnownElsewhere, "the system that may know it is here")
	require.Contains(t, got[0].codes(), layout.NamesOthers, "G: is on a disk that is not here")

	alone := planMachine(t, dat)
	require.Contains(t, alone[0].codes(), layout.KnownElsewhere)
	require.Contains(t, planMachine(t, sys)[0].codes(), layout.NamesOthers)
}

// Two disks with one signature, a dirty hive, a place that another partition gets: nothing is rewritten, with a
// warning.
func TestLettersThatCannotFollow(t *testing.T) {
	volume := newWindowsVolume(t)
	dat := dataDisk(datSignature, slot(7, 63, 9000))
	aligned := dataDisk(datSignature, slot(7, 2048, 9000))
	names := func(dirty bool, lba int64) []byte {
		return volume.with(t, dirty, map[string]boot.Place{"D": at(datSignature, lba)})
	}
	for name, c := range map[string]struct {
		sys   []byte
		disks []forge.Bytes
		codes []string
	}{
		"two of one signature":      {names(false, 63), []forge.Bytes{dat, dat}, []string{"other-disk"}},
		"a dirty hive":              {names(true, 63), []forge.Bytes{dat}, []string{"mounted-devices", "other-disk"}},
		"a place that a move fills": {names(false, 2048), []forge.Bytes{dat}, []string{"other-disk"}},
		"aligned without this disk": {names(false, 63), []forge.Bytes{aligned}, []string{"no-partition-there"}},
		"a dirty hive, and a place that is none": {
			names(true, 5000), []forge.Bytes{dat}, []string{"mounted-devices", "no-partition-there"},
		},
		"two of one signature that stay": {names(false, 2048), []forge.Bytes{aligned, aligned}, []string{}},
		"nothing moves on the other":     {names(true, 2048), []forge.Bytes{aligned}, []string{"mounted-devices"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := planMachine(t, append([]forge.Bytes{systemDisk(sysSignature, c.sys)}, c.disks...)...)[0]
			require.Equal(t, c.codes, x.codes())
			require.Equal(t, letters(x.layout), letters(read(t, x.plan.View(x.disk))))
			require.Empty(t, x.plan.Refusals(false), "a letter is no boot")
		})
	}
}

// A message about other disks names the first place, counts the others, appears once and is bounded.
func TestManyLettersThatCannotFollow(t *testing.T) {
	volume := newWindowsVolume(t)
	dat := dataDisk(datSignature, slot(7, 63, 9000))
	x := planMachine(t, systemDisk(sysSignature, volume.with(t, false, map[string]boot.Place{
		"D": at(datSignature, 5000), "E": at(datSignature, 6000),
	})), dat)[0]
	i := slices.IndexFunc(x.plan.Notes, func(f align.Finding) bool { return f.Code == "no-partition-there" })
	require.Contains(t, x.plan.Notes[i].Text, "drive letter D:")
	require.Contains(t, x.plan.Notes[i].Text, "where no partition starts (and 1 more): it is not changed")

	x = planMachine(t, systemDisk(sysSignature,
		volume.with(t, false, map[string]boot.Place{"D": at(datSignature, 63)})), dat)[0]
	for _, now := range x.plan.References(x.layout) {
		require.True(t, now.Disk == 0 || now.Stays == "", "what follows stays no more")
	}
	x = planMachine(t, systemDisk(sysSignature,
		volume.with(t, true, map[string]boot.Place{"D": at(datSignature, 63)})), dat)[0]
	r := x.layout.Boot.Refs[slices.IndexFunc(x.layout.Boot.Refs, func(r boot.Ref) bool { return r.Disk != 0 })]
	require.NotEmpty(t, r.Stays)
	for _, now := range x.plan.References(x.layout) {
		require.True(t, now.Disk == 0 || now.Stays == r.Stays, "what cannot be rewritten keeps its reason")
	}
	m := &layout.Machine{}
	l := read(t, x.disk)
	p := newPlan(t, l, align.GoalFor(l, align.Boundary{}))
	m.Add(l, p.Starts())
	other := read(t, disktest.Memory(dat))
	m.Add(other, map[int]int64{1: 1 << 20})
	l.Boot.Refs = append(l.Boot.Refs, r)
	for n := range 20 {
		r.Kind = fmt.Sprintf("letter %d", n)
		l.Boot.Refs = append(l.Boot.Refs, r)
	}
	p.Join(l, m)
	texts := map[string]int{}
	for _, f := range p.Notes {
		if f.Code == "other-disk" {
			texts[f.Text]++
		}
	}
	require.Len(t, texts, 16)
	for text, n := range texts {
		require.Equal(t, 1, n, text)
	}
}

// bootEntry returns a BCD whose loader starts a Windows at a position.
func bootEntry(at boot.Place) hiveforge.Key {
	device := make(forge.Bytes, 16+0x48) // after a GUID. Source: BCD-SYS, Linux/update_device.sh
	device.U32(16, 6)
	device.U32(16+8, 0x48)
	device.U64(16+0x10, ondisk.U64(at.Off))
	device.U32(16+0x24, 1)
	device.U32(16+0x28, at.Disk)
	element := hiveforge.Key{Name: "21000001", Values: []hiveforge.Value{{Name: "Element", Type: 3, Data: device}}}
	object := hiveforge.Key{
		Name: "{9dea862c-5cdd-4e70-acc1-f32b344d4795}",
		Keys: []hiveforge.Key{{Name: "Elements", Keys: []hiveforge.Key{element}}},
	}
	return hiveforge.Key{
		Name: "NewStoreRoot",
		Keys: []hiveforge.Key{{Name: "Objects", Keys: []hiveforge.Key{object}}},
	}
}

// A boot manager finds a Windows on another disk by its position. An entry that cannot be updated refuses the copy,
// because that Windows would not start.
func TestABootEntryFollowsToAnotherDisk(t *testing.T) {
	volume := volumeWithHive(t, "BOOT", "BCD")
	place := at(datSignature, 63)
	dat := dataDisk(datSignature, slot(7, 63, 9000))
	x := planMachine(t, systemDisk(sysSignature, volume.put(t, false, bootEntry(place))), dat)[0]
	refs := read(t, x.plan.View(x.disk)).Boot.Refs
	require.Equal(t, at(datSignature, 2048), refs[0].Names())
	require.Empty(t, x.plan.Refusals(false))

	x = planMachine(t, systemDisk(sysSignature, volume.put(t, true, bootEntry(place))), dat)[0]
	require.Len(t, x.plan.Refusals(false), 1)
	require.Equal(t, "other-disk", x.plan.Refusals(false)[0].Code)
	require.Empty(t, x.plan.Refusals(true))
}

// On a disk that stays, only the positions of another disk change.
func TestAnAlignedDiskNamesTheNewPlaces(t *testing.T) {
	volume := newWindowsVolume(t)
	b := volume.with(t, false, map[string]boot.Place{"D": at(datSignature, 63)})
	sys := dataDisk(sysSignature, slot(6, 2048, windowsSectors))
	sys.Put(2048*512, b)
	dat := dataDisk(datSignature, slot(7, 63, 9000))
	x := planMachine(t, sys, dat)[0]
	require.Empty(t, x.plan.Moves)
	require.True(t, x.plan.Renames)
	require.False(t, x.plan.Idle())
	require.Len(t, x.plan.Patches, 1)
	require.Equal(t, map[string]boot.Place{"D": at(datSignature, 2048)},
		letters(read(t, x.plan.View(x.disk))))
	require.False(t, planMachine(t, sys)[0].plan.Renames)

	// Positions of its own partitions do not hide that.
	own := volume.with(t, false, map[string]boot.Place{
		"C": at(datSignature, 63),
		"D": at(sysSignature, oldest),
	})
	x = planMachine(t, systemDisk(sysSignature, own), dat)[0]
	require.True(t, x.plan.Renames)
}

// For any disks of a machine, a letter means the same partition before and after.
func TestMachinesKeepTheirLetters(t *testing.T) {
	volume := newWindowsVolume(t)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "disks")
		parts := make([][]tableforge.Slot, n)
		which := map[boot.Place]string{} // which partition starts there
		var places []boot.Place
		for i := range parts {
			next := uint32(oldest)
			if i == 0 {
				next += windowsSectors + 1
				places = append(places, at(1, oldest))
			}
			for k := range rapid.IntRange(1, 3).Draw(t, "partitions") {
				start := next + rapid.Uint32Range(0, 5000).Draw(t, "gap")
				sectors := rapid.Uint32Range(100, 5000).Draw(t, "sectors")
				parts[i] = append(parts[i], slot(7, start, sectors))
				places = append(places, boot.Place{Disk: uint32(i + 1), Off: int64(start) * 512})
				next = start + sectors + uint32(k)
			}
		}
		for i, p := range places {
			which[p] = fmt.Sprint(i)
		}
		named := map[string]boot.Place{}
		for _, letter := range "CDEFGH" {
			named[string(letter)] = rapid.SampledFrom(places).Draw(t, "place")
		}
		disks := []forge.Bytes{systemDisk(1, volume.with(t, false, named), parts[0]...)}
		for i, p := range parts[1:] {
			disks = append(disks, dataDisk(uint32(i+2), p...))
		}
		got := planMachine(t, disks...)
		now := map[boot.Place]string{}
		for _, x := range got {
			for _, p := range read(t, x.plan.View(x.disk)).Partitions {
				was, _ := x.layout.Partition(p.Number)
				signature := x.layout.Table.Signature
				now[boot.Place{Disk: signature, Off: p.Off}] = which[boot.Place{Disk: signature, Off: was.Off}]
			}
		}
		after := letters(read(t, got[0].plan.View(got[0].disk)))
		for letter, was := range named {
			require.Equal(t, which[was], now[after[letter]], "%s: was %v and is %v", letter, was, after[letter])
		}
	})
}

// An aligned dynamic disk is copied unchanged, and no other is moved, with any flags.
func TestDynamicDisks(t *testing.T) {
	t.Parallel()
	const sectors = 16384
	for name, c := range map[string]struct {
		start, ntfs int64
		verdict     align.Verdict
		action      align.Action
	}{
		"aligned":                {2048, 0, align.Aligned, align.Nothing},
		"Windows Server 2008":    {63, 2048, align.Aligned, align.Nothing},
		"Windows 2000":           {63, 63, align.Misaligned, align.Refused},
		"volumes without a sign": {63, 0, align.Misaligned, align.Refused},
	} {
		f := tableforge.NewMBR(sectors, slot(0x42, uint32(c.start), 9000))
		if c.ntfs > 0 {
			fsforge.PutNTFS(f, c.ntfs, 4000)
		}
		l := read(t, disktest.Memory(f))
		require.Equal(t, c.verdict, align.Overall(l, align.DefaultBoundary), name)
		p := newPlan(t, l, align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary})
		a := align.For(l, align.Case{
			Boundary: align.DefaultBoundary, Storage: align.Generic(), Refusals: p.Refusals(false),
		})
		require.Equal(t, c.action, a.Action, name)
		if c.action == align.Refused {
			p.Grow(l, 2*l.Size)
			require.Equal(t, []string{"ldm"}, codes(p.Refusals(true)), name)
			continue
		}
		require.True(t, p.Idle() && len(p.Refusals(false)) == 0, name)
		require.Equal(t, []byte(f), disktest.Head(t, p.View(disktest.Memory(f)), p.Size), name)
	}
}
