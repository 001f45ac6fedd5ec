package ntfs

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
)

func TestStructSizes(t *testing.T) {
	require.Equal(t, 0x20, binary.Size(restartHead{}))
	require.Equal(t, 0x28, binary.Size(restartArea{}))
	require.Equal(t, 0x28, binary.Size(logClient{}))
	require.Equal(t, headerSize, binary.Size(recordHeader{}))
	require.Equal(t, actionSize, binary.Size(actionHeader{}))
	require.Equal(t, 0x68, binary.Size(clientData{}))
	require.Len(t, ops, 0x26)
}

// idle is an open log in which nothing happened since its checkpoint.
func idle(major uint16, client uint32) *forged {
	f := newLog(major, client, 64)
	f.checkpoint(tables{})
	return f
}

// both changes a field of both restart pages.
func both(f *forged, change func(p forge.Bytes)) *forged {
	for off := int64(0); off < 2*pageSize; off += pageSize {
		change(f.Bytes[off : off+pageSize])
	}
	return f
}

func TestStates(t *testing.T) {
	const area = 0x30
	clean := func(f *forged) *forged {
		return both(f, func(p forge.Bytes) { p.U16(area+0x0e, markedClean|1) })
	}
	second := idle(1, 0)
	second.U64(pageSize+area, second.last+1) // newer
	second.U16(pageSize+area+0x0c, noClient)
	for name, tc := range map[string]struct {
		log  *forged
		want State
	}{
		"new": {both(idle(1, 0), func(p forge.Bytes) { copy(p, bytes.Repeat([]byte{0xff}, pageSize)) }), Empty},
		"of chkdsk": {both(idle(1, 0), func(p forge.Bytes) {
			p.Text(0, "CHKD")
			p.U64(8, 1)
		}), Checked},
		"closed": {both(idle(1, 0), func(p forge.Bytes) { p.U16(area+0x0c, noClient) }), Closed},
		"closed, of 1.0": {both(idle(1, 0), func(p forge.Bytes) {
			p.U16(area+0x0c, noClient)
			p.U16(0x1a, 0)
		}), Closed},
		"clean, client 0":     {clean(idle(1, 0)), Clean},
		"clean, client 1":     {clean(idle(1, 1)), Clean},
		"open, client 0":      {idle(1, 0), OpenLog},
		"open, client 1":      {idle(1, 1), OpenLog},
		"open, version 2.0":   {idle(2, 1), OpenLog},
		"second page decides": {second, Closed},
	} {
		t.Run(name, func(t *testing.T) {
			l := tc.log.read(t, newDisk())
			require.Equal(t, tc.want, l.State, "%s", l.State)
			require.Empty(t, l.Writes)
		})
	}
}

