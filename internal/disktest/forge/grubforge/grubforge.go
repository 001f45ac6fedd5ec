// Package grubforge forges the parts of GRUB that hold positions.
package grubforge

import "github.com/trueup/trueup/internal/disktest/forge"

// Stage is the data that GRUB legacy's installer writes into a stage. Spec: GRUB 0.97, stage2/start.S, stage2/asm.S,
// install_func.
type Stage struct {
	First     uint32 // LBA of its first sector
	List      []Run  // of the other sectors; the first of the list has the head
	Address   uint16 // 8000h for stage2, 2000h for stage1.5
	ID        byte   // 0: stage2; 2: a stage1.5 that reads ext
	Version   string
	Partition byte // of the table, from 0: where its next file is; FFh: the whole disk
	Opens     string
}

// Run is an entry of a block list.
type Run struct {
	Start            uint32
	Sectors, Segment uint16
}

// Stage2 returns a stage2 0.97 with one run of sectors after its first one, which opens the usual menu in the first
// partition.
func Stage2(first uint32) Stage {
	return Stage{
		First: first, List: []Run{{first + 1, 233, 0x820}}, Address: 0x8000,
		Version: "0.97", Opens: "/boot/grub/menu.lst",
	}
}

// Stage15 returns a stage1.5 for ext in the gap.
func Stage15() Stage {
	return Stage{
		First: 1, List: []Run{{2, 18, 0x220}}, Address: 0x2000, ID: 2,
		Version: "0.97", Opens: "/boot/grub/stage2 /boot/grub/menu.lst",
	}
}

// PutStage1 makes the sector at LBA lba a stage1 that loads a stage.
func PutStage1(f forge.Bytes, lba int64, s Stage) {
	at := lba * 512
	f.Put(at, []byte{0xeb, 0x48, 0x90})
	f.Put(at+0x3e, []byte{3, 2, 0xff, 0})
	f.U16(at+0x42, s.Address)
	f.U32(at+0x44, s.First)
	f.U16(at+0x48, s.Address/16)
	f.Put(at+0xa0, []byte{0x66, 0x8b, 0x1e, 0x44, 0x7c}) // mov ebx,[7c44h]
	f.Put(at+0x15d, []byte{0xff, 0x26, 0x42, 0x7c})      // jmp [7c42h]
	f.Text(at+0x180, "GRUB \x00Geom\x00Hard Disk\x00Read\x00 Error\x00")
	f.U16(at+510, 0xaa55)
}

// PutStage writes the first two sectors of a stage.
func PutStage(f forge.Bytes, s Stage) {
	at := int64(s.First) * 512
	f.Put(at+9, []byte{0xbf, 0xf8, byte(s.Address>>8) + 1})       // mov di,address+1f8h
	f.Put(at+0xe8, []byte{0xea, 0, byte(s.Address>>8) + 2, 0, 0}) // jmp 0:address+200h
	for i, r := range s.List {
		e := at + 0x1f8 - int64(i)*8
		f.U32(e, r.Start)
		f.U16(e+4, r.Sectors)
		f.U16(e+6, r.Segment)
	}
	at = int64(s.List[0].Start) * 512
	f.Put(at, []byte{0xea, 0x70, byte(s.Address>>8) + 2, 0, 0, 0, 3, 2})
	f.Put(at+8, []byte{0xff, 0xff, s.Partition, 0})
	f.U8(at+0x10, s.ID)
	text := s.Version + "\x00"
	if s.ID != 0 {
		f.Put(at+8, []byte{0xff, 0xff, 0xff, 0})
		text += string([]byte{0xff, 0xff, s.Partition, 0xff})
	}
	f.Text(at+0x12, text+s.Opens+"\x00")
}
