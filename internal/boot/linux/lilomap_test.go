package linux_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/liloforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// liloDisk is a disk with an ext for LILO at LBA 63.
type liloDisk struct {
	bytes                forge.Bytes
	file, kernel, initrd []int64 // LBAs of the map, a kernel and an initial RAM disk
	initrdLen            int64
}

const (
	liloStart = 63
	liloParts = 2048 // sectors of each partition
)

// liloFiles are files whose sectors all differ.
var liloFiles = sync.OnceValue(func() map[string]string {
	r := rand.New(rand.NewPCG(5, 6))
	files := map[string]string{}
	for name, size := range map[string]int{"boot/map": 80 << 10, "boot/vmlinuz": 90_000, "boot/initrd.img": 33_333} {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		files[name] = string(b)
	}
	return files
})

// newLiloDisk makes a disk with mke2fs, with files for LILO. rename has pairs of old and new parts of their names.
func newLiloDisk(t testing.TB, rename ...string) liloDisk {
	t.Helper()
	d := liloDisk{bytes: tableforge.NewMBR(5000,
		tableforge.Slot{Type: 0x83, Flag: 0x80, Start: liloStart, Sectors: liloParts},
		tableforge.Slot{Type: 0x83, Start: 2300, Sectors: liloParts})}
	d.bytes.U32(0x1b8, linuxID)
	files := map[string]string{}
	for name, text := range liloFiles() {
		files[strings.NewReplacer(rename...).Replace(name)] = text
	}
	d.bytes.Put(liloStart*512, extOf(t, "ext2", bootFS, files))
	at := map[string]int64{}
	for lba := int64(liloStart); lba < liloStart+liloParts; lba++ {
		at[string(d.bytes[lba*512:][:512])] = lba
	}
	sectors := func(name string) (out []int64) {
		for b := range slices.Chunk([]byte(liloFiles()[name]), 512) {
			out = append(out, at[string(append(b, make([]byte, 512-len(b))...))])
		}
		return out
	}
	d.file, d.kernel, d.initrd = sectors("boot/map"), sectors("boot/vmlinuz"), sectors("boot/initrd.img")
	d.initrdLen = int64(len(liloFiles()["boot/initrd.img"]))
	require.NotContains(t, slices.Concat(d.file, d.kernel, d.initrd), int64(0))
	return d
}

// install returns an installation with two kernels, one with an initial RAM disk, and an alias.
func (d liloDisk) install() liloforge.Install {
	return liloforge.New(
		d.file,
		liloforge.Image{
			Name: "Linux", Kernel: d.kernel, Initrd: d.initrd, InitrdLen: d.initrdLen, Setup: 15,
			Flags: liloforge.Modern,
		},
		liloforge.Image{Name: "new", Alias: true, InitrdLen: d.initrdLen, Flags: liloforge.Modern},
		liloforge.Image{
			Name: "old", Kernel: slices.Concat(d.kernel[40:], []int64{liloforge.Hole}, d.kernel[:30]), Setup: 4,
			Flags: liloforge.Kernel,
		},
	)
}

// moved returns the disk with its first partition moved by sectors, and patched references.
func (d liloDisk) moved(t testing.TB, refs []boot.Ref, by int64) forge.Bytes {
	t.Helper()
	out := make(forge.Bytes, len(d.bytes))
	copy(out, d.bytes[:liloStart*512])
	copy(out[(liloStart+by)*512:], d.bytes[liloStart*512:(liloStart+liloParts)*512])
	for _, r := range refs {
		require.True(t, r.Follows(), r.Name())
		require.Equal(t, 1, r.Target)
		shift := int64(0)
		if r.Partition == 1 {
			shift = by * 512
		}
		patches, err := r.Patches(shift, r.Points+by*512)
		require.NoError(t, err, r.Name())
		for _, p := range patches {
			require.Equal(t, p.Old, []byte(out[p.Off:][:len(p.Old)]), r.Name())
			out.Put(p.Off, p.New)
		}
	}
	return out
}

func further(lbas []int64, by int64) []int64 {
	out := slices.Clone(lbas)
	for i := range out {
		if out[i] != liloforge.Hole {
			out[i] += by
		}
	}
	return out
}

