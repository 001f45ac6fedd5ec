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
	"github.com/trueup/trueup/internal/boot/windows"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// said returns the only issue of a code, which refuses each move, and the references.
func said(t testing.TB, code string, files map[string][]byte) (text string, refs []boot.Ref) {
	t.Helper()
	r := boottest.ReadGuest(t, boottest.GuestOf(t, windowsDisk(t, files)))
	issues := boottest.Issues(r, code)
	require.Len(t, issues, 1)
	require.Equal(t, ondisk.Unbootable, issues[0].Effect)
	require.Equal(t, map[string]int{"saved-boot-sector": 1}[code], issues[0].Partition, "any move")
	return issues[0].Text, stored(r)
}

// Positions of cell offsets, relative to the name of a key or value. Spec: "Windows registry file format
// specification", "Key node", "Key value".
const (
	subkeysOf = 28 - 76
	valuesOf  = 40 - 76
	dataOf    = 8 - 20
)

// spoiled is a hive in which a named key or value, selected by its signature, has an invalid cell offset.
func spoiled(t testing.TB, hive forge.Bytes, kind, name string, field int) forge.Bytes {
	t.Helper()
	hive = slices.Clone(hive)
	head := map[string]int{"nk": 76, "vk": 20}[kind]
	for at := range hive {
		if at > head && string(hive[at-head:at-head+2]) == kind && bytes.HasPrefix(hive[at:], []byte(name)) {
			hive.U32(int64(at+field), 0x00fffff0)
			return hive
		}
	}
	t.Fatal("no such name")
	return nil
}

// A broken element is reported, and does not hide the others.
func TestBrokenElements(t *testing.T) {
	const system = "WINDOWS/SYSTEM32/CONFIG/SYSTEM"
	store := bootStore(
		element{"11000001", plain(mbrDevice(signature, fatStart))},
		element{"21000001", plain(mbrDevice(signature, secondStart))})
	letters := systemHive(
		binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)),
		binaryValue(`\DosDevices\D:`, mounted(signature, secondStart)))
	noBin := slices.Clone(letters)
	noBin.U32(hiveforge.Bins, 0)
	for name, tc := range map[string]struct {
		file  string
		hive  forge.Bytes
		fates []string
	}{
		"a hive that was cut off": {system, letters[:100], []string{}},
		"no hive":                 {system, []byte(strings.Repeat("text", 2000)), []string{}},
		"no bin":                  {system, noBin, []string{}},
		"an empty hive":           {system, nil, []string{}},
		"an object":               {"Boot/BCD", spoiled(t, store, "nk", "{9dea862c", subkeysOf), []string{}},
		"the values": {
			"Boot/BCD", spoiled(t, store, "nk", "11000001", valuesOf),
			[]string{"bcd device 21000001: 20512256 follows 2"},
		},
		"data": {
			"Boot/BCD", spoiled(t, store, "vk", "Element", dataOf),
			[]string{"bcd device 21000001: 20512256 follows 2"},
		},
		"a letter": {
			system, spoiled(t, letters, "vk", `\DosDevices\C:`, dataOf),
			[]string{"drive letter D:: 20512256 follows 2"},
		},
		"the values of NT":     {ntSystem, spoiled(t, ntHive(twoDisks()), "nk", "DISK", valuesOf), []string{}},
		"the partitions of NT": {ntSystem, spoiled(t, ntHive(twoDisks()), "vk", "Information", dataOf), []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			code := map[bool]string{true: "bcd", false: "mounted-devices"}[tc.file == "Boot/BCD"]
			text, refs := said(t, code, map[string][]byte{tc.file: tc.hive})
			require.Contains(t, text, "cannot be read, so the positions in it are unknown")
			require.Equal(t, tc.fates, fates(refs))
		})
	}
}

