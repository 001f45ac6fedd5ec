package firmware_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// names is a file system of file names without contents. It ignores the case of folder names.
type names []string

func (n names) Open(string) (*guestfile.File, error) { return nil, fs.ErrNotExist }

func (n names) List(folder string) ([]guestfile.Entry, error) {
	var out []guestfile.Entry
	seen := map[string]bool{}
	for _, name := range n {
		if len(name) <= len(folder) || !strings.EqualFold(name[:len(folder)], folder) || name[len(folder)] != '/' {
			continue
		}
		first, _, dir := strings.Cut(name[len(folder)+1:], "/")
		if !seen[first] {
			seen[first] = true
			out = append(out, guestfile.Entry{Name: first, Dir: dir})
		}
	}
	if out == nil {
		return nil, &fs.PathError{Op: "list", Path: path.Clean(folder), Err: fs.ErrNotExist}
	}
	return out, nil
}

// holding gives every FAT16 the files of a test until restore is called.
func holding(files guestfile.FS, err error) (restore func()) {
	was := boot.Readers[volume.FAT16]
	boot.Readers[volume.FAT16] = func(*guestfile.Budget, disk.Disk) (guestfile.FS, error) { return files, err }
	return func() { boot.Readers[volume.FAT16] = was }
}

func TestChainOfUEFI(t *testing.T) {
	const esp, anew = "the EFI system partition", "choose the loader's file in the firmware's menu"
	many := names{"EFI/x/readme.txt"}
	for _, c := range "0123456789" {
		many = append(many, "EFI/x/"+string(c)+".efi")
	}
	for name, tc := range map[string]struct {
		files  guestfile.FS
		err    error
		texts  []string
		remedy string // a part of it
		warn   bool
	}{
		"debian": {
			files: names{
				"EFI/debian/grubx64.efi", "EFI/debian/shimx64.efi", "EFI/debian/grub.cfg", "efi/boot/bootx64.efi",
				"efi/boot/fbx64.efi",
			},
			texts: []string{
				`boot entries of UEFI firmware can name \EFI\debian\grubx64.efi, \EFI\debian\shimx64.efi on ` +
					`partition 1, ` + esp,
				`UEFI firmware without such an entry starts \EFI\boot\bootx64.efi from partition 1`,
			}, remedy: `start \EFI\boot\bootx64.efi in the firmware's menu`,
		},
		"windows, and no fallback": {
			files: names{"EFI/Microsoft/Boot/bootmgfw.efi", "EFI/Microsoft/Boot/de-DE/x.mui"},
			texts: []string{`boot entries of UEFI firmware can name \EFI\Microsoft\Boot\bootmgfw.efi on partition 1, ` +
				esp}, remedy: anew, warn: true,
		},
		"a fallback only": {
			files:  names{"EFI/BOOT/BOOTX64.EFI"},
			texts:  []string{`UEFI firmware starts \EFI\BOOT\BOOTX64.EFI from partition 1, ` + esp},
			remedy: `start \EFI\BOOT\BOOTX64.EFI`,
		},
		"many": {files: many, texts: []string{
			`boot entries of UEFI firmware can name \EFI\x\0.efi, \EFI\x\1.efi, \EFI\x\2.efi, \EFI\x\3.efi, ` +
				`\EFI\x\4.efi, \EFI\x\5.efi, \EFI\x\6.efi, \EFI\x\7.efi and 2 more on partition 1, ` + esp,
		}, remedy: anew, warn: true},
		"nothing": {
			files:  names{"kernel.efi"},
			texts:  []string{"partition 1, " + esp + ", holds no loader where UEFI firmware looks for one"},
			remedy: anew,
		},
		"not readable": {err: ondisk.ErrNoMatch, texts: []string{"UEFI firmware starts a loader from partition 1, " +
			esp + ", whose files trueup cannot read"}, remedy: anew},
		"broken": {
			err: &ondisk.FormatError{What: "fat", Field: "clusters", Got: "1", Want: "2"},
			texts: []string{"UEFI firmware starts a loader from partition 1, " + esp +
				", whose files trueup cannot read: "}, remedy: anew,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(40000, tableforge.Slot{Type: 0xef, Start: 63, Sectors: 16000})
			fsforge.PutFAT16(f, 63, 16000)
			defer holding(tc.files, tc.err)()
			r := boottest.Read(t, f)
			require.Len(t, r.Chain, len(tc.texts))
			for i, l := range r.Chain {
				require.Equal(t, 1, l.Partition)
				require.True(t, strings.HasPrefix(l.Text, tc.texts[i]), l.Text)
				require.True(t, name == "broken" || l.Text == tc.texts[i], l.Text)
			}
			entries := boottest.Issues(r, "efi-boot-entries")
			require.Len(t, entries, 1)
			require.Equal(t, tc.warn, entries[0].Effect == ondisk.Warn)
			require.Contains(t, entries[0].Remedy, tc.remedy)
		})
	}
}

