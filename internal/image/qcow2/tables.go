package qcow2

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// Bits of L1 and L2 entries. Spec: "Cluster mapping".
const (
	copied      = 1 << 63 // refcount is exactly one
	compressed  = 1 << 62
	zeroFlag    = 1 << 0
	placeMask   = 0x00ff_ffff_ffff_fe00 // bits 9 to 55: a byte offset in the file
	subclusters = 32                    // of a cluster with extended L2 entries
)

const (
	tableCache    = 4 << 20 // bytes of tables kept in memory
	unpackedCache = 8 << 20 // bytes of decompressed clusters kept in memory
	scanEntries   = 256     // L2 entries per read of run, half as many if extended
	scanTables    = 1024    // empty L1 entries skipped at once; 64 TiB have 131,072 of them
)

// qcow is an opened image.
type qcow struct {
	file    driver.File
	data    driver.File // the file with the clusters: file, or the external data file
	h       *header
	x       *extensions
	tabs    *ondisk.Pages
	parent  *driver.Image // nil without backing file: holes are zeros
	packed  *driver.Unpacked
	inflate inflater
	unit    int64 // bytes with one state: a cluster or a subcluster
	subs    int64 // units in a cluster
}

func newQcow(s *driver.Source, h *header, x *extensions) *qcow {
	q := &qcow{file: s.File, h: h, x: x, tabs: ondisk.NewPages(s.File, s.Memory(tableCache)), subs: 1}
	if h.extended() {
		q.subs = subclusters
	}
	q.unit = h.cluster() / q.subs
	q.inflate = inflaters[x.packing]
	q.packed = driver.NewUnpacked(s.Memory(unpackedCache), h.cluster(), q.unpack)
	return q
}

// state is the decoded state of a unit.
type state struct {
	kind  kind
	place int64  // file offset of the data, bytes
	key   uint64 // descriptor of a compressed cluster
}

type kind int

const (
	hole   kind = iota // reads from the parent
	zero               // zeros, also over a parent
	data               // stored uncompressed
	packed             // stored compressed
)

// continues reports whether s, n bytes behind first, extends its run.
func (s state) continues(first state, n int64) bool {
	return s.kind == first.kind && s.kind != packed && (s.kind != data || s.place == first.place+n)
}

// entryBuffers reuses buffers for L2 entries: every read of the disk needs one.
var entryBuffers = sync.Pool{New: func() any { return new([8 * scanEntries]byte) }}

// run maps an offset through L1 and L2 entry to the cluster. It returns the longest run within a part of one L2 table.
func (q *qcow) run(off int64) (disk.Run, error) {
	cluster, perTable := off/q.h.cluster(), q.h.entries()
	table, absent, err := q.table(q.h.l1(), cluster/perTable)
	if err != nil {
		return disk.Run{}, err
	}
	if table == 0 {
		end := (cluster/perTable + absent) * perTable * q.h.cluster()
		return q.below(off, end-off), nil
	}
	first := cluster % perTable
	buf, _ := entryBuffers.Get().(*[8 * scanEntries]byte)
	defer entryBuffers.Put(buf)
	n := min(perTable-first, int64(len(buf))/q.h.entrySize(), q.h.clusters()-cluster)
	e := l2entries{q: q, table: table, first: first, b: buf[:n*q.h.entrySize()]}
	if err := q.tabs.Read(e.b, e.place(0)); err != nil {
		return disk.Run{}, err
	}
	return q.join(&e, cluster, off)
}

// table returns the byte offset of L2 table i of an L1 table. For an absent table, it returns 0 and the number of
// absent tables from there on.
func (q *qcow) table(l1 disk.Range, i int64) (place, absent int64, err error) {
	at := l1.Off + 8*i
	entry, err := q.tabs.BE64(at)
	if err != nil {
		return 0, 0, err
	}
	if entry != 0 {
		place, err = q.tablePlace(entry, at)
		return place, 0, err
	}
	e := make([]byte, 8*min(scanTables, l1.Len/8-i))
	if err := q.tabs.Read(e, at); err != nil {
		return 0, 0, err
	}
	for int(8*absent) < len(e) && binary.BigEndian.Uint64(e[8*absent:]) == 0 {
		absent++
	}
	return 0, absent, nil
}

