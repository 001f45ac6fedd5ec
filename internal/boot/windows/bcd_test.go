package windows_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// mbrDevice is a partition of an MBR disk in the format of the boot manager, without the leading GUID. Source: BCD-SYS,
// Linux/update_device.sh.
func mbrDevice(signature uint32, off uint64) forge.Bytes {
	d := make(forge.Bytes, 0x48)
	d.U32(0, 6)
	d.U32(8, 0x48)
	d.U64(0x10, off)
	d.U32(0x24, 1)
	d.U32(0x28, signature)
	return d
}

// plain is an element with a device.
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

// A dirty store keeps in place only the partitions to which it refers.
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

// saved is a boot sector with that many sectors before it.
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

// Saved boot sectors contain their position like those at the start of a partition.
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

const recoveryFile = "WINDOWS/SYSTEM32/RECOVERY/REAGENT.XML"

// agent is a ReAgent.xml like that of Windows 10, with these tags in the middle.
func agent(tags ...string) string {
	return "<?xml version='1.0' encoding='utf-8'?>\n\n<WindowsRE version=\"2.0\">\n  <WinreBCD " +
		"id=\"{f8d1de0b-0ced-11e6-abf9-db7ac698ead8}\"/>" +
		strings.Join(tags, "") +
		"\n  <ImageLocation path=\"\" id=\"0\" offset=\"0\" " +
		"guid=\"{00000000-0000-0000-0000-000000000000}\"/>\n</WindowsRE>\n"
}

// location returns the tag of a partition with its offset.
func location(space, name, id, offset string) string {
	return space + `<` + name + ` path="\Récupération" id="` + id + `" offset="` + offset +
		`" guid="{00000000-0000-0000-0000-000000000000}"/>`
}

func wideText(s string, order binary.ByteOrder) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune("\ufeff" + s)) {
		b := make([]byte, 2)
		order.PutUint16(b, u)
		out = append(out, b...)
	}
	return out
}

// The number of digits changes, the file size does not.
func TestRecoveryLocations(t *testing.T) {
	const space = "\n  "
	make := func(offset, space string) string {
		return agent(location(space, "WinreLocation", fmt.Sprint(signature), offset))
	}
	before := make("32256", space)
	for name, code := range map[string]func(string) []byte{
		"utf-8":           func(s string) []byte { return []byte(s) },
		"utf-8 with mark": func(s string) []byte { return []byte("\ufeff" + s) },
		"utf-16le":        func(s string) []byte { return wideText(s, binary.LittleEndian) },
		"utf-16be":        func(s string) []byte { return wideText(s, binary.BigEndian) },
	} {
		t.Run(name, func(t *testing.T) {
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{recoveryFile: code(before)}))
			require.Empty(t, boottest.Issues(r, "winre"))
			require.Equal(t, []string{"winre WinreLocation: 32256 follows 1"}, fates(stored(r)))
			ref := stored(r)[0]
			for to, want := range map[int64]string{
				1 << 20: make("1048576", " "),
				512:     make("512", "  "+space),
				65536:   make("65536", space),
			} {
				after := code(before)
				b, err := ref.Encode(ref.Raw, to)
				require.NoError(t, err)
				require.Len(t, b, len(ref.Raw))
				copy(after[ref.Off:], b)
				require.Equal(t, string(code(want)), string(after))
			}
			_, err := ref.Encode(ref.Raw, 1<<30)
			require.ErrorIs(t, err, ondisk.ErrLimit)
		})
	}
}

func TestRecoveryLocationsThatStay(t *testing.T) {
	text := agent(
		location("", "WinreLocation", "0", "32256"), location("\n", "ImageLocation", "0", "6320640"), location("\n",
			"OtherLocation", "99", "32256"),
		location("\n", "OsInstallLocation", "0", "0"), location("\n", "Elsewhere", "0", "32256"), location("\n",
			"BadLocation", "0", "-1"),
		`<!-- `+location("\n", "CommentLocation", "0", "32256")+` -->`, location("", "PBRImageLocation", "0",
			"20512256"),
	)
	r := boottest.Read(t, windowsDisk(t, map[string][]byte{recoveryFile: []byte(text)}))
	require.Equal(t, []string{
		"winre WinreLocation: 32256 follows 1", "winre ImageLocation: 6320640 stays",
		"winre PBRImageLocation: 20512256 follows 2",
	}, fates(stored(r)))
	require.Empty(t, boottest.Issues(r, "winre"))
	first, last := stored(r)[0], stored(r)[2]
	require.Equal(t, "the recovery system may be disabled", first.Loss, "a guest starts without its recovery system")
	_, err := first.Encode(first.Raw, 1<<20)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	b, err := last.Encode(last.Raw, 4096)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(b), `offset="00004096`), "zeros where there is no white space: %s", b)
}

