package verify_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/verify"
)

// unexplained compares two disks that have nothing but bytes in common.
func unexplained(t *testing.T, was, is forge.Bytes) []verify.Difference {
	t.Helper()
	r := verify.Result{Source: disktest.Memory(was), Dest: disktest.Memory(is)}
	r.Base, r.Before, r.After = r.Source, readLayout(t, r.Source), readLayout(t, r.Dest)
	found, err := r.Unexplained()
	require.NoError(t, err)
	return found
}

// A copy of a GPT that replaces what is no part of a GPT is a difference that nothing explains, whoever wrote it; one
// that replaces zeros or a damaged entry is explained, and so is nothing beside it.
func TestMendedCopiesAreExplained(t *testing.T) {
	const sectors, last = 8192, 8191 * 512
	sound := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 8000, Name: "one"})
	at := func(header int64) int64 {
		return int64(binary.LittleEndian.Uint64(sound[header+tableforge.GPTEntriesLBA:])) * 512
	}
	for name, c := range map[string]struct {
		damage func(f forge.Bytes)
		lost   int64 // the first byte that nothing explains; 0: none
	}{
		"a wiped primary":            {func(f forge.Bytes) { clear(f[512:1024]) }, 0},
		"a wiped backup":             {func(f forge.Bytes) { clear(f[last : last+512]) }, 0},
		"a wrong bit":                {func(f forge.Bytes) { f[at(512)+70] ^= 1 }, 0},
		"no protective MBR":          {func(f forge.Bytes) { clear(f[446:512]) }, 0},
		"a loader in unused entries": {func(f forge.Bytes) { f.Text(at(512)+0x1000, "loader") }, at(512) + 0x1000},
		"a superblock at the end":    {func(f forge.Bytes) { copy(f[last:], slices.Repeat([]byte{7}, 92)) }, last},
		"a header of another disk": {func(f forge.Bytes) {
			f.Text(last+tableforge.GPTDiskGUID, "another disk guid")
		}, last + tableforge.GPTDiskGUID},
		"text behind a header": {func(f forge.Bytes) { f.Text(512+100, "text") }, 512 + 100},
		"data in a gap":        {func(f forge.Bytes) { f.Text(1000*512, "core.img") }, 1000 * 512},
		"data in a partition":  {func(f forge.Bytes) { f.Text(3000*512, "file") }, 3000 * 512},
		"boot code":            {func(f forge.Bytes) { f.Text(100, "code") }, 100},
		"another slot": {func(f forge.Bytes) {
			tableforge.PutSlot(f, 0, 3, tableforge.Slot{Type: 0xee, Start: 8000, Sectors: 9})
		}, 446 + 3*16 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := slices.Clone(sound)
			c.damage(f)
			found := unexplained(t, f, sound)
			if c.lost == 0 {
				require.Empty(t, found)
				return
			}
			require.NotEmpty(t, found)
			require.Equal(t, c.lost, found[0].Off)
		})
	}
}

// The bytes of an entry after its 128 defined ones are reserved: what is there is no part of a damaged entry. Spec:
// UEFI 2.10, 5.3.3.
func TestReservedBytesOfEntriesAreNotExplained(t *testing.T) {
	const sectors, last, array = 8192, 8191 * 512, 2 * 512
	sound := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 8000, Name: "one"})
	for _, at := range []int64{512, last} {
		sound.U32(at+tableforge.GPTNumEntries, 64)
		sound.U32(at+tableforge.GPTEntrySize, 256)
		tableforge.SealGPT(sound, at, 512)
	}
	f := slices.Clone(sound)
	f[array+70] ^= 1
	require.Empty(t, unexplained(t, f, sound))
	f.Text(array+200, "loader")
	found := unexplained(t, f, sound)
	require.NotEmpty(t, found)
	require.Contains(t, []int64{array + 70, array + 200}, found[0].Off)
}

