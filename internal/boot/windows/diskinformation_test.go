package windows_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// ntDisk is a disk as Windows NT 4 keeps it in its registry.
type ntDisk struct {
	signature uint32
	parts     []ntPartition
}

type ntPartition struct {
	start  uint64
	letter byte
}

// diskInformation makes the value by the offsets of ntddft.h and ntdskreg.h: a header of 44 bytes, the number of disks,
// and for each disk 8 bytes and 52 for each of its partitions.
func diskInformation(disks ...ntDisk) forge.Bytes {
	f := make(forge.Bytes, 44+4)
	f.U32(0, 3)
	f.U32(12, 44)
	f.U16(44, uint16(len(disks)))
	for _, d := range disks {
		at := int64(len(f))
		f = append(f, make([]byte, 8+52*len(d.parts))...)
		f.U16(at, uint16(len(d.parts)))
		f.U32(at+4, d.signature)
		for i, p := range d.parts {
			at := at + 8 + 52*int64(i)
			f.U32(at, 4)
			f.U64(at+8, p.start)
			f.U64(at+16, 1<<20)
			f.U8(at+40, p.letter)
			f.U8(at+41, 1)
		}
	}
	f.U32(16, uint32(len(f)-44))
	f.U32(20, uint32(len(f)))
	return f
}

// ntHive is a SYSTEM of Windows NT 4.
func ntHive(information []byte) forge.Bytes {
	return hiveforge.New(3, hiveforge.Key{Name: "$$$PROTO.HIV", Keys: []hiveforge.Key{
		{Name: "ControlSet001"},
		{Name: "DISK", Values: []hiveforge.Value{binaryValue("Information", information)}},
		{Name: "Select"},
	}})
}

const ntSystem = "WINNT/system32/config/SYSTEM"

func twoDisks() forge.Bytes {
	return diskInformation(
		ntDisk{signature, []ntPartition{{fatStart, 'C'}, {secondStart, 0}, {nowhere, 'X'}}},
		ntDisk{elsewhere, []ntPartition{{fatStart, 'D'}}})
}

// The letters of Windows NT 4 follow, those of other disks are known, and nothing else of the value changes.
func TestLettersOfWindowsNT4(t *testing.T) {
	t.Parallel()
	information := twoDisks()
	for name, files := range map[string]map[string][]byte{
		"closed": {ntSystem: ntHive(information)},
		"open": {
			ntSystem:          hiveforge.Dirty(ntHive(twoDisks()), 7),
			ntSystem + ".LOG": hiveforge.OldLog(ntHive(make(forge.Bytes, len(information))), 2, ntHive(information)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := windowsDisk(t, files)
			r := boottest.Read(t, image)
			require.Empty(t, boottest.Issues(r, "mounted-devices"))
			refs := stored(r)
			require.Subset(t, fates(refs), []string{
				"drive letter C: of Windows NT: 32256 follows 1", "partition known to Windows NT: 20512256 follows 2",
				"drive letter X: of Windows NT: 6320640 stays",
				"drive letter D: of Windows NT: 32256 of disk 0x55667788",
			})
			want := diskInformation(
				ntDisk{signature, []ntPartition{{fatStart + 0x10000, 'C'}, {secondStart, 0}, {nowhere, 'X'}}},
				ntDisk{elsewhere, []ntPartition{{fatStart, 'D'}}})
			for _, ref := range refs {
				if ref.Follows() && ref.Target == 1 {
					patches, err := ref.Patches(0, fatStart+0x10000)
					require.NoError(t, err)
					for _, p := range patches {
						image.Put(p.Off, p.New)
					}
				}
			}
			require.Contains(t, string(image), string(want))
			require.NotContains(t, string(image), string(information))
		})
	}
}

// What is not understood of the value is refused, with its place.
func TestDiskInformationNotUnderstood(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(f forge.Bytes) forge.Bytes
		says  string
	}{
		"another version": {func(f forge.Bytes) forge.Bytes { f.U32(0, 2); return f }, "version 2, want 3"},
		"a checksum":      {func(f forge.Bytes) forge.Bytes { f.U32(4, 0x1234); return f }, "checksum 0x1234, want 0"},
		"no header": {
			func(f forge.Bytes) forge.Bytes { return f[:43] },
			"at 0x0: bytes for the header 43, want 44 or more",
		},
		"disks in the header": {
			func(f forge.Bytes) forge.Bytes { f.U32(12, 40); return f },
			"at 0xc: offset of the disks 40, want 44 or more",
		},
		"disks behind the end": {func(f forge.Bytes) forge.Bytes { return f[:len(f)-1] }, "at 0x10: end of the disks"},
		"too many disks": {
			func(f forge.Bytes) forge.Bytes { f.U16(44, 3); return f },
			"bytes for the disk 0, want 8 or more",
		},
		"too many partitions": {
			func(f forge.Bytes) forge.Bytes { f.U16(212, 2); return f },
			"bytes for the partition 0, want 52 or more",
		},
		"a mirror": {
			func(f forge.Bytes) forge.Bytes { f.U32(56, 0); return f },
			"partition at byte 56 is of type 0, a member of a fault-tolerant set",
		},
		"sets": {func(f forge.Bytes) forge.Bytes {
			f.U32(24, 2)
			return append(f, 1, 0)
		}, "number of fault-tolerant sets of Windows NT 1, want 0"},
		"sets behind the end": {
			func(f forge.Bytes) forge.Bytes { f.U32(24, 2); return f },
			"at 0x14: offset of the fault-tolerant sets",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{ntSystem: ntHive(tc.spoil(twoDisks()))}))
			got := boottest.Issues(r, "mounted-devices")
			require.Len(t, got, 1)
			require.Equal(t, ondisk.Unbootable, got[0].Effect)
			require.Contains(t, got[0].Text, tc.says)
			require.Contains(t, got[0].Text, `DISK\Information`)
		})
	}
	t.Run("nothing", func(t *testing.T) {
		f := twoDisks()
		f.U32(24, 2)
		for _, value := range [][]byte{append(f, 0, 0), nil} { // no sets, or no bytes
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{ntSystem: ntHive(value)}))
			require.Empty(t, boottest.Issues(r, "mounted-devices"), fmt.Sprint(r.Issues))
		}
	})
}