// One torn restart page is no loss.
// requireLook requires that the restart pages alone show the state that the whole log has.
func requireLook(t testing.TB, want State, log []byte) {
	t.Helper()
	got, err := ReadState(bytes.NewReader(log))
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestTornRestartPage(t *testing.T) {
	for off := 0; off < 2*pageSize; off += pageSize {
		log := idle(1, 0).sealed()
		log[off+1022]++
		l, err := Read(bytes.NewReader(log), newDisk().volume())
		require.NoError(t, err)
		require.Equal(t, OpenLog, l.State)
	}
}

// set16, set32 and set64 change a field of both restart pages of an idle log.
func set16(at int64, v uint16) *forged {
	return both(idle(1, 0), func(p forge.Bytes) { p.U16(at, v) })
}

func set32(at int64, v uint32) *forged {
	return both(idle(1, 0), func(p forge.Bytes) { p.U32(at, v) })
}

func set64(at int64, v uint64) *forged {
	return both(idle(1, 0), func(p forge.Bytes) { p.U64(at, v) })
}

func TestBrokenRestartPages(t *testing.T) {
	const area, client = 0x30, 0x70
	version3 := both(set16(0x1c, 3), func(p forge.Bytes) { p.U16(0x1a, 0) })
	noRecord := both(set64(client, 0), func(p forge.Bytes) { p.U64(client+8, 8) })
	zeros := both(idle(1, 0), func(p forge.Bytes) { clear(p) })
	versions := idle(1, 0)
	versions.U16(0x1c, 2)
	flags := idle(1, 0)
	flags.U16(area+0x0e, markedClean)
	for name, tc := range map[string]struct {
		log   *forged
		class error
		text  string
	}{
		"none":                      {zeros, ondisk.ErrFormat, "restart pages"},
		"other signature":           {set16(0, 0), ondisk.ErrFormat, "restart pages"},
		"system page":               {set32(0x10, 8192), ondisk.ErrUnsupported, "pages of 8192 and 4096 bytes"},
		"log page":                  {set32(0x14, 512), ondisk.ErrUnsupported, "pages of 4096 and 512"},
		"version 1.0":               {set16(0x1a, 0), ondisk.ErrUnsupported, "version 1.0"},
		"version 2.1":               {set16(0x1c, 2), ondisk.ErrUnsupported, "version 2.1"},
		"version 3.0":               {version3, ondisk.ErrUnsupported, "version 3.0"},
		"two versions":              {versions, ondisk.ErrFormat, `page at 0x30: version "RSTR 2.1", want RSTR 1.1`},
		"two states at one LSN":     {flags, ondisk.ErrFormat, "want open as in the other page"},
		"area behind the page":      {set16(0x18, 4080), ondisk.ErrFormat, "offset of restart area 4080"},
		"area in the header":        {set16(0x18, 8), ondisk.ErrFormat, "offset of restart area 8"},
		"two clients":               {set16(area+8, 2), ondisk.ErrFormat, "clients"},
		"client behind the page":    {set16(area+0x16, 0xffff), ondisk.ErrFormat, "offset of clients"},
		"client of another name":    {set16(client+0x20, 'X'), ondisk.ErrFormat, "client name"},
		"file larger than the log":  {set64(area+0x18, 65*pageSize), ondisk.ErrFormat, "file size"},
		"file without records":      {set64(area+0x18, 4*pageSize), ondisk.ErrFormat, "file size"},
		"file of half a page":       {set64(area+0x18, 63*pageSize+512), ondisk.ErrFormat, "file size"},
		"sequence bits":             {set32(area+0x10, 47), ondisk.ErrFormat, "sequence bits 47, want 48"},
		"record header":             {set16(area+0x24, 0x38), ondisk.ErrUnsupported, "headers of 56"},
		"records at another offset": {set16(area+0x26, 0x48), ondisk.ErrUnsupported, "from byte 72"},
		"restart before oldest":     {set64(client, 1<<60), ondisk.ErrFormat, "LSNs"},
		"restart behind current":    {set64(client+8, 1<<60), ondisk.ErrFormat, "LSNs"},
		"restart is no record":      {noRecord, ondisk.ErrFormat, "LSN"},
		"current is no record":      {set64(area, 1<<60), ondisk.ErrFormat, "record page"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.log.refused(t)
			require.ErrorIs(t, err, tc.class)
			require.ErrorContains(t, err, tc.text)
		})
	}
}

// A log that is marked clean has nothing to write.
func TestCleanMarkContradicted(t *testing.T) {
	f := idle(1, 0)
	f.op(onRecord(30, op{redo: initRecord, undo: noop}))
	f.restart(f.checkpointed(t), f.checkpointed(t), 0, markedClean)
	require.ErrorContains(t, f.refused(t), `flags "clean", want no mark with 1 writes pending`)
}

// checkpointed returns the LSN of the last checkpoint.
func (f *forged) checkpointed(t *testing.T) uint64 {
	t.Helper()
	return binary.LittleEndian.Uint64(f.Bytes[0x70+8:])
}

type sized struct {
	*strings.Reader
	size int64
}

func (s sized) Size() int64 { return s.size }

func TestSizesOfLog(t *testing.T) {
	_, err := Read(sized{strings.NewReader(""), maxLog + 1}, newDisk().volume())
	require.ErrorIs(t, err, ondisk.ErrLimit)
	for _, n := range []int{0, 1, pageSize - 1, pageSize} {
		_, err := Read(bytes.NewReader(make([]byte, n)), newDisk().volume())
		require.ErrorIs(t, err, ondisk.ErrFormat)
	}
	l, err := Read(strings.NewReader("\xff\xff\xff\xff"), newDisk().volume())
	require.NoError(t, err)
	require.Equal(t, Empty, l.State)
	short := idle(1, 0).sealed()
	_, err = Read(bytes.NewReader(short[:pageSize+1]), newDisk().volume())
	require.ErrorContains(t, err, "file size", "the one restart page is of a longer file")
}

// An LSN of a log of 2 MiB, with 45 bits of sequence.
func TestPlaceOfLSN(t *testing.T) {
	r := &reader{offset: 64 - 45}
	require.Equal(t, int64(195976), r.place(1073073))
	require.Equal(t, int64(47*pageSize+3464), r.place(1073073))
	require.Equal(t, uint64(1073073), r.lsn(2, 195976))
}

func TestStructSize(t *testing.T) { require.Equal(t, 512, binary.Size(bootSector{})) }
