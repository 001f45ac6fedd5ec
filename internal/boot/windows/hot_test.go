package windows_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// crossing is a BCD that names a partition at the border of two sectors: four bytes of the position lie in each. at is
// the place of the position.
func crossing(t *testing.T) (f forge.Bytes, at int) {
	t.Helper()
	device := mbrDevice(signature, fatStart)
	for n := range 80 {
		f := bootStore(element{"11000001", make([]byte, 8*n)}, element{"21000001", plain(device)})
		if at := bytes.Index(f, device) + 0x10; at%512 == 508 {
			return f, at
		}
	}
	t.Fatal("no such length")
	return nil, 0
}

// A position of which Windows logged one sector only lies in the hive and in the log. Each byte is rewritten once.
func TestPositionInHiveAndLog(t *testing.T) {
	want, at := crossing(t)
	for name, tc := range map[string]struct {
		hive  func(f forge.Bytes) // what the hive has otherwise
		bytes int
	}{
		"half of it is old":                   {func(f forge.Bytes) { f[at+7]++ }, 8},
		"a neighbour is":                      {func(f forge.Bytes) { f[at+40]++ }, 12},
		"the old one means another partition": {func(f forge.Bytes) { f.U32(int64(at), secondStart) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			hive := slices.Clone(want)
			tc.hive(hive)
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{
				"Boot/BCD":     hiveforge.Dirty(hive, 8),
				"Boot/BCD.LOG": hiveforge.OldLog(hive, 2, want),
			}))
			rewritten := map[int64]byte{}
			for _, ref := range stored(r) {
				if !ref.Follows() {
					continue
				}
				patches, err := ref.Patches(0, 0x1122334455667788)
				require.NoError(t, err)
				for _, p := range patches {
					for i, b := range p.New {
						off := p.Off + int64(i)
						require.NotContains(t, rewritten, off)
						rewritten[off] = b
					}
				}
			}
			require.Len(t, rewritten, tc.bytes)
		})
	}
}

// What the logs of a hive make of it, and what keeps it from being known.
func TestHotHives(t *testing.T) {
	c := binaryValue(`\DosDevices\C:`, mounted(signature, fatStart))
	stale := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, nowhere)))
	want := systemHive(c)
	const file = "WINDOWS/system32/config/SYSTEM"
	for name, tc := range map[string]struct {
		logs  map[string]forge.Bytes
		fates []string
		issue string // the begin of its reason; empty: none
	}{
		"in the log only": {
			map[string]forge.Bytes{".LOG1": hiveforge.Log(stale, 6, want)},
			[]string{"drive letter C:: 6320640 stays", "drive letter C:: 32256 follows 1"},
			"",
		},
		"an old log": {
			map[string]forge.Bytes{".LOG": hiveforge.OldLog(stale, 1, want)},
			[]string{"drive letter C:: 6320640 stays", "drive letter C:: 32256 follows 1"},
			"",
		},
		"no log fits": {
			map[string]forge.Bytes{".LOG1": hiveforge.Log(stale, 5, want)},
			[]string{"drive letter C:: 6320640 stays"},
			"no log fits",
		},
		"logs of two kinds": {map[string]forge.Bytes{
			".LOG1": hiveforge.Log(stale, 6, want),
			".LOG":  hiveforge.OldLog(stale, 1, want),
		}, []string{"drive letter C:: 6320640 stays"}, "two formats"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string][]byte{file: hiveforge.Dirty(stale, 7)}
			for suffix, log := range tc.logs {
				files[file+suffix] = log
			}
			r := boottest.Read(t, windowsDisk(t, files))
			require.Equal(t, tc.fates, fates(stored(r)))
			issues := boottest.Issues(r, "mounted-devices")
			if tc.issue == "" {
				require.Empty(t, issues)
				require.Len(t, boottest.Issues(r, "hive-open"), 1)
				return
			}
			require.Len(t, issues, 1)
			require.Contains(t, issues[0].Text, tc.issue)
		})
	}
}