// A file with clusters outside its volume exists, but cannot be read.
func TestStoresThatCannotBeRead(t *testing.T) {
	for path, tc := range map[string]struct {
		code string
		hive forge.Bytes
	}{
		"Boot/BCD": {"bcd", bootStore(element{"11000001", plain(mbrDevice(signature, fatStart))})},
		"WINDOWS/SYSTEM32/CONFIG/SYSTEM": {
			"mounted-devices", systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart))),
		},
	} {
		image := windowsDisk(t, map[string][]byte{path: tc.hive})
		r := boottest.ReadGuest(t, boottest.GuestOf(t, image))
		require.Empty(t, boottest.Issues(r, tc.code), "it can be read")
		require.Len(t, stored(r), 1)
		for _, entry := range fatEntries(t, image, tc.hive) {
			image.U16(entry, 0xffe0)
		}
		r = boottest.ReadGuest(t, boottest.GuestOf(t, image))
		issues := boottest.Issues(r, tc.code)
		require.Len(t, issues, 1)
		require.Equal(t, ondisk.Unbootable, issues[0].Effect)
		require.Zero(t, issues[0].Partition, "any move")
		require.Contains(t, issues[0].Text, "cannot be read, so the positions in it are unknown")
		require.Empty(t, stored(r))
	}
}

// fats returns the positions of the two FATs of a disk, and of the first cluster.
func fats(image forge.Bytes) (first, second, data int64) {
	bpb := image[fatStart:]
	fatBytes := 512 * int64(binary.LittleEndian.Uint16(bpb[fsforge.BootFATSize:]))
	first = fatStart + 512*int64(binary.LittleEndian.Uint16(bpb[fsforge.BootReserved:]))
	const rootBytes = 512 * 32 // of mkfs.fat
	return first, first + fatBytes, first + 2*fatBytes + rootBytes
}

// fatEntries returns the entries of a file's first cluster, in both FATs.
func fatEntries(t testing.TB, image, content forge.Bytes) [2]int64 {
	t.Helper()
	first, second, data := fats(image)
	cluster := 512 * int64(image[fatStart+fsforge.BootSectorsPerCluster])
	at := int64(bytes.Index(image, content[:min(len(content), 512)]))
	require.Greater(t, at, data)
	entry := 2 * ((at-data)/cluster + 2)
	return [2]int64{first + entry, second + entry}
}

// Files with more content than Windows ever writes are not read to the end, and are refused by name.
func TestLimitsOfWindows(t *testing.T) {
	const system = "WINDOWS/SYSTEM32/CONFIG/SYSTEM"
	const store, elements = "Boot/BCD", "limit exceeded of 4096 elements and 4194304 bytes"
	var large, many, positions []element
	for i := range 5 {
		large = append(large, element{fmt.Sprintf("3100000%d", i), make([]byte, 1_000_000)})
	}
	for i := range 5000 {
		many = append(many, element{fmt.Sprintf("%08x", i), plain(mbrDevice(elsewhere, fatStart))})
	}
	for i := range 1100 {
		positions = append(positions, element{fmt.Sprintf("%08x", i), plain(mbrDevice(signature, fatStart))})
	}
	var short, letters []hiveforge.Value
	for i := range 8193 {
		short = append(short, binaryValue(fmt.Sprint(i), []byte("short")))
	}
	for i := range 1026 {
		letters = append(letters, binaryValue(fmt.Sprint("letter", i), mounted(signature, fatStart)))
	}
	var lines []string
	for i := range 64 {
		lines = append(lines, fmt.Sprintf(`C:\saved%d.bin="Linux"`, i))
	}
	for name, tc := range map[string]struct {
		code, want string
		files      map[string][]byte
	}{
		"bytes of elements": {"bcd", elements, map[string][]byte{store: bootStore(large...)}},
		"elements":          {"bcd", elements, map[string][]byte{store: bootStore(many...)}},
		"a long element": {
			"bcd", "limit exceeded", map[string][]byte{store: bootStore(element{"21000001", make([]byte, 5<<20)})},
		},
		"positions of elements": {"bcd", "limit exceeded", map[string][]byte{store: bootStore(positions...)}},
		"values": {
			"mounted-devices", "limit exceeded of 8192 values",
			map[string][]byte{system: systemHive(short...)},
		},
		"disks of NT": {
			"mounted-devices", "of 1048577 bytes: limit exceeded of 1048576 bytes",
			map[string][]byte{ntSystem: ntHive(make([]byte, 1<<20+1))},
		},
		"behind a broken": {
			"mounted-devices", "limit exceeded of 1024 positions",
			map[string][]byte{system: spoiled(t, systemHive(letters...), "vk", "letter0", dataOf)},
		},
		"saved boot sectors": {
			"saved-boot-sector", "limit exceeded of 64 saved boot sectors",
			map[string][]byte{"boot.ini": menu(lines...), "BOOTSECT.DOS": saved(63)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, _ := said(t, tc.code, tc.files)
			require.Contains(t, text, tc.want)
		})
	}
}