// tablePlace checks a nonzero L1 entry at byte offset at, and returns the byte offset of its L2 table.
func (q *qcow) tablePlace(entry uint64, at int64) (int64, error) {
	place := ondisk.I64(entry & placeMask)
	r := disk.Range{Off: place, Len: q.h.cluster()}
	if entry&^(placeMask|copied) != 0 || place == 0 || place%q.h.cluster() != 0 ||
		place > q.file.Size()-q.h.cluster() || q.inTables(r) {
		return 0, &ondisk.FormatError{
			What: "qcow2 L1 table", Off: at, Field: "entry", Got: fmt.Sprintf("%#x", entry),
			Past: place >= q.file.Size(),
			Want: fmt.Sprintf("0, or the place of an L2 table: a cluster of %d bytes inside the file of %d bytes and "+
				"outside of L1 and refcount table, with bits 0 to 8 and 56 to 62 clear", q.h.cluster(), q.file.Size()),
		}
	}
	return place, nil
}

// inTables reports whether a cluster overlaps the L1 or the refcount table.
func (q *qcow) inTables(r disk.Range) bool {
	return r.Overlaps(q.h.l1()) || r.Overlaps(q.h.refTable())
}

// l2entries is a part of an L2 table.
type l2entries struct {
	q     *qcow
	table int64 // byte offset of the table
	first int64 // index of the first entry in b
	b     []byte
}

func (e *l2entries) len() int64 { return int64(len(e.b)) / e.q.h.entrySize() }

// place returns the byte offset of entry i of b.
func (e *l2entries) place(i int64) int64 { return e.table + (e.first+i)*e.q.h.entrySize() }

// get returns entry i of b, and its subcluster bitmap.
func (e *l2entries) get(i int64) (entry, bitmap uint64) {
	b := e.b[i*e.q.h.entrySize():]
	entry = binary.BigEndian.Uint64(b)
	if e.q.h.extended() {
		bitmap = binary.BigEndian.Uint64(b[8:])
	}
	return entry, bitmap
}

func (e *l2entries) bad(i int64, name string, got uint64, want string) error {
	at := e.place(i)
	if name == "subcluster bitmap" {
		at += 8
	}
	past := name == "entry" && got&compressed == 0 && ondisk.I64(got&placeMask) > e.q.data.Size()-e.q.h.cluster()
	return &ondisk.FormatError{
		What: "qcow2 L2 table", Off: at, Field: name, Got: fmt.Sprintf("%#x", got), Want: want, Past: past,
	}
}

// join returns one run for the first unit and the units that continue it, from off on.
func (q *qcow) join(e *l2entries, cluster, off int64) (disk.Run, error) {
	sub := off % q.h.cluster() / q.unit
	first, err := e.state(0, sub, q.need(cluster, sub))
	if err != nil {
		return disk.Run{}, err
	}
	into := off % q.unit
	n := int64(1) // units
	if first.kind == packed {
		into, n = off%q.h.cluster(), q.subs
	}
	for i := sub + n; i < e.len()*q.subs && first.kind != packed; i++ {
		// A malformed entry does not affect the entries before it.
		s, err := e.state(i/q.subs, i%q.subs, q.need(cluster+i/q.subs, i%q.subs))
		if err != nil || !s.continues(first, n*q.unit) {
			break
		}
		n++
	}
	size := n*q.unit - into
	switch first.kind {
	case zero:
		return disk.Run{Len: size}, nil
	case data:
		return disk.Run{Len: size, Src: q.data, Off: first.place + into}, nil
	case packed:
		return disk.Run{Len: size, Src: q.packed.Unit(ondisk.I64(first.key)), Off: into}, nil
	default:
		return q.below(off, size), nil
	}
}

// need returns the number of bytes of a unit that lie on the disk. The last unit may be partial.
func (q *qcow) need(cluster, sub int64) int64 {
	return min(q.unit, ondisk.I64(q.h.Size)-cluster*q.h.cluster()-sub*q.unit)
}

