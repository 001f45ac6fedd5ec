package vmdkforge

import (
	"slices"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Places of the fields of an extent of ESX, in bytes. Spec: VMware, Virtual Disk Format 1.1, "ESX Server Sparse
// Extents".
const (
	COWDVersion       = 4
	COWDFlags         = 8
	COWDNumSectors    = 12
	COWDGrainSize     = 16
	COWDGDOffset      = 20
	COWDNumGDEntries  = 24
	COWDFreeSector    = 28
	COWDUnclean       = 1648
	cowdHeader        = 4 // sectors
	cowdEntries       = 4096
	cowdTableSectors  = 4 * cowdEntries / vmdkSector
	COWDTable         = cowdTableSectors * vmdkSector
	cowdRootAndChecks = 3
)

// COWD is a valid extent of ESX and where its parts lie, in bytes.
type COWD struct {
	forge.Bytes
	GD     int64
	Tables []int64 // 0: not there
	grain  int64   // bytes
}

// NewCOWD stores the grains of a disk selected by stored, or if nil all nonzero ones: a table is appended with its
// first grain. grain is their size in sectors.
func NewCOWD(disk []byte, grain int64, stored func(i int64) bool) *COWD {
	size := grain * vmdkSector
	grains := (int64(len(disk)) + size - 1) / size
	tables := (grains + cowdEntries - 1) / cowdEntries
	gdSectors := (4*tables + vmdkSector - 1) / vmdkSector
	c := &COWD{GD: cowdHeader * vmdkSector, Tables: make([]int64, tables), grain: size}
	c.Bytes = make(forge.Bytes, (cowdHeader+gdSectors)*vmdkSector)
	for i := range grains {
		data := disk[i*size : min((i+1)*size, int64(len(disk)))]
		if stored == nil && !hasData(data) || stored != nil && !stored(i) {
			continue
		}
		c.add(i, data)
	}
	c.Text(0, "COWD")
	c.U32(COWDVersion, 1)
	c.U32(COWDFlags, cowdRootAndChecks)
	c.U32(COWDNumSectors, uint32(len(disk)/vmdkSector))
	c.U32(COWDGrainSize, uint32(grain))
	c.U32(COWDGDOffset, cowdHeader)
	c.U32(COWDNumGDEntries, uint32(tables))
	c.U32(COWDFreeSector, uint32(len(c.Bytes)/vmdkSector))
	return c
}

func hasData(b []byte) bool { return slices.ContainsFunc(b, func(b byte) bool { return b != 0 }) }

// add appends grain i.
func (c *COWD) add(i int64, data []byte) {
	t := i / cowdEntries
	if c.Tables[t] == 0 {
		c.Tables[t] = int64(len(c.Bytes))
		c.U32(c.GD+4*t, uint32(len(c.Bytes)/vmdkSector))
		c.Bytes = append(c.Bytes, make([]byte, COWDTable)...)
	}
	c.U32(c.Tables[t]+i%cowdEntries*4, uint32(len(c.Bytes)/vmdkSector))
	c.Bytes = append(c.Bytes, data...)
	c.Bytes = append(c.Bytes, make([]byte, c.grain-int64(len(data)))...)
}

// Offsets of the fields of a space-efficient sparse extent, in bytes. VMware has not published the format; QEMU reads
// it (block/vmdk.c, VMDKSESparseConstHeader).
const (
	SEVersion        = 8
	SECapacity       = 16
	SEGrainSize      = 24
	SETableSize      = 32
	SEFlags          = 40
	SEReserved       = 48
	SEVolatile       = 80
	seVolatileSize   = 88
	SEGrainDir       = 128
	SEGrainDirSize   = 136
	SEGrainTables    = 144
	seGrainTablesLen = 152
	SEGrains         = 192
	seGrainsLen      = 200
	SEPad            = 208
	SEReplayJournal  = 24 // of the volatile header
	seTable          = 64 * vmdkSector
	SEGrain          = 8 * vmdkSector
	seEntries        = seTable / 8
)

// SEKind is the kind of a grain, as its entry has it in the upper four bits.
type SEKind uint64

// The kinds.
const (
	SEAbsent   SEKind = 0
	SEUnmapped SEKind = 1
	SEZero     SEKind = 2
	SEStored   SEKind = 3
)

// SESparse is a valid space-efficient sparse extent and where its parts lie, in bytes.
type SESparse struct {
	forge.Bytes
	Volatile, GD, GT, Grains int64
}

// NewSESparse stores a disk, grain by grain according to kind. If kind is nil, it stores the nonzero grains. The grains
// are numbered from first on: the lower 12 bits of a number are in other bits of an entry than the higher ones.
func NewSESparse(disk []byte, first int64, kind func(i int64) SEKind) *SESparse {
	grains := (int64(len(disk)) + SEGrain - 1) / SEGrain
	tables := (grains + seEntries - 1) / seEntries
	gdSectors := (8*tables + vmdkSector - 1) / vmdkSector
	s := &SESparse{Volatile: vmdkSector, GD: 128 * vmdkSector}
	s.GT = s.GD + gdSectors*vmdkSector
	s.Grains = s.GT + tables*seTable
	s.Bytes = make(forge.Bytes, s.Grains+first*SEGrain)
	next := first
	for i := range grains {
		data := disk[i*SEGrain : min((i+1)*SEGrain, int64(len(disk)))]
		k := SEAbsent
		if kind != nil {
			k = kind(i)
		} else if hasData(data) {
			k = SEStored
		}
		s.U64(s.GD+i/seEntries*8, 0x1000000000000000|uint64(i/seEntries))
		n := int64(0)
		if k == SEStored {
			n = next
			next++
			s.Bytes = append(s.Bytes, data...)
			s.Bytes = append(s.Bytes, make([]byte, SEGrain-len(data))...)
		}
		s.SetGrain(i, k, n)
	}
	// QEMU requires a file that continues after the last grain's first sectors
	s.Bytes = append(s.Bytes, make([]byte, SEGrain)...)
	s.header(int64(len(disk)), gdSectors, tables, next)
	return s
}

func (s *SESparse) header(size, gdSectors, tables, grains int64) {
	s.U64(0, 0xcafebabe)
	s.U64(SEVersion, 0x200000001)
	s.U64(SECapacity, uint64(size/vmdkSector))
	s.U64(SEGrainSize, SEGrain/vmdkSector)
	s.U64(SETableSize, seTable/vmdkSector)
	s.U64(SEVolatile, uint64(s.Volatile/vmdkSector))
	s.U64(seVolatileSize, 1)
	s.U64(SEGrainDir, uint64(s.GD/vmdkSector))
	s.U64(SEGrainDirSize, uint64(gdSectors))
	s.U64(SEGrainTables, uint64(s.GT/vmdkSector))
	s.U64(seGrainTablesLen, uint64(tables*seTable/vmdkSector))
	s.U64(SEGrains, uint64(s.Grains/vmdkSector))
	s.U64(seGrainsLen, uint64(grains*SEGrain/vmdkSector))
	s.U64(s.Volatile, 0xcafecafe)
}

// SetGrain writes the entry of grain i.
func (s *SESparse) SetGrain(i int64, kind SEKind, number int64) {
	n := uint64(number)
	s.U64(s.GT+8*i, uint64(kind)<<60|n&0xfff<<48|n>>12)
}