// A header with right sums that says what cannot be is a damaged one: its copy is explained as that of any other, and
// what else stands among its entries is not.
func TestMendedClaimsAreExplained(t *testing.T) {
	const sectors, last = 8192, 8191 * 512
	sound := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 8000, Name: "one"})
	for name, claim := range map[string]func(h forge.Bytes){
		"no entries":         func(h forge.Bytes) { h.U32(tableforge.GPTNumEntries, 0) },
		"too many entries":   func(h forge.Bytes) { h.U32(tableforge.GPTNumEntries, 16_385) },
		"entries of 129":     func(h forge.Bytes) { h.U32(tableforge.GPTEntrySize, 129) },
		"entries of 384":     func(h forge.Bytes) { h.U32(tableforge.GPTEntrySize, 384) },
		"entries at LBA 0":   func(h forge.Bytes) { h.U64(tableforge.GPTEntriesLBA, 0) },
		"entries at LBA 1":   func(h forge.Bytes) { h.U64(tableforge.GPTEntriesLBA, 1) },
		"entries in a gap":   func(h forge.Bytes) { h.U64(tableforge.GPTEntriesLBA, 1000) },
		"nothing usable":     func(h forge.Bytes) { h.U64(tableforge.GPTFirstUsable, sectors-33) },
		"usable from no LBA": func(h forge.Bytes) { h.U64(tableforge.GPTFirstUsable, 1<<64-1) },
		"usable to no LBA":   func(h forge.Bytes) { h.U64(tableforge.GPTLastUsable, 1<<64-1) },
	} {
		for _, header := range []int64{512, last} {
			t.Run(fmt.Sprintf("%s, header at %d", name, header), func(t *testing.T) {
				f := slices.Clone(sound)
				array := int64(binary.LittleEndian.Uint64(f[header+tableforge.GPTEntriesLBA:])) * 512
				claim(f[header:])
				tableforge.SealGPT(f, header, 512)
				require.Empty(t, unexplained(t, f, sound))
				f.U8(array+32, f[array+32]^1) // the entry is damaged as well
				tableforge.SealGPT(f, header, 512)
				require.Empty(t, unexplained(t, f, sound))
				f.Text(array+0x1000, "loader")
				tableforge.SealGPT(f, header, 512)
				found := unexplained(t, f, sound)
				require.NotEmpty(t, found)
				require.Equal(t, array+0x1000, found[0].Off)
			})
		}
	}
}

// What lies between partitions stays as a whole, and goes nowhere else than into the same gap.
func TestGapsAreExplained(t *testing.T) {
	disk := func(first, data uint32) forge.Bytes {
		f := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Start: first, Sectors: 1000},
			tableforge.Slot{Type: 0x83, Start: 4096, Sectors: 1000})
		f.Text(int64(first)*512+700, "a file")
		f.Text(5000*512, "another")
		f.Text(int64(data)*512, "what nobody knows")
		return f
	}
	was := disk(63, 1500)
	require.Empty(t, withoutCHS(unexplained(t, was, disk(128, 1500))), "it stays")
	require.Empty(t, withoutCHS(unexplained(t, was, disk(128, 1565))), "it moves as far as the partition")
	for name, is := range map[string]forge.Bytes{
		"twice": func() forge.Bytes {
			f := disk(128, 1500)
			f.Text(2000*512, "what nobody knows")
			return f
		}(),
		"lost":        disk(128, 6000),
		"elsewhere":   disk(128, 1700),
		"overwritten": func() forge.Bytes { f := disk(128, 1500); f.U8(1500*512+3, 1); return f }(),
		"wiped":       func() forge.Bytes { f := disk(128, 1500); clear(f[1500*512 : 1501*512]); return f }(),
		"vacated":     func() forge.Bytes { f := disk(128, 1500); f.U8(64*512, 1); return f }(),
	} {
		require.NotEmpty(t, withoutCHS(unexplained(t, was, is)), name)
	}
}

// A backup behind partitions that move is compared, too, and a sector that cannot be read is not an equal one.
func TestBackupOfAMovedTable(t *testing.T) {
	gpt := func(first uint64) forge.Bytes {
		return tableforge.NewGPT(512, 8192, 128, tableforge.GPTEntry{First: first, Last: first + 999})
	}
	was, is := gpt(63), gpt(64)
	require.Empty(t, unexplained(t, was, is))
	r := verify.Result{Source: disktest.Memory(was), Dest: disktest.Memory(is)}
	r.Base, r.Before, r.After = r.Source, readLayout(t, r.Source), readLayout(t, r.Dest)
	disktest.EveryReadCounts(t, r.Dest, func(d disk.Disk) error {
		r.Dest = d
		_, err := r.Unexplained()
		return err
	})
	is.U8(8190*512, 1)
	require.NotEmpty(t, unexplained(t, was, is), "in an entry that is not used")
}