// below returns the run of the parent behind a hole, or zeros without a parent. Callers then merge adjacent runs of
// zeros.
func (q *qcow) below(off, n int64) disk.Run {
	return driver.Below(q.parent, off, min(n, ondisk.I64(q.h.Size)-off))
}

// state checks entry i and returns the state of its unit sub, which has need bytes on the disk.
func (e *l2entries) state(i, sub, need int64) (state, error) {
	entry, bitmap := e.get(i)
	if entry == 0 && bitmap == 0 {
		return state{}, nil
	}
	if entry&compressed != 0 {
		return e.packed(i, entry, bitmap)
	}
	place, err := e.standard(i, entry)
	if err != nil {
		return state{}, err
	}
	s := state{kind: data, place: place + sub*e.q.unit}
	switch {
	case e.q.h.extended():
		s.kind, err = e.subcluster(i, sub, e.allocated(entry), bitmap)
	case entry&zeroFlag != 0:
		s.kind = zero
	}
	if err == nil && s.kind == data && need > e.q.data.Size()-s.place {
		err = e.bad(i, "entry", entry,
			fmt.Sprintf("the place of a cluster from which %d bytes fit into the file of %d bytes", sub*e.q.unit+need,
				e.q.data.Size()))
	}
	return s, err
}

// standard checks a standard cluster descriptor and returns its host offset, or 0. Spec: "Standard Cluster Descriptor".
func (e *l2entries) standard(i int64, entry uint64) (int64, error) {
	h := e.q.h
	known := uint64(placeMask | copied | zeroFlag)
	if h.Version == 2 || h.extended() {
		known &^= zeroFlag
	}
	if entry&^known != 0 {
		return 0, e.bad(i, "entry", entry, fmt.Sprintf("bits %#x clear, which are reserved",
			^known&^uint64(compressed)))
	}
	place := ondisk.I64(entry & placeMask)
	r := disk.Range{Off: place, Len: h.cluster()}
	switch {
	case place == 0 && entry&copied != 0 && entry&zeroFlag == 0 && !h.external():
		return 0, e.bad(i, "entry", entry, "bit 63 clear where no cluster is allocated")
	case place%h.cluster() != 0:
		return 0, e.bad(i, "entry", entry,
			fmt.Sprintf("a place that is a multiple of the cluster size of %d bytes", h.cluster()))
	case place != 0 && !h.external() && (place == e.table || e.q.inTables(r)):
		return 0, e.bad(i, "entry", entry, "a place apart from L1, L2 and refcount table")
	}
	return place, nil
}

// allocated reports whether a standard cluster descriptor has a host offset. In an external data file, offset 0 is
// valid if bit 63 is set. Spec: "Standard Cluster Descriptor".
func (e *l2entries) allocated(entry uint64) bool {
	return entry&placeMask != 0 || e.q.h.external() && entry&copied != 0
}

// subcluster returns the state of a subcluster in the bitmap of entry i. Spec: "Extended L2 Entries".
func (e *l2entries) subcluster(i, sub int64, allocated bool, bitmap uint64) (kind, error) {
	stored, isZero := bitmap>>sub&1 != 0, bitmap>>(subclusters+sub)&1 != 0
	switch {
	case stored && isZero:
		return hole, e.bad(i, "subcluster bitmap", bitmap, fmt.Sprintf("subcluster %d either allocated or zero", sub))
	case stored && !allocated:
		return hole, e.bad(i, "subcluster bitmap", bitmap, "no allocated subclusters in an entry without a place")
	case stored:
		return data, nil
	case isZero:
		return zero, nil
	}
	return hole, nil
}

// packed checks the descriptor of a compressed cluster. Spec: "Compressed Clusters Descriptor".
func (e *l2entries) packed(i int64, entry, bitmap uint64) (state, error) {
	d := entry &^ uint64(compressed)
	place, size := e.q.h.packedPlace(d)
	left := e.q.file.Size() - place
	switch {
	case e.q.h.external():
		return state{}, e.bad(i, "entry", entry, "no compressed cluster in an image with an external data file")
	case entry&copied != 0:
		return state{}, e.bad(i, "entry", entry, "bit 63 clear in that of a compressed cluster")
	case bitmap != 0:
		return state{}, e.bad(i, "subcluster bitmap", bitmap, "0 for a compressed cluster")
	case left <= 0 || size-left >= sector || place < int64(e.q.h.HeaderLength) ||
		e.q.inTables(disk.Range{Off: place, Len: min(size, left)}):
		return state{}, e.bad(i, "entry", entry,
			fmt.Sprintf("compressed data inside the file of %d bytes, apart from header, L1 and refcount table",
				e.q.file.Size()))
	}
	return state{kind: packed, key: d}, nil
}