// A position at the same place in many states of a hive counts once. The number of places in one hive is limited.
func TestPlacesOfPositions(t *testing.T) {
	const system, letters = "WINDOWS/SYSTEM32/CONFIG/SYSTEM", 1000
	var values []hiveforge.Value
	for i := range letters {
		values = append(values, binaryValue(fmt.Sprintf("vol%04d", i), mounted(signature, nowhere)))
	}
	hive := systemHive(values...)
	for name, changed := range map[string]int{"one name": 1, "all names": letters} {
		t.Run(name, func(t *testing.T) {
			var steps []forge.Bytes
			for n := range 34 {
				steps = append(steps, bytes.Replace(hive, []byte("vol"), fmt.Appendf(nil, "v%02d", n), changed))
			}
			d := boottest.Disk(windowsDisk(t, map[string][]byte{
				system: hiveforge.Dirty(hive, 7), system + ".LOG1": hiveforge.Log(hive, 6, steps...),
			}))
			tab, parts := boottest.Partitions(t, d)
			found, err := windows.MountedDevices.Find(boottest.Guest(d, tab, parts))
			require.NoError(t, err)
			if changed == 1 {
				require.Empty(t, found.Issues)
				require.Greater(t, len(found.Refs), letters)
				return
			}
			require.NotEmpty(t, found.Issues)
			require.Contains(t, found.Issues[0].Text,
				"limit exceeded of 32768 places of positions in a hive and its logs")
		})
	}
}

// Of two different FATs, a check can choose either. That matters for a file with different clusters in the two, and for
// the logs of an open hive as for the hive.
func TestFATsThatDiffer(t *testing.T) {
	const file = "WINDOWS/SYSTEM32/CONFIG/SYSTEM"
	stale := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, nowhere)))
	hive := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)))
	log := hiveforge.Log(stale, 6, hive)
	image := windowsDisk(t, map[string][]byte{
		file: hiveforge.Dirty(stale, 7), file + ".LOG1": log,
		"other": []byte("another file"),
	})
	first, second, _ := fats(image)
	entry := func(content []byte) int64 { return fatEntries(t, image, content)[1] }
	for _, fat := range []int64{first, second} {
		image.U16(fat+2, binary.LittleEndian.Uint16(image[fat+2:])&^0x8000) // not closed: ClnShutBitMask
	}
	for name, tc := range map[string]struct {
		differs int64 // 0: none
		refused bool
	}{
		"same":         {},
		"another file": {entry([]byte("another file")), false},
		"the hive":     {entry(hiveforge.Dirty(stale, 7)[:512]), true},
		"its log":      {entry(log[:1024]), true},
	} {
		f := slices.Clone(image)
		if tc.differs > 0 {
			f[tc.differs] ^= 1
		}
		d := boottest.Disk(f)
		tab, parts := boottest.Partitions(t, d)
		r := boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
		issues := boottest.Issues(r, "mounted-devices")
		require.Equal(t, tc.refused, len(issues) > 0, name)
		require.Equal(t, !tc.refused, slices.ContainsFunc(stored(r), boot.Ref.Follows), name)
		if tc.refused {
			require.Contains(t, issues[0].Text, "FAT is marked dirty")
		}
		if tc.differs > 0 {
			_, err := windows.MountedDevices.Find(boottest.Guest(disktest.NewBadDisk(d, tc.differs&^511), tab, parts))
			require.ErrorIs(t, err, disktest.ErrFault, name)
		}
	}
}
