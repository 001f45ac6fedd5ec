package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// usedLog is a $LogFile of Windows XP that was in use, with the records of one checkpoint and what follows it in one
// page. Spec: ntfs-3g, include/ntfs-3g/logfile.h; Linux, fs/ntfs3/fslog.c.
type usedLog struct {
	forge.Bytes
	at, last int64 // places in the log: of the next record, and of the last one
}

// Layout of the log.
const (
	logPage    = 4096
	logRecords = 4 * logPage // the first page of records
	logMFTSlot = 0x18        // of the open attribute table
	logAnySlot = logMFTSlot + 0x2c
)

func newUsedLog(size int64) *usedLog {
	l := &usedLog{Bytes: make(forge.Bytes, size), at: logRecords + 0x40}
	for i := range l.Bytes {
		l.Bytes[i] = 0xff
	}
	clear(l.Bytes[logRecords:][:logPage])
	l.Text(logRecords, "RCRD")
	l.U16(logRecords+4, 0x28)
	l.U16(logRecords+6, 9)
	return l
}

// lsn is the LSN of a place, in the second round.
func (l *usedLog) lsn(at int64) uint64 {
	return 2<<(64-l.sequenceBits()) | uint64(at)/8
}

func (l *usedLog) sequenceBits() uint { return uint(67 - bits.Len64(uint64(len(l.Bytes)))) }

// add writes a record of a kind: 1 of NTFS, 2 of a checkpoint.
func (l *usedLog) add(t testing.TB, kind uint32, data []byte) uint64 {
	t.Helper()
	require.Less(t, l.at+0x30+int64(len(data)), int64(logRecords+logPage))
	lsn := l.lsn(l.at)
	l.U64(l.at, lsn)
	if l.last > 0 {
		l.U64(l.at+8, l.lsn(l.last))
	}
	l.U32(l.at+0x18, uint32(len(data)))
	l.U32(l.at+0x20, kind)
	l.U32(l.at+0x24, 0x40)
	l.Put(l.at+0x30, data)
	l.last = l.at
	l.at += (0x30 + int64(len(data)) + 7) / 8 * 8
	l.U64(logRecords+8, lsn)
	l.U32(logRecords+0x10, 1)
	l.U64(logRecords+0x20, lsn)
	return lsn
}

// logged is a record of NTFS: an operation with its data, on clusters of an attribute.
func logged(op uint16, slot uint16, block uint16, vcn uint64, redo []byte, lcns ...uint64) []byte {
	b := make(forge.Bytes, 0x20+8*len(lcns))
	b.U16(0, op)
	b.U16(4, uint16(len(b)))
	b.U16(6, uint16(len(redo)))
	b.U16(8, uint16(len(b)+len(redo)))
	b.U16(0x0c, slot)
	b.U16(0x0e, uint16(len(lcns)))
	b.U16(0x14, block)
	b.U64(0x18, vcn)
	for i, lcn := range lcns {
		b.U64(int64(0x20+8*i), lcn)
	}
	return append(b, redo...)
}

// checkpoint writes a checkpoint that knows the data of $MFT and of another file as open attributes.
func (l *usedLog) checkpoint(t testing.TB) {
	t.Helper()
	start := l.add(t, 1, logged(0, 0, 0, 0, nil))
	table := make(forge.Bytes, 0x18+2*0x2c)
	table.U16(0, 0x2c)
	table.U16(2, 2)
	for at, record := range map[int64]uint64{logMFTSlot: 1 << 48, logAnySlot: 7<<48 | 45} {
		table.U32(at, 0xffffffff)
		table.U64(at+8, record)
		table.U32(at+0x1c, 0x80)
	}
	attributes := l.add(t, 1, logged(0x1d, 0, 0, 0, table))
	c := make(forge.Bytes, 0x68)
	c.U64(8, start)
	c.U64(0x10, attributes)
	c.U32(0x30, uint32(len(table)))
	c.U32(0x50, 4096)
	lsn := l.add(t, 2, c)
	for off := int64(0); off < 2*logPage; off += logPage {
		clear(l.Bytes[off:][:logPage])
		l.Text(off, "RSTR")
		for at, v := range map[int64]uint16{4: 0x1e, 6: 9, 0x18: 0x30, 0x1a: 1, 0x1c: 1, 0x38: 1, 0x3a: 0xffff, 0x44: 0xe0, 0x46: 0x40, 0x54: 0x30, 0x56: 0x40} {
			l.U16(off+at, v)
		}
		l.U32(off+0x10, logPage)
		l.U32(off+0x14, logPage)
		l.U64(off+0x30, lsn)
		l.U32(off+0x40, uint32(l.sequenceBits()))
		l.U64(off+0x48, uint64(len(l.Bytes)))
		l.U64(off+0x70, start)
		l.U64(off+0x78, lsn)
		l.U32(off+0x8c, 8)
		l.Text(off+0x90, "N\x00T\x00F\x00S\x00")
	}
}

