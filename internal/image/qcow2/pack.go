package qcow2

import (
	"bytes"
	"sync"

	"github.com/klauspost/compress/flate"

	"github.com/trueup/trueup/internal/ondisk"
)

// packedTarget writes compressed clusters, one behind the other without gaps, as qemu-img does. Clusters that deflate
// does not make smaller are stored plainly.
type packedTarget struct {
	*target
	at  int64 // byte offset where the next packed cluster can go, 0 when the last file cluster is full or was left
	end int64 // of that file cluster
}

// deflateWindow is the window with which readers inflate, in bytes: QEMU gives zlib windowBits of 12.
const deflateWindow = 4 << 10

// packer compresses one cluster at a time.
type packer struct {
	z   *flate.Writer
	out bytes.Buffer
}

var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriterWindow(nil, deflateWindow)
	if err != nil {
		panic(err) // of a constant
	}
	return &packer{z: w}
}}

// Pack compresses a cluster. The last one of the disk is packed, or stored, as a whole.
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

// Reserve places n bytes of a cluster: all of them, or fewer when they are packed.
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
	t.slots.Add(off, n, place)
	return nil
}

// allocPacked returns the place of n bytes, fewer than a cluster: in what is left of the last file cluster, and on into
// the next one where that follows at once. Clusters of a refcount block that was left are not touched again.
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