// On a GPT, too, a recovery system is stored by its offset.
func TestRecoveryOnGPT(t *testing.T) {
	text := agent(location("\n  ", "WinreLocation", "0", "20512256"))
	g := boottest.GuestOf(t, windowsDisk(t, map[string][]byte{"RECOVERY/WINDOWSRE/REAGENT.XML": []byte(text)}))
	g.Scheme = table.GPT
	r, err := layout.ReadBoot(g)
	require.NoError(t, err)
	require.Equal(t, []string{"winre WinreLocation: 20512256 follows 2"}, fates(stored(r)))
}

// Another disk can have a partition at the same offset: its GUID or signature distinguishes it.
func TestRecoveryOnAnotherDisk(t *testing.T) {
	const here, partition, other = "01234567-89ab-cdef-0123-456789abcdef", "11111111-89ab-cdef-0123-456789abcdef",
		"22222222-89ab-cdef-0123-456789abcdef"
	for _, tc := range []struct {
		name, id, guid string
		scheme         table.Scheme
		want           int
	}{
		{"the GUID of the disk", "0", here, table.GPT, 1},
		{"that of a partition", "0", partition, table.GPT, 1},
		{"that of another disk", "0", other, table.GPT, 0},
		{"a signature on GPT", "99", zeroGUID, table.GPT, 0},
		{"a GUID on MBR", "0", other, table.MBR, 0},
		{"a signature", fmt.Sprint(signature), zeroGUID, table.MBR, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			text := strings.ReplaceAll(agent(location("\n  ", "WinreLocation", tc.id, "20512256")), zeroGUID,
				strings.ToUpper(tc.guid))
			d := boottest.Disk(windowsDisk(t, map[string][]byte{recoveryFile: []byte(text)}))
			tab, parts := boottest.Partitions(t, d)
			parts[1].GUID = partition
			g := boottest.Guest(d, tab, parts)
			g.Scheme, g.GUID = tc.scheme, here
			r, err := layout.ReadBoot(g)
			require.NoError(t, err)
			require.Len(t, stored(r), tc.want)
		})
	}
}

const zeroGUID = "00000000-0000-0000-0000-000000000000"

func TestHugeRecoveryFile(t *testing.T) {
	var tags []string
	for range 70 {
		tags = append(tags, location("\n", "WinreLocation", "0", "32256"))
	}
	for name, text := range map[string]string{"bytes": strings.Repeat("<a ", 30000), "tags": agent(tags...)} {
		t.Run(name, func(t *testing.T) {
			r := boottest.Read(t, windowsDisk(t, map[string][]byte{recoveryFile: []byte(text)}))
			require.Empty(t, stored(r))
			require.Equal(t, ondisk.Warn, boottest.Issues(r, "winre")[0].Effect)
		})
	}
}

// ntDisk is a disk in the registry of Windows NT 4.
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

// The letters of Windows NT 4 are updated, those of other disks are found, and nothing else in the value changes.
func TestLettersOfWindowsNT4(t *testing.T) {
	information := twoDisks()
	for name, files := range map[string]map[string][]byte{
		"closed": {ntSystem: ntHive(information)},
		"open": {
			ntSystem:          hiveforge.Dirty(ntHive(twoDisks()), 7),
			ntSystem + ".LOG": hiveforge.OldLog(ntHive(make(forge.Bytes, len(information))), 2, ntHive(information)),
		},
	} {
		t.Run(name, func(t *testing.T) {
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

// Unknown parts of the value are refused with their position.
func TestDiskInformationNotUnderstood(t *testing.T) {
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
