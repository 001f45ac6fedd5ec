package align_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

func part(number int, off, length int64) align.Part {
	return align.Part{Number: number, Range: disk.Range{Off: off, Len: length}}
}

// vhd returns the map of a dynamic VHD like qemu-img's for a disk of 64 MiB: the footer's copy, the header and a table
// of one sector take 2048 bytes, and a sector of bitmap precedes each block of 2 MiB. Spec: Virtual Hard Disk Image
// Format 1.0.
func vhd(f *file) disk.Disk {
	const block, first = 2 << 20, 2048
	return disk.New(64*mib, 512, func(off int64) (disk.Run, error) {
		into := off % block
		return disk.Run{Len: block - into, Src: f, Off: first + off/block*(512+block) + 512 + into}, nil
	})
}

func TestAlignmentInTheFile(t *testing.T) {
	f := &file{size: tib}
	flat := func(off int64) disk.Disk { return mapped(disk.Run{Len: 64 * mib, Src: f, Off: off}) }
	for _, tc := range []struct {
		name string
		disk disk.Disk
		part align.Part
		want int64
	}{
		{"flat, partition at 1 MiB", flat(0), part(1, mib, mib), mib},
		{"flat, partition at LBA 63", flat(0), part(1, 63*512, mib), 512},
		{"flat, the whole disk", flat(0), part(1, 0, 64*mib), tib},
		{"extent at an offset in its file", flat(63 * 512), part(1, mib, mib), 512},
		{"an offset that makes good for the partition", flat(65 * 512), part(1, 63*512, mib), 64 * kib},
		{"dynamic vhd", vhd(f), part(1, mib, mib), 512},
		{"nothing stored", mapped(disk.Run{Len: mib, Src: f, Off: 512}, disk.Run{Len: 8 * mib}), part(1, mib, mib), 0},
		{"packed", mapped(disk.Run{Len: 8 * mib, Src: packed{}}), part(1, mib, mib), 0},
		{
			"a run that ends where the partition begins does not count",
			mapped(disk.Run{Len: mib, Src: f, Off: 512}, disk.Run{Len: mib, Src: f, Off: 8 * mib},
				disk.Run{Len: mib, Src: f, Off: 512}),
			part(1, mib, mib), 8 * mib,
		},
		{
			"the last sector counts",
			mapped(disk.Run{Len: mib, Src: f}, disk.Run{Len: mib, Src: f, Off: 8 * mib},
				disk.Run{Len: mib, Src: f, Off: 512}),
			part(1, mib, mib+512), 512,
		},
		{
			"one of many runs off",
			mapped(disk.Run{Len: mib, Src: f, Off: 64 * kib}, disk.Run{Len: mib, Src: f, Off: 9*mib + 4*kib}),
			part(1, 0, 2*mib), 4 * kib,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := look(t, tc.disk, false, tc.part)
			require.Len(t, u.Places, 1)
			require.Equal(t, tc.want, u.Places[0].Alignment())
		})
	}
}

// The definition, tested for every block: a multiple of the alignment within the partition is one in the file, and this
// is false for the next power of two. Runs are longer than any resulting alignment.
func TestAlignmentOfRandomFiles(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		f := &file{size: tib}
		unit := int64(512) << rnd.IntN(8)
		var parts []align.Part
		for i := range int64(2) {
			off := unit * rnd.Int64N(20)
			parts = append(parts, part(int(i), 5*i*mib+off, 4*mib-off)) // to the end of a run
		}
		var runs []disk.Run
		for range 10 {
			runs = append(runs, disk.Run{Len: mib, Src: f, Off: unit * (1 + rnd.Int64N(1000))})
		}
		u := look(t, mapped(runs...), false, parts[1], parts[0])
		for i, p := range parts {
			require.Equal(t, p, u.Places[i].Part, "in the order of the disk")
			a := u.Places[i].Alignment()
			require.True(t, holds(runs, p, a), "%d bytes", a)
			require.False(t, a < mib && holds(runs, p, 2*a), "%d bytes", 2*a)
		}
	}
}

// holds reports whether all multiples of n within a part are at multiples of n in the file. Runs are 1 MiB long.
func holds(runs []disk.Run, p align.Part, n int64) bool {
	for off := p.Off; off < p.End(); off += n {
		if r := runs[off/mib]; (r.Off+off%mib)%n != 0 {
			return false
		}
	}
	return true
}

func TestMisalignedContainersAreTold(t *testing.T) {
	f := &file{size: tib}
	mixed := mapped(disk.Run{Len: 2 * mib, Src: f, Off: 512}, disk.Run{Len: 62 * mib, Src: f, Off: 4*mib + 1024})
	for _, tc := range []struct {
		name   string
		disk   disk.Disk
		parts  []align.Part
		number int
		text   string
	}{
		{"flat", mapped(disk.Run{Len: 64 * mib, Src: f}), []align.Part{part(1, mib, mib)}, 0, ""},
		{
			"one partition in a vhd", vhd(f),
			[]align.Part{part(2, mib, mib)},
			2,
			"its blocks of 4 KiB lie 2560 bytes past a 4 KiB boundary of the file, although it starts on one of the " +
				"disk: " +
				"each touches two blocks of the storage instead of one",
		},
		{
			"one of two is misaligned itself", mapped(disk.Run{Len: 64 * mib, Src: f, Off: 1024}),
			[]align.Part{part(1, 63*512, mib), part(2, 2*mib, mib)},
			2,
			"its blocks of 4 KiB lie 1024 bytes past a 4 KiB boundary of the file",
		},
		{"the only one is misaligned itself", vhd(f), []align.Part{part(1, 63*512, mib)}, 0, ""},
		{
			"three", mapped(disk.Run{Len: 64 * mib, Src: f, Off: 1024}),
			[]align.Part{part(1, mib, mib), part(2, 2*mib, mib), part(5, 4*mib, mib)},
			0,
			"the 4 KiB blocks of partitions 1, 2 and 5 lie 1024 bytes past a 4 KiB boundary of the file, although " +
				"they start " +
				"on one",
		},
		{
			"at several distances", mixed,
			[]align.Part{part(1, mib, 9*mib)},
			1,
			"its blocks of 4 KiB lie off the 4 KiB boundaries of the file, although it starts on one of the disk: " +
				"most touch " +
				"two",
		},
		{
			"each at its own distance", mixed,
			[]align.Part{part(1, mib, mib), part(2, 2*mib, mib)},
			0,
			"the 4 KiB blocks of partitions 1 and 2 lie off the 4 KiB boundaries",
		},
		{"no partition", vhd(f), nil, 0, "its blocks of 4 KiB lie"},
		{"no partition, 8 KiB", mapped(disk.Run{Len: mib, Src: f, Off: 8 * kib}), nil, 0, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			issues := look(t, tc.disk, false, tc.parts...).Issues()
			if tc.text == "" {
				require.Empty(t, issues)
				return
			}
			require.Len(t, issues, 1)
			require.Equal(t, "container-misaligned", issues[0].Code)
			require.Equal(t, ondisk.Warn, issues[0].Effect)
			require.Equal(t, tc.number, issues[0].Partition)
			require.Contains(t, issues[0].Text, tc.text)
			require.Contains(t, issues[0].Remedy, "trueup convert")
		})
	}
}
