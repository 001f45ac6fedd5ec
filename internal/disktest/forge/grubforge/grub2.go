package grubforge

import (
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// Places in the two first sectors of GRUB 2. Spec: GRUB 2.06, include/grub/i386/pc/boot.h,
// grub-core/boot/i386/pc/diskboot.S.
const (
	KernelAddress = 0x5a
	KernelSector  = 0x5c
	grubBootDrive = 0x64
	FirstEntry    = 0x1f4
	EntrySize     = 12
)

// Entry is a run of sectors in a block list.
type Entry struct {
	Start   uint64
	Sectors uint16
}

// PutBoot writes the relevant parts of boot.img over the code of a sector: the first sector of core.img, the
// instruction that reads it, and the texts.
func PutBoot(f forge.Bytes, lba int64, core uint64) {
	b := f[lba*512:]
	clear(b[:440])
	b.Put(0, []byte{0xeb, 0x63, 0x90})
	b.U16(KernelAddress, 0x8000)
	b.U64(KernelSector, core)
	b.U8(grubBootDrive, 0xff)                         // the one that the BIOS booted
	b.Put(0xbc, []byte{0x66, 0x8b, 0x1e, 0x5c, 0x7c}) // mov ebx,[7c5ch]
	b.Text(0x180, "GRUB \x00Geom\x00Hard Disk\x00Read\x00 Error\r\n\x00")
	b.U16(tableforge.MBRMagic, 0xaa55)
}

// PutCore writes the relevant parts of core.img's first sector: the instructions that walk the list, the texts, and the
// list.
func PutCore(f forge.Bytes, lba int64, entries ...Entry) {
	b := f[lba*512:][:512]
	clear(b)
	b.Put(0x08, []byte{0xbf, 0xf4, 0x81})              // mov di,81f4h
	b.Put(0xf2, []byte{0x83, 0xef, 0x0c})              // sub di,12
	b.Put(0x100, []byte{0xea, 0x00, 0x82, 0x00, 0x00}) // jmp 0:8200h
	b.Text(0x11b, "loading\x00.\x00\r\n\x00Geom\x00Read\x00 Error\x00")
	segment := uint16(0x820)
	for i, e := range entries {
		at := FirstEntry - int64(i)*EntrySize
		b.U64(at, e.Start)
		b.U16(at+8, e.Sectors)
		b.U16(at+10, segment)
		segment += e.Sectors * 32
	}
}