// packedPlace decodes a compressed descriptor to a file offset and a maximum size in bytes. The size counts whole
// sectors. The last sector may be cut at the end of the file, or contain the start of other compressed data.
func (h *header) packedPlace(d uint64) (place, size int64) {
	x := 62 - (h.ClusterBits - 8)
	place = ondisk.I64(d & (1<<x - 1))
	sectors := ondisk.I64(d>>x) + 1
	return place, sectors*sector - place%sector
}

// sector is the unit of sizes in compressed descriptors, in bytes.
const sector = 512

// inflater decompresses src into dst. It ignores bytes behind the compressed data, and rejects a stream that is longer
// or shorter than dst.
type inflater func(dst []byte, src io.Reader) error

var inflaters = [...]inflater{packingDeflate: inflateDeflate, packingZstd: inflateZstd}

// unpack decompresses the cluster of descriptor key into dst.
func (q *qcow) unpack(dst []byte, key int64) error {
	place, size := q.h.packedPlace(ondisk.U64(key))
	src := io.NewSectionReader(q.file, place, min(size, q.file.Size()-place))
	if err := q.inflate(dst, src); err != nil {
		if ours := new(streamError); errors.As(err, &ours) {
			return ondisk.Field("qcow2 compressed cluster", "stream", place, ours.Error(),
				fmt.Sprintf("one that gives %d bytes", len(dst)))
		}
		return err
	}
	return nil
}

// streamError marks an error of the compressed data, as opposed to an I/O error.
type streamError struct{ error }

// deflateReaders reuses readers, with buffers of 32 KiB each.
var deflateReaders = sync.Pool{New: func() any {
	return &deflateReader{z: flate.NewReader(nil), b: bufio.NewReaderSize(nil, 4<<10)}
}}

type deflateReader struct {
	z io.ReadCloser
	b *bufio.Reader
}

// inflateDeflate decompresses a raw deflate stream (RFC 1951).
func inflateDeflate(dst []byte, src io.Reader) error {
	r := deflateReaders.Get().(*deflateReader) // the pool holds nothing else
	defer deflateReaders.Put(r)
	file := &failing{Reader: src}
	r.b.Reset(file)
	if err := r.z.(flate.Resetter).Reset(r.b, nil); err != nil { // guaranteed by flate.NewReader
		return err
	}
	n, err := io.ReadFull(r.z, dst)
	switch {
	case file.err != nil:
		return file.err
	case n < len(dst):
		return &streamError{fmt.Errorf("ends after %d bytes: %w", n, err)}
	}
	// Like QEMU, stop after a whole cluster without requiring the end of the stream, and reject further data.
	var one [1]byte
	if n, _ := r.z.Read(one[:]); n > 0 {
		return &streamError{errors.New("goes on")}
	}
	return nil
}

// failing keeps the error of a reader, which a decompressor mixes with its own errors.
type failing struct {
	io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// zstdDecoder decodes single frames into the caller's buffer, so that it allocates neither window nor output.
var zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxZstdWindow))
})

// maxZstdWindow is the window size of the highest common compression level (19), in bytes.
const maxZstdWindow = 8 << 20

// inflateZstd decompresses zstd frames (RFC 8878) until dst is full.
func inflateZstd(dst []byte, src io.Reader) error {
	d, err := zstdDecoder()
	if err != nil {
		return err
	}
	in, err := io.ReadAll(src)
	if err != nil {
		return err
	}
	out := dst[:0:len(dst)]
	for len(out) < len(dst) {
		n, err := zstdFrame(in)
		if err != nil {
			return &streamError{fmt.Errorf("after %d bytes: %w", len(out), err)}
		}
		before := len(out)
		if out, err = d.DecodeAll(in[:n], out); err != nil {
			return &streamError{fmt.Errorf("after %d bytes: %w", before, err)}
		}
		in = in[n:]
	}
	if &out[0] != &dst[0] {
		return errors.New("zstd decoder left the buffer that it was given")
	}
	return nil
}