// An unreadable disk is not a partition without loaders.
func TestChainOfUEFIThatCannotBeRead(t *testing.T) {
	f := tableforge.NewMBR(40000, tableforge.Slot{Type: 0xef, Start: 63, Sectors: 16000})
	fsforge.PutFAT16(f, 63, 16000)
	broken := errors.New("medium error")
	defer holding(nil, broken)()
	_, err := layout.ReadBoot(boottest.GuestOf(t, f))
	require.ErrorIs(t, err, broken)
}

// eachRead requires that a finder returns the error of each of its reads of a disk.
func eachRead(t *testing.T, finder boot.Finder, f forge.Bytes, change func(g *boot.Guest)) {
	t.Helper()
	d := boottest.Disk(f)
	tab, parts := boottest.Partitions(t, d)
	disktest.EveryReadCounts(t, d, func(d disk.Disk) error {
		g := boottest.Guest(d, tab, parts)
		g.Codes, g.Code = layout.Codes(), layout.Identify(g.Sector0)
		if change != nil {
			change(g)
		}
		_, err := finder.Find(g)
		return err
	})
}

// No firmware finder mistakes a read error for data.
func TestEachReadOfFirmware(t *testing.T) {
	xfs := tableforge.NewMBR(16384, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 64, Sectors: 16000})
	xfs.U8(0, 0xfa) // code that is not known
	volumeforge.PutXFS(xfs, 64, 16000)
	ntfs := tableforge.NewMBR(4096, tableforge.Slot{Type: 7, Flag: 0x80, Start: 63, Sectors: 3000})
	ntfs.U8(0, 0xfa)
	fsforge.PutNTFS(ntfs, 63, 3000)
	for name, f := range map[string]forge.Bytes{"XFS": xfs, "NTFS": ntfs} {
		for _, finder := range []boot.Finder{
			firmware.Chain, firmware.Encryption, firmware.Sector0,
			firmware.BootSectors,
		} {
			t.Run(name+" "+finder.Name, func(t *testing.T) {
				eachRead(t, finder, f, nil)
			})
		}
	}
	eachRead(t, firmware.HiddenSectors, ntfs, nil)
}

// BitLocker To Go keeps a copy of its boot sector where the FAT in front says. What is not a copy stays as it is.
func TestHiddenSectorsOfBitLockerToGo(t *testing.T) {
	const start, copyAt = 63, 6
	for name, tc := range map[string]struct {
		change func(f forge.Bytes)
		want   int
	}{
		"a copy":        {func(forge.Bytes) {}, 2},
		"another start": {func(f forge.Bytes) { f.U32((start+copyAt)*512+volume.AtHidden, 64) }, 1},
		"none":          {func(f forge.Bytes) { f.U16(start*512+0x32, 0) }, 1},
		"no FAT":        {func(f forge.Bytes) { f.Text(start*512+3, "-FVE-FS-") }, 1},
	} {
		f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0x0c, Start: start, Sectors: 3000})
		for _, lba := range []int64{start, start + copyAt} {
			f.Text(lba*512, "\xeb\x58\x90MSWIN4.1")
			f.U16(lba*512+fsforge.BootBytesPerSector, 512)
			f.U16(lba*512+0x32, copyAt)
			f.U32(lba*512+volume.AtHidden, start)
		}
		tc.change(f)
		toGo := func(g *boot.Guest) { g.Partitions[0].Volume = &volume.Volume{Kind: volume.BitLocker} }
		g := boottest.GuestOf(t, f)
		toGo(g)
		found, err := firmware.HiddenSectors.Find(g)
		require.NoError(t, err)
		require.Len(t, found.Refs, tc.want, name)
		eachRead(t, firmware.HiddenSectors, f, toGo)
	}
}

