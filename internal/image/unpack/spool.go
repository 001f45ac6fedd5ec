package unpack

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// spool is a file without a name, into which images are unpacked one behind the other. Zeros are holes in it.
type spool struct {
	f    *os.File
	at   *sys.File
	dir  *sys.Folder
	path string // of the folder
	end  int64  // where the next one goes
}

// Sizes of a spool, in bytes.
const (
	spoolUnit  = 4 * units.KiB  // zeros of less are stored
	spoolRead  = units.MiB      // what is unpacked at once
	spoolCheck = 64 * units.MiB // what is unpacked between two looks at the free space, and must be left of it
)

// needSpool makes the spool, once.
func (b *box) needSpool(kind string) error {
	switch {
	case b.spool != nil:
		return nil
	case b.way.Spool == "":
		return &ondisk.Refusal{
			Code: "unsupported", Reason: fmt.Sprintf("it is packed (%s), and has to be unpacked to be read", kind),
			Remedy: "give --spool DIR, a folder with room for the unpacked image, which leaves nothing there",
		}
	}
	dir, err := sys.OpenFolder(b.way.Spool)
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "unpacking in %s: %w; give another folder: --spool DIR", b.way.Spool, err)
	}
	f, err := sys.Scratch(b.way.Spool, ".trueup.spool")
	if err != nil {
		return errors.Join(ondisk.In(ondisk.ErrOutput, "unpacking in %s: %w", b.way.Spool, err), dir.Close())
	}
	sys.Of(f).Sparse()
	b.spool = &spool{f: f, at: sys.Of(f), dir: dir, path: b.way.Spool}
	return nil
}

// close gives up what was unpacked. It may be called on nil.
func (s *spool) close() error {
	if s == nil {
		return nil
	}
	return errors.Join(s.f.Close(), s.dir.Close())
}

// unpackStream unpacks all of the file.
func (b *box) unpackStream(kind string) (content, error) {
	r, err := OpenStream(kind, b.file)
	if err != nil {
		return nil, err
	}
	return b.unpack(kind, r, b.file.Size(), r.Stated)
}

// content returns the bytes of a file of an archive, unpacked.
func (b *box) content(f *file) (content, error) {
	if f.zip == nil {
		return part{b.base, f.at}, nil
	}
	r, err := f.zip.Open(b.file)
	if err != nil {
		return nil, err
	}
	return b.unpack(zipFile, r, f.zip.Packed, f.zip.Size)
}

// unpack unpacks so many packed bytes into the spool. stated is how many there should be of them then, -1 for unknown.
func (b *box) unpack(kind string, r Unpacker, size, stated int64) (content, error) {
	if b.way.Head {
		if kind == Zstd {
			stated = -1 // it is that of the first frame
		}
		return unpackHead(r, stated)
	}
	if err := b.needSpool(kind); err != nil {
		return nil, err
	}
	s := b.spool
	if free, known, err := s.dir.Free(); err == nil && known && stated > free && b.way.Warn != nil {
		b.way.Warn(fmt.Sprintf("%s unpacks to %s (%d bytes), and %s (%d bytes) are free in %s; trying all the same, "+
			"since zeros take no room", b.file.Name(), units.Format(stated), stated, units.Format(free), free, s.path))
	}
	if b.way.Begin != nil {
		b.way.Begin(size)
	}
	at := disk.Range{Off: units.AlignUp(s.end, spoolUnit)}
	buf, taken, checked := make([]byte, spoolRead), int64(0), int64(0)
	for {
		if err := b.ctx.Err(); err != nil {
			return nil, err
		}
		if at.Len >= checked {
			checked = at.Len + spoolCheck
			if err := s.room(b.file.Name(), at.Len); err != nil {
				return nil, err
			}
		}
		n, err := io.ReadFull(r, buf)
		if writing := s.write(buf[:n], at.Off+at.Len); writing != nil {
			return nil, ondisk.In(ondisk.ErrOutput, "unpacking in %s: %w; %s of %s were unpacked", s.path, writing,
				units.Format(at.Len), b.file.Name())
		}
		at.Len += int64(n)
		if b.way.Add != nil {
			b.way.Add(r.Taken() - taken)
		}
		taken = r.Taken()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if err := s.f.Truncate(at.Off + at.Len); err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "unpacking in %s: %w", s.path, err)
	}
	s.end = at.Off + at.Len
	return part{s, at}, b.file.Unchanged()
}

// room refuses to unpack more where that would fill the file system.
func (s *spool) room(name string, done int64) error {
	free, known, err := s.dir.Free()
	if err != nil || !known || free >= 2*spoolCheck {
		return err
	}
	return ondisk.In(ondisk.ErrOutput, "unpacking in %s: %s (%d bytes) are free, and %s of %s were unpacked, not all; "+
		"give a folder with more room: --spool DIR", s.path, units.Format(free), free, units.Format(done), name)
}

// write writes bytes but for zeros.
func (s *spool) write(p []byte, off int64) error {
	for r := range ondisk.DataRuns(p, spoolUnit) {
		if _, err := s.f.WriteAt(p[r.Off:r.End()], off+r.Off); err != nil {
			return err
		}
	}
	return nil
}

// ReadAt follows the contract of io.ReaderAt.
func (s *spool) ReadAt(p []byte, off int64) (int, error) { return s.f.ReadAt(p, off) }

// Size returns the size in bytes of all that was unpacked.
func (s *spool) Size() int64 { return s.end }

// Extent asks the file system for holes.
func (s *spool) Extent(off, limit int64) (disk.Extent, error) {
	e := disk.Extent{Range: disk.Range{Off: off, Len: limit}}
	e.Len, e.Zero = s.at.Extent(off, limit)
	return e, nil
}

// part is a stretch of what was unpacked.
type part struct {
	of content
	at disk.Range
}

// ReadAt follows the contract of io.ReaderAt.
func (p part) ReadAt(b []byte, off int64) (int, error) {
	return io.NewSectionReader(p.of, p.at.Off, p.at.Len).ReadAt(b, off)
}

// Size returns the size in bytes.
func (p part) Size() int64 { return p.at.Len }

// Extent returns what is known of holes.
func (p part) Extent(off, limit int64) (disk.Extent, error) {
	e, err := p.of.Extent(p.at.Off+off, min(limit, p.at.Len-off))
	e.Off = off
	return e, err
}