// withoutCHS omits the addresses in sector 0, which these disks lack.
func withoutCHS(found []verify.Difference) []verify.Difference {
	return slices.DeleteFunc(found, func(d verify.Difference) bool { return d.Off < 512 })
}

// The order of partitions is theirs.
func TestResultsInAnotherOrder(t *testing.T) {
	disk := func(a, b uint32) forge.Bytes {
		return tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Start: a, Sectors: 1000},
			tableforge.Slot{Type: 0x83, Start: b, Sectors: 1000})
	}
	r := verify.Result{Source: disktest.Memory(disk(63, 4096)), Dest: disktest.Memory(disk(4096, 128))}
	r.Base, r.Before, r.After = r.Source, readLayout(t, r.Source), readLayout(t, r.Dest)
	_, err := r.Unexplained()
	require.ErrorIs(t, err, verify.ErrDifferent)
	none := &layout.Layout{Size: r.Source.Size()}
	r.After = none
	_, err = r.Unexplained()
	require.ErrorIs(t, err, verify.ErrDifferent)
}

// naming returns a layout that names these bytes of another disk.
func naming(offs ...int64) *layout.Layout {
	l := &layout.Layout{Boot: &boot.Result{Code: boot.Empty}}
	for _, off := range offs {
		encode := func(_ []byte, _ int64) ([]byte, error) { return nil, nil }
		l.Boot.Refs = append(l.Boot.Refs, boot.Ref{Kind: "drive letter D:", Disk: 7, Points: off, Encode: encode})
	}
	return l
}

// What a copy says about disks that are not at hand must make sense: a place has one new place, of its own, where a
// partition can have been moved to.
func TestPlacesOnDisksThatAreNotAtHand(t *testing.T) {
	for name, c := range map[string]struct {
		was, is []int64
		wrong   string
	}{
		"nothing moves":                 {[]int64{32256, 512}, []int64{32256, 512}, ""},
		"both move":                     {[]int64{32256, 512, 32256}, []int64{1 << 20, 4096, 1 << 20}, ""},
		"an old one where one is moved": {[]int64{32256, 1 << 20}, []int64{1 << 20, 1 << 20}, ""},
		"one place, two new ones": {
			[]int64{32256, 32256},
			[]int64{1 << 20, 2 << 20},
			"of the same place to byte 1048576",
		},
		"two places, one new one": {
			[]int64{32256, 64512},
			[]int64{1 << 20, 1 << 20},
			"no partition was moved there",
		},
		"a place where none can have moved":  {[]int64{32256}, []int64{32257}, "no partition was moved there"},
		"the place in front of all of them":  {[]int64{32256}, []int64{0}, "no partition was moved there"},
		"a reference more, which is no copy": {[]int64{32256}, []int64{32256, 1}, ""},
		"one less":                           {[]int64{32256, 512}, []int64{32256}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := verify.Elsewhere(naming(c.was...), naming(c.is...))
			if c.wrong != "" {
				require.ErrorIs(t, err, verify.ErrDifferent)
				require.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			for i, off := range c.was[:min(len(c.was), len(c.is))] {
				to, ok := m.To(boot.Place{Disk: 7, Off: off})
				require.True(t, ok || len(c.was) != len(c.is))
				require.True(t, !ok || to == c.is[i])
			}
		})
	}
}

// Only what follows to the same other disk tells where a partition of it went.
func TestReferencesThatTellNothing(t *testing.T) {
	for name, change := range map[string]func(was, is *boot.Ref){
		"to this disk":       func(was, is *boot.Ref) { was.Disk, is.Disk = 0, 0 },
		"stays as found":     func(was, _ *boot.Ref) { was.Encode = nil },
		"to a different one": func(_, is *boot.Ref) { is.Disk = 8 },
	} {
		before, after := naming(32256), naming(32257)
		change(&before.Boot.Refs[0], &after.Boot.Refs[0])
		_, err := verify.Elsewhere(before, after)
		require.NoError(t, err, name)
	}
}