// failing has names, and a folder that cannot be listed.
type failing struct {
	names
	folder string
}

func (f failing) List(folder string) ([]guestfile.Entry, error) {
	if folder == f.folder {
		return nil, disktest.ErrFault
	}
	return f.names.List(folder)
}

// An unreadable folder does not count as one without loaders, and a malformed one is reported.
func TestFoldersOfUEFIThatCannotBeRead(t *testing.T) {
	f := tableforge.NewMBR(40000, tableforge.Slot{Type: 0xef, Start: 63, Sectors: 16000})
	fsforge.PutFAT16(f, 63, 16000)
	d := boottest.Disk(f)
	tab, parts := boottest.Partitions(t, d)
	for _, folder := range []string{"EFI", "EFI/debian"} {
		restore := holding(failing{names{"EFI/debian/grubx64.efi"}, folder}, nil)
		_, err := firmware.UEFI.Find(boottest.Guest(d, tab, parts))
		require.ErrorIs(t, err, disktest.ErrFault, folder)
		restore()
	}
	defer holding(nil, ondisk.ErrNoMatch)()
	found, err := firmware.UEFI.Find(boottest.Guest(d, tab, parts))
	require.NoError(t, err)
	require.Contains(t, found.Chain[0].Text, "whose files trueup cannot read")
}

// limineCode is the common part of the boot sectors of Limine 4 to 8.
var limineCode = boottest.Code("68007007bfa87d668b05668b6d0431db6631c98b4dfce8", "668b4508668b6d0c01cb8b4dfee8",
	"60be0080c7041000c744020100895c048c44065256665066 55b448be1080c7041e00cd1372458b6c18",
	"66f7f56689440866c7440c000000005ab442f8cd1372 13016c04")

// putLimine writes Limine into sector 0, with the lengths and positions of both halves of its stage 2, in bytes.
func putLimine(f forge.Bytes, sizes [2]uint16, places [2]uint64) {
	f.Put(0, limineCode)
	for i := range int64(2) {
		f.U16(0x1a4+2*i, sizes[i])
		f.U64(0x1a8+8*i, places[i])
	}
}