// sealed is the log with the fix-ups of its pages.
func (l *usedLog) sealed() []byte {
	for _, off := range []int64{0, logPage, logRecords} {
		page := l.Bytes[off:][:logPage]
		at := int64(binary.LittleEndian.Uint16(page[4:]))
		page.U16(at, 5)
		for i := int64(1); i < 9; i++ {
			page.Put(at+2*i, page[i*512-2:i*512])
			page.U16(i*512-2, 5)
		}
	}
	return l.Bytes
}

// ntfsFile is where a file lies: its record of the MFT, and its first cluster.
type ntfsFile struct {
	record, cluster int64
	size            int64
}

func findNTFS(t testing.TB, part string, args ...string) (f ntfsFile) {
	t.Helper()
	info := disktest.Output(t, "ntfsinfo", append(append([]string{"-v"}, args...), part)...)
	for what, to := range map[string]*int64{
		`Dumping Inode (\d+)`: &f.record, `(?s)attribute \$DATA .*?Data size:\s+(\d+)`: &f.size,
		`(?s)attribute \$DATA .*?Runlist:[^\n]*\n\s*0x0\s+(0x[0-9a-f]+)`: &f.cluster,
	} {
		n, err := strconv.ParseInt(match(t, info, what), 0, 64)
		require.NoError(t, err)
		*to = n
	}
	return f
}

// hotNTFS is a disk with an NTFS at sector 63 whose log tests replace.
type hotNTFS struct {
	disk     windowsDisk
	raw      string
	part     string // the volume alone
	log, mft ntfsFile
}

const hotStart, hotSectors = 63, 100_000

func newHotNTFS(t *testing.T, files map[string]string) *hotNTFS {
	t.Helper()
	h := &hotNTFS{disk: windowsDisk{signature: windowsSignature, sectors: 120_000, volumes: []windowsVolume{
		{number: 1, kind: "ntfs", typ: "7", start: hotStart, sectors: hotSectors, loads: "NTLDR", files: files},
	}}}
	h.raw = h.disk.make(t)
	h.part = filepath.Join(t.TempDir(), "part")
	require.NoError(t, os.WriteFile(h.part, readAt(t, h.raw, hotStart*sectorSize, hotSectors*sectorSize), 0o600))
	h.log, h.mft = findNTFS(t, h.part, "-i", "2"), findNTFS(t, h.part, "-i", "0")
	return h
}

// onRecord is an operation on a record of the MFT.
func (h *hotNTFS) onRecord(op uint16, n int64) []byte {
	vcn := n * 1024 / 4096
	return logged(op, logMFTSlot, uint16(n*1024%4096/512), uint64(vcn), make([]byte, 8), uint64(h.mft.cluster+vcn))
}

// align aligns the disk with records in its log behind the checkpoint.
func (h *hotNTFS) align(t *testing.T, pending ...[]byte) (r result, dest string) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "source.raw")
	dest = filepath.Join(t.TempDir(), "dest.raw")
	disktest.Run(t, "cp", "--sparse=always", h.raw, source)
	l := newUsedLog(h.log.size)
	l.checkpoint(t)
	for _, p := range pending {
		l.add(t, 1, p)
	}
	writeAt(t, source, hotStart*sectorSize+h.log.cluster*4096, l.sealed())
	return trueup(t, "align", source, dest), dest
}

// requireRefused requires that the log is given as the reason.
func requireRefused(t *testing.T, r result, why string) {
	t.Helper()
	require.Equal(t, 4, r.code, "%s%s", r.stdout, r.stderr)
	require.Contains(t, r.stderr, "$LogFile of NTFS")
	require.Contains(t, r.stderr, why)
}

