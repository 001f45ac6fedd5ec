package windows_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// mbrDevice is a partition of an MBR disk as the boot manager names it, without the GUID in front. Source:
// BCD-SYS, Linux/update_device.sh.
func mbrDevice(signature uint32, off uint64) forge.Bytes {
	d := make(forge.Bytes, 0x48)
	d.U32(0, 6)
	d.U32(8, 0x48)
	d.U64(0x10, off)
	d.U32(0x24, 1)
	d.U32(0x28, signature)
	return d
}

// plain is an element that names a device.
func plain(device []byte) []byte { return append(make([]byte, 16), device...) }

// ramDisk is the element of a recovery system as Windows 10 stores it (the BCD of the corpus): a RAM disk from a file
// on a partition.
func ramDisk(device []byte) []byte {
	head := make(forge.Bytes, 0x44)
	head.U32(0x10, 0) // block device
	head.U32(0x14, 1)
	head.U32(0x18, 0xb8)
	head.U32(0x20, 3) // RAM disk
	head.U32(0x38, 1)
	head.U32(0x3c, 0x90)
	head.U32(0x40, 5) // file
	return append(append(head, device...), []byte("\\\x00R\x00e\x00.\x00w\x00i\x00m\x00\x00\x00")...)
}

// element is an element of an object.
type element struct {
	code string
	data []byte
}

// bootStore is a BCD with one object.
func bootStore(elements ...element) forge.Bytes {
	var keys []hiveforge.Key
	for _, e := range elements {
		keys = append(keys, hiveforge.Key{Name: e.code, Values: []hiveforge.Value{binaryValue("Element", e.data)}})
	}
	object := hiveforge.Key{
		Name: "{9dea862c-5cdd-4e70-acc1-f32b344d4795}",
		Keys: []hiveforge.Key{{Name: "Description"}, {Name: "Elements", Keys: keys}},
	}
	return hiveforge.New(3, hiveforge.Key{Name: "NewStoreRoot", Keys: []hiveforge.Key{
		{Name: "Description"}, {Name: "Objects", Keys: []hiveforge.Key{{Name: "{00}"}, object}},
	}})
}

func TestDevicesOfTheBootConfiguration(t *testing.T) {
	outside := mbrDevice(signature, fatStart) // of a virtual disk: longer, and on no disk
	outside.U32(8, 0x140)
	virtual := mbrDevice(signature, fatStart)
	virtual.U32(0x20, 6)
	gpt := mbrDevice(signature, fatStart)
	gpt.U32(0x24, 0)
	hive := bootStore(
		element{"11000001", plain(mbrDevice(signature, fatStart))},
		element{"12000004", []byte("a text")},
		element{"21000001", ramDisk(mbrDevice(signature, secondStart))},
		element{"31000003", append(plain(outside), mbrDevice(signature, nowhere)...)},
		element{"31000004", plain(virtual)}, element{"31000005", plain(gpt)},
		element{"31000006", plain(mbrDevice(elsewhere, fatStart))},
		element{"31000007", plain(mbrDevice(signature, fatStart))[:0x57]},
		element{"no code", plain(mbrDevice(signature, secondStart))},
	)
	windows := bootStore(element{"21000001", plain(mbrDevice(signature, secondStart))})
	require.Contains(t, links(boottest.Read(t, windowsDisk(t, map[string][]byte{"Boot/BCD": windows}))),
		"partition 1 starts Windows in partition 2\n")
	for _, file := range []string{"Boot/BCD", "EFI/Microsoft/Boot/BCD"} {
		disk := windowsDisk(t, map[string][]byte{file: hive})
		r := boottest.Read(t, disk)
		require.Equal(t, []string{
			"bcd device 11000001: 32256 follows 1", "bcd device 21000001: 20512256 follows 2",
			"bcd device 31000003: 6320640 stays",
			"bcd device 31000006: 32256 of disk 0x55667788", "bcd device: 20512256 follows 2",
		}, fates(stored(r)))
		for _, ref := range stored(r) {
			require.Equal(t, []byte(disk[ref.At[0].Off:ref.At[0].End()]), ref.Raw)
			require.Equal(t, uint64(ref.Points), binary.LittleEndian.Uint64(hive[ref.Off:]))
		}
		require.Empty(t, boottest.Issues(r, "bcd"))
		require.Contains(t, links(r), "partition 1 names partition 1\n2 ")
		require.Contains(t, links(r), "partition 1 names partition 2\n", "a recovery system")
	}
}