// TestLiloMoves compares a moved LILO with the output of its installer at the new place.
func TestLiloMoves(t *testing.T) {
	for name, tc := range map[string]struct {
		home   int64
		change func(i *liloforge.Install)
	}{
		"by lba":                {},
		"in a boot sector":      {home: liloStart},
		"compact":               {change: func(i *liloforge.Install) { i.Compact = true }},
		"linear":                {change: func(i *liloforge.Install) { i.Mode = liloforge.Linear }},
		"linear and compact":    {change: func(i *liloforge.Install) { i.Mode, i.Compact = liloforge.Linear, true }},
		"22.6":                  {change: func(i *liloforge.Install) { i.Version = 0x0616 }},
		"short passwords":       {change: func(i *liloforge.Install) { i.Password = 8 }},
		"one sector of kernels": {change: func(i *liloforge.Install) { i.Table = 1 }},
		"many sectors of them":  {change: func(i *liloforge.Install) { i.Table = 12 }},
		"a message":             {change: func(i *liloforge.Install) { i.Message = strings.Repeat("Welcome. ", 700) }},
		"a kernel and no more":  {change: func(i *liloforge.Install) { i.Images = i.Images[2:] }},
		"a table that is full": {change: func(i *liloforge.Install) {
			i.Table, i.Images = 1, slices.Repeat(i.Images[1:2], 9)
			i.Images[0] = full(i)
		}},
		"pages that end exactly": {
			change: func(i *liloforge.Install) {
				i.Images = i.Images[2:]
				i.Images[0].Kernel = i.Images[0].Kernel[:99]
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newLiloDisk(t)
			i := d.install()
			if tc.change != nil {
				tc.change(&i)
			}
			i.Put(d.bytes, tc.home)
			g := liloGuest(t, d.bytes)
			r := boottest.ReadGuest(t, g)
			require.Equal(t, linux.Lilo, lilosCode(r, tc.home, g))
			require.Empty(t, boottest.Issues(r, "lilo"))
			for _, by := range []int64{1985, 1, -3, 2600} {
				was := d.moved(t, r.Refs, by)
				now := slices.Clone(was)
				i := i
				i.Map, i.Images = further(i.Map, by), slices.Clone(i.Images)
				for k := range i.Images {
					i.Images[k].Kernel, i.Images[k].Initrd = further(i.Images[k].Kernel, by),
						further(i.Images[k].Initrd, by)
					if len(i.Images[k].Initrd) == 0 {
						i.Images[k].Initrd = nil
					}
				}
				home := tc.home
				if home != 0 {
					home += by
				}
				i.Put(now, home)
				require.True(t, bytes.Equal(was, now), by)
			}
		})
	}
}

// full is a kernel whose aliases fill a table of one sector.
func full(i *liloforge.Install) liloforge.Image {
	return liloforge.Image{
		Name: "full", Kernel: i.Map[100:110], Initrd: i.Map[110:120], InitrdLen: 5000,
		Flags: liloforge.Modern,
	}
}

func lilosCode(r *boot.Result, home int64, g *boot.Guest) *boot.Code {
	if home == 0 {
		return r.Code
	}
	c, _, _ := g.Area(g.Partitions[0])
	return c
}

func liloGuest(t testing.TB, b []byte) *boot.Guest {
	t.Helper()
	const size = 60_000 * 512 // the BIOS may not reach the last cylinders
	d := disk.New(size, 512, func(off int64) (disk.Run, error) {
		if off < int64(len(b)) {
			return disk.Run{Len: int64(len(b)) - off, Src: bytes.NewReader(b), Off: off}, nil
		}
		return disk.Run{Len: size - off}, nil
	})
	tab, parts := boottest.Partitions(t, d)
	return boottest.Guest(d, tab, parts)
}

func TestLiloIsListed(t *testing.T) {
	d := newLiloDisk(t)
	d.install().Put(d.bytes, 0)
	r := boottest.Read(t, d.bytes)
	require.Equal(t, []string{
		`LILO 24.2 in the MBR loads its second stage from "boot/map" of partition 1, by LBA`,
		`the map of LILO has kernel "Linux", 178 sectors, and an initial RAM disk of 66`,
		`the map of LILO has kernel "old", 169 sectors`,
	}, boottest.Texts(r.Chain)[:3])
	require.True(t, r.Boots(1))
	var names []string
	for _, ref := range r.Refs {
		names = append(names, ref.Name())
		_, err := ref.Encode(ref.Raw, ref.Points+100)
		require.ErrorIs(t, err, ondisk.ErrLimit, ref.Name())
		_, err = ref.Encode(ref.Raw, ref.Points+1<<50)
		require.Error(t, err, ref.Name())
	}
	require.Equal(t, []string{
		"LILO pointer to the list of its second stage",
		`LILO list of its second stage in "boot/map" of partition 1`,
		`LILO pointer to its parameters in "boot/map" of partition 1`,
		`LILO parameters in "boot/map" of partition 1`,
		`LILO list of sectors of kernel "Linux" in "boot/map" of partition 1`,
		`LILO list of sectors of the initial RAM disk of "Linux" in "boot/map" of partition 1`,
		`LILO list of sectors of kernel "old" in "boot/map" of partition 1`,
		`LILO table of kernels in "boot/map" of partition 1`,
	}, names)
}

// Positions in the map of New.
const (
	liloFileList   = 17 // its sector with the list of the second stage
	liloFileStage  = 5
	liloFileTable  = 1
	liloFileKernel = 20 // the first list of sectors
)

func requireLiloRefused(t *testing.T, g *boot.Guest, says string) {
	t.Helper()
	r := boottest.ReadGuest(t, g)
	require.Empty(t, r.Refs, "all or nothing")
	issues := boottest.Issues(r, "lilo")
	require.Len(t, issues, 1)
	require.Equal(t, ondisk.Unbootable, issues[0].Effect)
	require.True(t, issues[0].OnMove)
	require.Zero(t, issues[0].Partition)
	require.Contains(t, issues[0].Text, says)
	require.Contains(t, r.Chain[0].Text, "loads a kernel by absolute sectors")
}