// Limine's stage 2 moves with its partition, and stays in place outside of all partitions. Any other location is
// reported.
func TestLimine(t *testing.T) {
	const half = "Limine in sector 0 loads half "
	for name, tc := range map[string]struct {
		sizes  [2]uint16
		places [2]uint64
		texts  []string
		refs   []int64 // places of fields that follow
		fixed  []disk.Range
		wrong  int // halves that are refused
	}{
		"in the gap": {
			sizes: [2]uint16{1024, 700}, places: [2]uint64{512, 1536},
			texts: []string{
				half + "1 of its stage 2 (1024 bytes) from byte 512 of the disk, outside of all partitions",
				half + "2 of its stage 2 (700 bytes) from byte 1536 of the disk, outside of all partitions",
			},
			fixed: []disk.Range{{Off: 512, Len: 1024}, {Off: 1536, Len: 1024}},
		},
		"in a partition and behind all": {
			sizes: [2]uint16{512, 512}, places: [2]uint64{100 * 512, 7999 * 512},
			texts: []string{
				"stage 2 of Limine lies in partition 1",
				half + "1 of its stage 2 (512 bytes) from byte 51200 of the disk, inside partition 1",
				half + "2 of its stage 2 (512 bytes) from byte 4095488 of the disk, outside of all partitions",
			},
			refs: []int64{0x1a8}, fixed: []disk.Range{{Off: 7999 * 512, Len: 512}},
		},
		"over an end, and none": {
			sizes: [2]uint16{1024, 0}, places: [2]uint64{62 * 512, 512},
			texts: []string{
				half + "1 of its stage 2 (1024 bytes) from byte 31744 of the disk, only partly inside a partition",
				half + "2 of its stage 2 (0 bytes) from byte 512 of the disk, which is not a valid place for it",
			},
			wrong: 2,
		},
		"behind the disk, and between sectors": {
			sizes: [2]uint16{513, 512}, places: [2]uint64{7999 * 512, 1000},
			texts: []string{
				half + "1 of its stage 2 (513 bytes) from byte 4095488 of the disk, which is not a valid place for it",
				half + "2 of its stage 2 (512 bytes) from byte 1000 of the disk, which is not a valid place for it",
			},
			wrong: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0xda, Flag: 0x80, Start: 63, Sectors: 4000})
			putLimine(f, tc.sizes, tc.places)
			r := boottest.Read(t, f)
			require.Equal(t, firmware.Limine, r.Code)
			require.Equal(t, tc.texts, boottest.Texts(r.Chain))
			var refs []int64
			require.Len(t, r.Refs, 2)
			for _, x := range r.Refs {
				if !x.Follows() {
					require.Zero(t, x.Target)
					require.NotEmpty(t, x.Stays)
					continue
				}
				require.Equal(t, 1, x.Target)
				b, err := x.Encode(x.Raw, 1<<20)
				require.NoError(t, err)
				require.Equal(t, binary.LittleEndian.AppendUint64(nil, 1<<20), b)
				refs = append(refs, x.Off)
			}
			require.Equal(t, tc.refs, refs)
			var fixed []disk.Range
			for _, x := range r.Fixed {
				require.Equal(t, ondisk.Unbootable, x.Issue.Effect)
				fixed = append(fixed, x.Range)
			}
			require.Equal(t, tc.fixed, fixed)
			require.Len(t, boottest.Issues(r, "limine"), tc.wrong)
		})
	}
}

// For any fields, each half is rewritten within one partition, must stay outside of all, or is refused.
func FuzzLimine(f *testing.F) {
	blank := tableforge.NewMBR(512, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 200},
		tableforge.Slot{Type: 0x83, Start: 300, Sectors: 100})
	_, parts := boottest.Partitions(f, boottest.Disk(blank))
	f.Add(uint16(512), uint16(512), uint64(512), uint64(64*512))
	f.Add(uint16(65535), uint16(0), uint64(1<<63), uint64(511*512))
	f.Fuzz(func(t *testing.T, size1, size2 uint16, place1, place2 uint64) {
		image := bytes.Clone(blank)
		putLimine(image, [2]uint16{size1, size2}, [2]uint64{place1, place2})
		d := boottest.Disk(image)
		g := boottest.Guest(d, &table.Table{BootCode: image[:440]}, parts)
		r := boottest.ReadGuest(t, g)
		require.Len(t, r.Refs, 2)
		follow := 0
		for _, x := range r.Refs {
			if !x.Follows() {
				continue
			}
			follow++
			p, ok := g.Holding(x.Points, 1)
			require.True(t, ok)
			require.Equal(t, p.Number, x.Target)
			same, err := x.Encode(x.Raw, x.Points)
			require.NoError(t, err)
			require.Equal(t, x.Raw, same)
		}
		require.Equal(t, 2, follow+len(r.Fixed)+len(boottest.Issues(r, "limine")))
		for _, x := range r.Fixed {
			require.Positive(t, x.Len)
			require.GreaterOrEqual(t, x.Off, int64(512))
			require.LessOrEqual(t, x.End(), d.Size())
			for _, p := range parts {
				require.False(t, p.Overlaps(x.Range))
			}
		}
	})
}