// A store that is dirty keeps the partitions in their places that it names, and no others.
func TestDirtyBootConfiguration(t *testing.T) {
	hive := bootStore(element{"11000001", plain(mbrDevice(signature, secondStart))},
		element{"21000001", plain(mbrDevice(signature, secondStart))})
	hive.U32(hiveforge.Sequence2, 1)
	hiveforge.Seal(hive)
	r := boottest.Read(t, windowsDisk(t, map[string][]byte{"boot/bcd": hive}))
	require.Equal(t, []string{"bcd device 11000001: 20512256 stays", "bcd device 21000001: 20512256 stays"},
		fates(stored(r)))
	got := boottest.Issues(r, "bcd")
	require.Len(t, got, 1)
	require.Equal(t, 2, got[0].Partition)
}

// menu is a boot.ini with these lines in its list.
func menu(lines ...string) []byte {
	return []byte("[boot loader]\r\ntimeout=30\r\ndefault=multi(0)disk(0)rdisk(0)partition(2)\\WINDOWS\r\n" +
		"[operating systems]\r\n" + strings.Join(lines, "\r\n") + "\r\n")
}

// saved is a boot sector with that many sectors in front of it.
func saved(hidden uint32) forge.Bytes {
	b := make(forge.Bytes, 512)
	b.Put(0, []byte{0xeb, 0x3c, 0x90})
	b.U16(0x0b, 512)
	b.U32(0x1c, hidden)
	b.U16(510, 0xaa55)
	return b
}

func TestBootIni(t *testing.T) {
	r := boottest.Read(t, windowsDisk(t, map[string][]byte{"BOOT.INI": menu(
		`MULTI(0)DISK(0)RDISK(0)PARTITION(2)\WINNT="Windows 2000"`,
		`multi(0)disk(0)rdisk(0)partition(7)\WINDOWS="gone"`,
		`multi(0)disk(0)rdisk(1)partition(9)\WINDOWS="another disk"`,
		`scsi(0)disk(0)rdisk(0)partition(8)\WINDOWS="another way"`,
	)}))
	require.Equal(t, 1,
		strings.Count(links(r), `2 \boot.ini of partition 1 starts Windows from partition(2), which is partition 2`),
		"once")
	got := boottest.Issues(r, "boot-ini")
	require.Len(t, got, 1)
	require.Equal(t, ondisk.Note, got[0].Effect, "it was broken before")
	require.Contains(t, got[0].Text, "partition(7)")
	require.Empty(t, stored(r))
}

// Saved boot sectors know their place as those at the start of a partition do.
func TestSavedBootSectors(t *testing.T) {
	lilo := saved(63)
	lilo.Text(6, "LILO")
	noBPB := saved(63)
	noBPB.U16(0x0b, 0)
	disk := windowsDisk(t, map[string][]byte{
		"boot.ini": menu(`C:\="MS-DOS"`, `C:\linux.bin="Linux"`,
			`c:\cmdcons\bootsect.dat="Recovery Console" /cmdcons`, `C:\gone.bin="gone"`),
		"BOOTSECT.DOS":         saved(63),
		"bootsect.lnx":         lilo,
		"bootsect.bak":         noBPB,
		"linux.bin":            saved(40063),
		"CMDCONS/BOOTSECT.DAT": append(saved(77), make([]byte, 7680)...),
		"other.bin":            saved(63),
	})
	r := boottest.Read(t, disk)
	const kind = "hidden sectors, saved boot sector"
	require.Equal(t, []string{kind + ": 32256 follows 1", kind + ": 39424 stays", kind + ": 20512256 follows 2"},
		fates(stored(r)))
	var files []string
	for _, ref := range stored(r) {
		files = append(files, ref.File)
		require.Equal(t, int64(0x1c), ref.Off)
		require.Equal(t, uint32(ref.Points/512), binary.LittleEndian.Uint32(disk[ref.At[0].Off:]))
	}
	require.Equal(t, []string{"BOOTSECT.DOS", "CMDCONS/BOOTSECT.DAT", "linux.bin"}, files)
	got := boottest.Issues(r, "saved-boot-sector")
	require.Len(t, got, 1)
	require.Contains(t, got[0].Text, "LILO")
	b, err := stored(r)[0].Encode(nil, 1<<20)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 8, 0, 0}, b)
}