// An NTFS that was in use when it was copied is aligned when the replay of its log writes to nothing that the move
// rewrites, and refused by name when it does.
func TestHotNTFS(t *testing.T) {
	t.Parallel()
	const system = "Windows/System32/config/SYSTEM"
	hive := mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_2.xz"), letters(hotStart*sectorSize))
	h := newHotNTFS(t, map[string]string{system: hive})
	file := findNTFS(t, h.part, "-F", "/"+system)
	b, err := os.ReadFile(hive)
	require.NoError(t, err)
	letterAt := uint64(file.cluster) + uint64(bytes.Index(b, mountedValue(windowsSignature, hotStart*sectorSize))/4096)
	onAny := func(lcn uint64) []byte { return logged(0x08, logAnySlot, 0, 0, make([]byte, 8), lcn) }
	for name, tc := range map[string]struct {
		pending [][]byte
		refused string
	}{
		"nothing pending":          {nil, ""},
		"another file grows":       {[][]byte{h.onRecord(0x09, 40)}, ""},
		"clusters of another file": {[][]byte{onAny(uint64(file.cluster - 1))}, ""},
		"the hive gets new runs":   {[][]byte{h.onRecord(0x09, file.record)}, "writes the file, record " + fmt.Sprint(file.record)},
		"the hive is deleted":      {[][]byte{h.onRecord(0x03, file.record)}, "writes the file, record " + fmt.Sprint(file.record)},
		"a letter of the hive":     {[][]byte{onAny(letterAt)}, "patched bytes"},
		"the MFT grows":            {[][]byte{h.onRecord(0x09, 0)}, "writes $MFT, record 0"},
		"an operation of tomorrow": {[][]byte{h.onRecord(0x30, 40)}, "operation 0x30 at byte 0: not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			r, dest := h.align(t, tc.pending...)
			if tc.refused != "" {
				requireRefused(t, r, tc.refused)
				return
			}
			require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
			require.Contains(t, r.stdout+r.stderr, "was in use when it was copied")
			// The tools of ntfs-3g refuse a log that is in use: they get the copy with an empty one.
			writeAt(t, dest, 1<<20+h.log.cluster*4096, []byte(strings.Repeat("\xff", int(h.log.size))))
			after := exportHive(t, readGuestFile(t, dest, h.disk.volumes[0], 1<<20, system), `\MountedDevices`)
			before := exportHive(t, hive, `\MountedDevices`)
			old := mountedText(windowsSignature, hotStart*sectorSize)
			require.Positive(t, strings.Count(before, old))
			require.Equal(t, strings.ReplaceAll(before, old, mountedText(windowsSignature, 1<<20)), after)
		})
	}
}

// What an open hive becomes depends on all of its logs, those too in which no position is seen yet: the log of NTFS may
// make one longer, or bring another.
func TestHotHiveInHotNTFS(t *testing.T) {
	t.Parallel()
	const folder = "Windows/System32/config"
	own := int64(hotStart * sectorSize)
	b, err := os.ReadFile(mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_2.xz"), letters(own)))
	require.NoError(t, err)
	hive := forge.Bytes(b[:4096+binary.LittleEndian.Uint32(b[hiveforge.BinsSize:])])
	none := replaced(t, hive, mountedValue(windowsSignature, own), mountedValue(0x99999999, own))
	for name, state := range map[string]forge.Bytes{"with letters": hive, "without": none} {
		t.Run(name, func(t *testing.T) {
			later := slices.Clone(state)
			later[len(later)-5000]++
			h := newHotNTFS(t, map[string]string{
				folder + "/SYSTEM":      hostFile(t, string(hiveforge.Dirty(state, 205))),
				folder + "/SYSTEM.LOG1": hostFile(t, string(hiveforge.Log(state, 204, later))),
			})
			log := findNTFS(t, h.part, "-F", "/"+folder+"/SYSTEM.LOG1").record
			n, err := strconv.ParseInt(match(t, disktest.Output(t, "ntfsinfo", "-F", "/"+folder, h.part), `Dumping Inode (\d+)`), 0, 64)
			require.NoError(t, err)
			r, _ := h.align(t, h.onRecord(0x09, 40))
			require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
			for what, pending := range map[string][]byte{
				"the file, record " + fmt.Sprint(log): h.onRecord(0x0b, log), "a folder of its path": h.onRecord(0x0c, n),
			} {
				r, _ := h.align(t, pending)
				if name == "with letters" {
					requireRefused(t, r, what)
					continue
				}
				require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
				said := strings.Join(strings.Fields(r.stdout+r.stderr), " ") // it is folded
				require.Contains(t, said, "names no partition of this disk, but its log may")
				require.Contains(t, said, what)
			}
		})
	}
}
