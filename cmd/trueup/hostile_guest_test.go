package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// TestHostileFilesOfGuests breaks the file system that a Windows boots from, or its registry. The commands name and
// refuse what is wrong, within the budget.
func TestHostileFilesOfGuests(t *testing.T) {
	t.Parallel()
	runHostile(t, brokenRuns(t), brokenIndexes(t), brokenHives(t))
}

// guestRow is refused since the files of a guest that boots cannot be told.
func guestRow(name string, image func(testing.TB, string) string, says ...string) hostile {
	return hostile{name: name, image: image, inspect: 3, copy: 4, report: true, code: "unsupported", says: says}
}

// bootsFrom is a disk with a partition that Windows boots from, with these files of the host.
func bootsFrom(t testing.TB, kind string, files map[string]string) []byte {
	t.Helper()
	const sectors = 40_000
	d := windowsDisk{signature: windowsSignature, sectors: sectors + 2000, volumes: []windowsVolume{
		{number: 1, kind: kind, typ: "7", start: 63, sectors: sectors, loads: "BOOTMGR", files: files},
	}}
	path := d.make(t)
	raw := disktest.ReadFile(t, path)
	require.NoError(t, os.Remove(path))
	return raw
}

// withChange is a copy of a disk with one change.
func withChange(raw []byte, change func(forge.Bytes)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		f := forge.Bytes(bytes.Clone(raw))
		change(f)
		path := filepath.Join(dir, "disk.raw")
		require.NoError(t, os.WriteFile(path, f, 0o600))
		return path
	}
}

// ntfsAttrAt finds an attribute of a record of the MFT by the number of the record, or else by the name of its file.
func ntfsAttrAt(t testing.TB, raw []byte, number int64, name string, kind uint32) int64 {
	t.Helper()
	var wide []byte
	for _, u := range utf16.Encode([]rune(name)) {
		wide = binary.LittleEndian.AppendUint16(wide, u)
	}
	const record = 1024
	mft := int64(63*sectorSize) + int64(binary.LittleEndian.Uint64(raw[63*sectorSize+0x30:]))*4096
	for at := mft; string(raw[at:at+4]) == "FILE"; at += record {
		if name == "" && at != mft+number*record || name != "" && !bytes.Contains(raw[at:at+record], wide) {
			continue
		}
		for a := at + int64(binary.LittleEndian.Uint16(raw[at+0x14:])); ; a += int64(
			binary.LittleEndian.Uint32(raw[a+4:])) {
			if got := binary.LittleEndian.Uint32(raw[a:]); got == kind {
				return a
			} else if got == 1<<32-1 {
				break
			}
		}
	}
	require.FailNow(t, "no such attribute")
	return 0
}

func brokenRuns(t testing.TB) []hostile {
	t.Helper()
	raw := bootsFrom(t, "ntfs", map[string]string{"Boot/BCD": disktest.Corpus(t, "regipy/BCD.xz")})
	data := ntfsAttrAt(t, raw, 0, "BCD", 0x80)
	runs := data + int64(binary.LittleEndian.Uint16(raw[data+0x20:]))
	mft := ntfsAttrAt(t, raw, 0, "", 0x80)
	mftRuns := mft + int64(binary.LittleEndian.Uint16(raw[mft+0x20:]))
	row := func(name string, at int64, b []byte, says ...string) hostile {
		return guestRow("T57 "+name, withChange(raw, func(f forge.Bytes) { f.Put(at, b) }), says...)
	}
	return []hostile{
		row("header 0xff", runs, []byte{0xff}, `\Boot\BCD of partition 1 cannot be read`, "broken run list"),
		row("length 0", runs, []byte{0x11, 0, 1}, `\Boot\BCD of partition 1 cannot be read`, "broken run list"),
		row("start below 0", runs, []byte{0x11, 9, 0x80}, `\Boot\BCD of partition 1 cannot be read`, "broken run list"),
		row("sums that overflow", runs, []byte{0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 4},
			`\Boot\BCD of partition 1 cannot be read`),
		row("MFT without runs", mftRuns, []byte{0}, "Windows Vista or later boots from partition 1"),
		row("MFT elsewhere", mftRuns+2, []byte{9}, "Windows Vista or later boots from partition 1"),
	}
}

func brokenIndexes(t testing.TB) []hostile {
	t.Helper()
	raw := bootsFrom(t, "ntfs", map[string]string{"Boot/BCD": disktest.Corpus(t, "regipy/BCD.xz")})
	root := ntfsAttrAt(t, raw, 5, "", 0x90)
	root += int64(binary.LittleEndian.Uint16(raw[root+0x14:]))
	entry := root + 16 + int64(binary.LittleEndian.Uint32(raw[root+16:]))
	row := func(name string, change func(forge.Bytes), says ...string) hostile {
		return guestRow("T58 "+name, withChange(raw, change),
			append(says, "Windows Vista or later boots from partition 1", "ntfs index")...)
	}
	return []hostile{
		row("entry of 0 bytes", func(f forge.Bytes) { f.U16(entry+8, 0) }, "entry length 0"),
		row("entries behind the end", func(f forge.Bytes) { f.U32(root+16, 1<<31) }),
		row("block 2^64-1", func(f forge.Bytes) {
			f.U16(entry+12, binary.LittleEndian.Uint16(f[entry+12:])|1)
			f.U64(entry+int64(binary.LittleEndian.Uint16(f[entry+8:]))-8, 1<<64-1)
		}, "block 18446744073709551615"),
	}
}