// zstdFrame returns the length of the first frame in b. The bytes behind it belong to other clusters, and may look like
// a frame. Spec: RFC 8878, section 3.1.1.
func zstdFrame(b []byte) (int, error) {
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return 0, err
	}
	if h.Skippable {
		return 0, errors.New("skippable frame")
	}
	at := h.HeaderSize
	for last := false; !last; {
		if at+3 > len(b) {
			return 0, io.ErrUnexpectedEOF
		}
		v := uint32(b[at]) | uint32(b[at+1])<<8 | uint32(b[at+2])<<16
		size := int(v >> 3)
		if v>>1&3 == 1 {
			size = 1 // one byte, repeated
		}
		last = v&1 != 0
		at += 3 + size
	}
	if h.HasCheckSum {
		at += 4
	}
	if at > len(b) {
		return 0, io.ErrUnexpectedEOF
	}
	return at, nil
}

// packedTarget writes compressed clusters without gaps, as qemu-img does. Incompressible clusters are stored
// uncompressed.
type packedTarget struct {
	*target
	at  int64 // file offset for the next compressed cluster; 0 if the last file cluster is full or no longer open
	end int64 // end of the last file cluster
}

// deflateWindow is the window size of readers, in bytes: QEMU calls zlib with windowBits of 12.
const deflateWindow = 4 << 10

// packer compresses one cluster at a time.
type packer struct {
	z   *flate.Writer
	out bytes.Buffer
}

var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriterWindow(nil, deflateWindow)
	if err != nil {
		panic(err) // cannot happen for a constant
	}
	return &packer{z: w}
}}

// Pack compresses a cluster, and pads the last one of the disk. It returns the cluster itself if compression saves
// nothing.
func (t *packedTarget) Pack(unit []byte, _ int64) ([]byte, error) {
	if short := t.h.cluster() - int64(len(unit)); short > 0 {
		unit = append(bytes.Clone(unit), make([]byte, short)...)
	}
	p := packers.Get().(*packer) // the pool holds nothing else
	defer packers.Put(p)
	p.out.Reset()
	p.z.Reset(&p.out)
	if _, err := p.z.Write(unit); err != nil {
		return nil, err
	}
	if err := p.z.Close(); err != nil {
		return nil, err
	}
	if p.out.Len() >= len(unit) {
		return bytes.Clone(unit), nil
	}
	return bytes.Clone(p.out.Bytes()), nil
}

// Reserve allocates n bytes for a cluster: a whole cluster, or fewer if compressed.
func (t *packedTarget) Reserve(off, n int64) error {
	if n == t.h.cluster() {
		return t.target.Reserve(off, n)
	}
	guest := off / t.h.cluster()
	if err := t.wantTable(guest); err != nil {
		return err
	}
	place, err := t.allocPacked(n)
	if err != nil {
		return err
	}
	sectors := (place+n-1)/sector - place/sector
	t.setEntry(guest, compressed|ondisk.U64(sectors)<<(62-(t.h.ClusterBits-8))|ondisk.U64(place))
	t.ReserveAt(off, n, place)
	return nil
}

// allocPacked returns the file offset for n bytes, fewer than a cluster. It uses the rest of the last file cluster, and
// the next cluster if that is adjacent. It never returns to the clusters of an earlier refcount block, which is written
// already.
func (t *packedTarget) allocPacked(n int64) (int64, error) {
	last := t.end/t.h.cluster() - 1
	here := t.at != 0 && last/t.perBlock() == t.block
	fits := t.end - t.at
	if here && n > fits && (t.next != last+1 || t.next%t.perBlock() == 0) {
		here = false
	}
	if here {
		t.count(last)
	}
	if !here || n > fits {
		place, err := t.alloc()
		if err != nil {
			return 0, err
		}
		if !here {
			t.at = place
		}
		t.end = place + t.h.cluster()
	}
	place := t.at
	if t.at += n; t.at == t.end {
		t.at = 0
	}
	return place, nil
}