// A Windows 2000 may start from the mirror of an open SYSTEM. It means nothing beside one that was closed.
func TestMirrorOfAnOpenHive(t *testing.T) {
	c := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)))
	stale := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, nowhere)))
	const file = "WINNT/system32/config/SYSTEM"
	for name, tc := range map[string]struct {
		hive, mirror forge.Bytes
		fates        []string
		refused      string
	}{
		"open":   {hiveforge.Dirty(stale, 7), c, []string{"stays", "follows 1", "follows 1"}, ""},
		"closed": {c, hiveforge.Dirty(c, 7), []string{"follows 1"}, ""},
		"both": {
			hiveforge.Dirty(stale, 7), hiveforge.Dirty(c, 7),
			[]string{"stays", "follows 1", "stays"},
			"SYSTEM.ALT of partition 1 names",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{
				file: tc.hive, file + ".LOG": hiveforge.OldLog(stale, 2, c), file + ".ALT": tc.mirror,
				file + ".ALT.ALT": c, // there is no mirror of a mirror
			}))
			var got []string
			for _, fate := range fates(stored(r)) {
				_, after, _ := strings.Cut(fate, ":: ")
				_, after, _ = strings.Cut(after, " ")
				got = append(got, after)
			}
			require.Equal(t, tc.fates, got)
			issues := boottest.Issues(r, "mounted-devices")
			require.Equal(t, tc.refused != "", len(issues) == 1)
			if tc.refused != "" {
				require.Contains(t, issues[0].Text, tc.refused)
			}
		})
	}
}

// One checksum covers several positions: it is that of the entry with all of them rewritten.
func TestSealOfAnEntry(t *testing.T) {
	stale := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, nowhere)),
		binaryValue(`\DosDevices\D:`, mounted(signature, nowhere)))
	want := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)),
		binaryValue(`\DosDevices\D:`, mounted(signature, secondStart)))
	const file = "WINDOWS/system32/config/SYSTEM"
	image := windowsDisk(t, map[string][]byte{
		file: hiveforge.Dirty(stale, 7), file + ".LOG1": hiveforge.Log(stale, 6, want),
	})
	var patches []disk.Patch
	var seal *boot.Seal
	for _, r := range stored(boottest.Read(t, image)) {
		if r.Follows() {
			p, err := r.Patches(0, r.Points+0x10000)
			require.NoError(t, err)
			patches = append(patches, p...)
			require.Len(t, r.Seals, 1)
			require.True(t, seal == nil || seal == r.Seals[0], "one entry")
			seal = r.Seals[0]
		}
	}
	require.Len(t, patches, 2)
	require.Empty(t, seal.Patches(0, nil), "nothing changed")
	patches = append(patches, seal.Patches(0, patches)...)
	for _, p := range patches {
		require.Equal(t, p.Old, []byte(image[p.Off:][:len(p.Old)]), p.Reason)
		image.Put(p.Off, p.New)
	}
	at := bytes.Index(image, []byte("HvLE"))
	require.Positive(t, at)
	entry := image[at:]
	entry = entry[:binary.LittleEndian.Uint32(entry[4:])]
	sealed := slices.Clone(entry)
	hiveforge.SealEntry(sealed)
	require.Equal(t, sealed, entry)
	got := fates(stored(boottest.Read(t, image)))
	require.Equal(t, []string{
		fmt.Sprintf("drive letter C:: %d stays", nowhere), fmt.Sprintf("drive letter D:: %d stays", nowhere),
		fmt.Sprintf("drive letter C:: %d stays", fatStart+0x10000), fmt.Sprintf("drive letter D:: %d stays",
			secondStart+0x10000),
	}, got, "the log is read with its new positions, where nothing starts yet")
}

// A limit counts what one state has: many entries that touch the letters are no reason to refuse, nor to leave out the
// state with which the guest starts.
func TestLimitsCountOneState(t *testing.T) {
	var values []hiveforge.Value
	for i := range 20 {
		values = append(values, binaryValue(fmt.Sprintf(`\DosDevices\%c:`, 'C'+i), mounted(signature, fatStart)),
			binaryValue(fmt.Sprint("other", i), mounted(elsewhere, fatStart)))
	}
	hive := systemHive(values...)
	at := bytes.Index(hive, []byte("other0"))
	var steps []forge.Bytes
	for i := range 60 {
		to := slices.Clone(hive)
		to[at] = byte('p' + i%2)
		steps = append(steps, to)
	}
	const file = "WINDOWS/system32/config/SYSTEM"
	r := boottest.Read(t, windowsDisk(t, map[string][]byte{
		file: hiveforge.Dirty(hive, 7), file + ".LOG1": hiveforge.Log(hive, 6, steps...),
	}))
	require.Empty(t, boottest.Issues(r, "mounted-devices"))
	count := map[string]int{}
	for _, ref := range stored(r) {
		count[ref.File]++
	}
	require.Equal(t, map[string]int{file: 40, file + ".LOG1": 40 * 60}, count)
	require.Zero(t, r.Unlisted)
}