// brokenHives are stores of the boot manager in a FAT, each with its own fault.
func brokenHives(t testing.TB) []hostile {
	t.Helper()
	store := func(change func(forge.Bytes)) []byte {
		f := hiveforge.New(5, hiveforge.Key{
			Name: "ROOT",
			Keys: []hiveforge.Key{{Name: "Objects", List: "ri", Keys: []hiveforge.Key{
				{Name: "{a}", Keys: []hiveforge.Key{{Name: "Elements", Keys: []hiveforge.Key{{
					Name: "11000001", Values: []hiveforge.Value{{
						Name: "Element", Type: 3,
						Data: append(make([]byte, 16), bcdDevice(windowsSignature, 63*sectorSize)...),
					}},
				}}}}},
			}}},
		})
		change(f)
		hiveforge.Seal(f)
		return f
	}
	root := func(f forge.Bytes) int64 {
		return 4096 + 4 + int64(binary.LittleEndian.Uint32(f[hiveforge.RootCell:]))
	}
	image := func(change func(forge.Bytes)) func(testing.TB, string) string {
		hive := hostFile(t, string(store(change)))
		return withChange(bootsFrom(t, "fat16", map[string]string{"Boot/BCD": hive}), func(forge.Bytes) {})
	}
	list := func(f forge.Bytes) int64 { return 4096 + 4 + int64(binary.LittleEndian.Uint32(f[root(f)+28:])) }
	row := func(name string, change func(forge.Bytes), says ...string) hostile {
		return guestRow("T63 "+name, image(change), append(says, `\Boot\BCD of partition 1`)...)
	}
	return []hostile{
		row("cell of 0 bytes", func(f forge.Bytes) { f.U32(root(f)-4, 0) }, "cell size"),
		row("cell of 2^31 bytes", func(f forge.Bytes) { f.U32(root(f)-4, 1<<31) }, "cell size"),
		row("root cell outside", func(f forge.Bytes) { f.U32(hiveforge.RootCell, 1<<31) }, "cell offset"),
		row("2^32-1 subkeys", func(f forge.Bytes) {
			f.U32(4096+4+int64(binary.LittleEndian.Uint32(f[list(f)+4:]))+20, 1<<32-1)
		},
			"number of subkeys 4294967295"),
		row("root under itself", func(f forge.Bytes) {
			f.U32(list(f)+4, binary.LittleEndian.Uint32(f[hiveforge.RootCell:]))
		}, "parent"),
		row("list of lists naming itself", func(f forge.Bytes) {
			f.Text(list(f), "ri")
			f.U32(list(f)+4, uint32(list(f)-4096-4))
		}, "signature"),
		row("bin of 0 bytes", func(f forge.Bytes) { f.U32(4096+8, 0) }, "hive bin"),
		row("not closed", func(f forge.Bytes) { f.U32(hiveforge.Sequence2, 6) }, "sequence numbers 7 and 6 differ"),
	}
}

// TestOddMountedDevices has values of other lengths: they stay, and there can be very many.
func TestOddMountedDevices(t *testing.T) {
	t.Parallel()
	var values []hiveforge.Value
	for _, n := range []int{0, 11, 13, 1_000_000} {
		values = append(values, hiveforge.Value{
			Name: fmt.Sprintf(`\DosDevices\%c:`, 'D'+len(values)), Type: 3,
			Data: bytes.Repeat(mountedValue(windowsSignature, 63*sectorSize), n/12+1)[:n],
		})
	}
	good := hiveforge.Value{Name: `\DosDevices\C:`, Type: 3, Data: mountedValue(windowsSignature, 63*sectorSize)}
	disk := func(values ...hiveforge.Value) string {
		f := hiveforge.New(5, hiveforge.Key{
			Name: "ROOT",
			Keys: []hiveforge.Key{{Name: "MountedDevices", Values: values}},
		})
		raw := bootsFrom(t, "fat16", map[string]string{"WINDOWS/System32/config/SYSTEM": hostFile(t, string(f))})
		return withChange(raw, func(forge.Bytes) {})(t, t.TempDir())
	}
	path := disk(append(values, good)...)
	ends := measure(t, []string{"inspect", path}, []string{"plan", path})
	require.Equal(t, 3, ends[0].code, ends[0].stderr)
	require.Equal(t, 0, ends[1].code, ends[1].stderr)
	require.Equal(t, 1, strings.Count(ends[1].stdout, "drive letter C: in"), ends[1].stdout)
	require.NotContains(t, ends[1].stdout, "drive letter D")

	values = nil
	for i := range 100_000 {
		values = append(values, hiveforge.Value{Name: fmt.Sprintf(`\??\Volume{%08x}`, i), Type: 3, Data: good.Data})
	}
	r := measure(t, []string{"plan", disk(values...)})[0]
	require.Equal(t, 4, r.code, r.stderr)
	require.Contains(t, r.stderr, "limit exceeded")
}