// LILO reads sectors of 512 bytes.
func TestLiloOnLargeSectors(t *testing.T) {
	d := newLiloDisk(t)
	d.install().Put(d.bytes, 0)
	g := liloGuest(t, d.bytes)
	g.Disk = boottest.DiskOf(d.bytes[:len(d.bytes)/4096*4096], 4096)
	requireLiloRefused(t, g, "it supports only sectors of 512 bytes, but the disk has sectors of 4096")
}

func TestLiloOfAnotherMap(t *testing.T) {
	d := newLiloDisk(t, "boot/map", "boot/other")
	d.install().Put(d.bytes, 0)
	requireLiloRefused(t, liloGuest(t, d.bytes), fmt.Sprintf("at LBA %d, is in no file /boot/map of partition 1",
		d.file[liloFileList]))
	d = newLiloDisk(t, "boot/map", "map")
	d.install().Put(d.bytes, 0)
	r := boottest.Read(t, d.bytes)
	require.Empty(t, r.Issues)
	require.Len(t, r.Refs, 8)
}

// An unreadable sector of LILO, its map or its boot chain is never mistaken for data.
func TestBadSectorsUnderLilo(t *testing.T) {
	for name, change := range map[string]func(i *liloforge.Install){
		"linear":  func(i *liloforge.Install) { i.Mode, i.Table = liloforge.Linear, 12 },
		"compact": func(i *liloforge.Install) { i.Compact, i.Message = true, strings.Repeat("Welcome. ", 700) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newLiloDisk(t)
			i := d.install()
			change(&i)
			i.Put(d.bytes, 0)
			boottest.EveryBadSector(t, liloGuest(t, d.bytes))
		})
	}
}

// TestLiloLeftOver warns of a LILO that the code in sector 0 does not start.
func TestLiloLeftOver(t *testing.T) {
	d := newLiloDisk(t)
	i := d.install()
	i.Mode = liloforge.Geometry
	i.Put(d.bytes, liloStart)
	d.bytes[tableforge.MBREntries] = 0 // not active
	r := boottest.Read(t, d.bytes)
	issues := boottest.Issues(r, "lilo")
	require.Len(t, issues, 1)
	require.Equal(t, ondisk.Warn, issues[0].Effect)
	require.Contains(t, issues[0].Text, "does not read that boot sector")
}

// TestLiloOutOfReach requires that LILO addresses out of a BIOS's reach prevent only a move of their partition. If
// nothing boots by that LILO, the move only gets a warning.
func TestLiloOutOfReach(t *testing.T) {
	for home, want := range map[int64]ondisk.Effect{0: ondisk.Unbootable, liloStart: ondisk.Warn} {
		d := newLiloDisk(t)
		i := d.install()
		i.Mode = liloforge.Linear
		i.Put(d.bytes, home)
		d.bytes[tableforge.MBREntries] = 0 // not active
		r := boottest.Read(t, d.bytes)     // the disk has less than three cylinders
		require.Empty(t, r.Refs)
		issues := boottest.Issues(r, "lilo")
		require.Len(t, issues, 1)
		require.Equal(t, want, issues[0].Effect)
		require.True(t, issues[0].OnMove)
		require.Equal(t, 1, issues[0].Partition)
		require.Contains(t, issues[0].Text, "a BIOS may not reach it")
	}
}

// FuzzLiloMap reads any sectors of a map in place of part of a valid one.
func FuzzLiloMap(f *testing.F) {
	d := newLiloDisk(f)
	i := d.install()
	i.Compact = true
	used := i.Put(d.bytes, 0)
	for _, sector := range []int64{liloFileStage, liloFileList, liloFileTable, liloFileKernel, int64(used - 1)} {
		f.Add(byte(sector), uint16(0), []byte(d.bytes[d.file[sector]*512:][:512]), false)
	}
	f.Add(byte(0), uint16(30), []byte{0x80, 0x60, 9, 9}, true)
	f.Fuzz(func(t *testing.T, sector byte, off uint16, b []byte, mbr bool) {
		disk := slices.Clone(d.bytes)
		part := disk[d.file[int(sector)%used]*512:][:512]
		if mbr {
			part = disk[:boot.CodeLen]
		}
		copy(part[int(off)%len(part):], b)
		// Checksums, which a fuzzer cannot guess.
		params := d.file[used-1] * 512
		disk.U32(params+504, liloforge.Sum(disk[params:params+504]))
		var table []byte
		for k := range 3 {
			table = append(table, disk[d.file[1+k]*512:][:512]...)
		}
		disk.U32(d.file[3]*512+508, liloforge.Sum(table[:3*512-4]))
		g := liloGuest(t, disk)
		r := boottest.ReadGuest(t, g)
		for _, ref := range r.Refs {
			require.True(t, ref.Follows() || ref.Stays != "")
			if ref.Encode != nil && ref.Target != 0 {
				same, err := ref.Encode(ref.Raw, ref.Points)
				require.NoError(t, err)
				require.Equal(t, ref.Raw, same)
				_, _ = ref.Encode(ref.Raw, ref.Points+1985*512)
			}
		}
	})
}
