package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/units"
)

// CreateDisk starts the new bytes of a disk in a package, by the size and source that CreatePackage was given. They get no
// name of their own: the output is neither published nor discarded.
type CreateDisk func(o CreateOptions) (*Output, error)

// window is a stretch of a file that is being written, and at its end until it is complete.
type window struct {
	p   *part
	off int64

	mu   sync.Mutex
	size int64
}

// WriteAt writes within the window, which grows.
func (w *window) WriteAt(b []byte, off int64) (int, error) {
	w.mu.Lock()
	w.size = max(w.size, off+int64(len(b)))
	w.mu.Unlock()
	return w.p.WriteAt(b, w.off+off)
}

// Truncate sets the size.
func (w *window) Truncate(size int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.size = size
	return w.p.Truncate(w.off + size)
}

// Sync makes the bytes durable.
func (w *window) Sync() error { return w.p.Sync() }

// fill has a disk written at its place, and takes its size and what it holds into the OVF.
func (p *PackageOutput) fill(m *outMember, fill func(member string, create CreateDisk) error) error {
	w := &window{p: m.part, off: m.data}
	err := fill(m.from.Name, func(o CreateOptions) (*Output, error) { return p.createDisk(m, w, o) })
	if err != nil {
		return err
	}
	if m.size = w.size; m.size > m.most {
		return fmt.Errorf("disk %.256q takes %d bytes, and %d were thought to be enough", m.name, m.size, m.most) // our own bug
	}
	img, err := p.openDisk(m)
	if err != nil {
		return err
	}
	defer img.Close()
	held, err := disk.Stored(img.Disk)
	if err != nil {
		return err
	}
	return describe(p.env, p.src.disk(m.from.Name), m.size, m.rewrite, held)
}

// describe changes what the OVF says about a disk's file: its size, the capacity of the disk where that is wrong now, and what
// the disk holds.
func describe(e *ovf.Envelope, d PackageDisk, size int64, r *Rewrite, held int64) error {
	e.SetFileSize(d.file.ID, size)
	for _, x := range d.Disks {
		if capacity := r.capacity(x); capacity >= 0 {
			if err := e.SetCapacity(x.ID, capacity); err != nil {
				return err
			}
		}
		e.SetPopulatedSize(x.ID, held)
	}
	return nil
}

func (p *PackageOutput) createDisk(m *outMember, w *window, o CreateOptions) (*Output, error) {
	src := m.rewrite.Source
	format, sub, err := target(src, CreateOptions{})
	if err != nil {
		return nil, err
	}
	d := &Output{Format: format.Name, Subformat: sub, dir: p.out.dir, base: m.name, notes: p.out.notes}
	if d.room, err = d.Free(); err != nil {
		return nil, err
	}
	d.again = func() (*Image, error) { m.size = w.size; return p.openDisk(m) }
	d.Target, err = format.Create(w, m.rewrite.Size, driver.Options{
		Subformat: sub, Name: path.Base(m.name), Seed: o.Seed, SectorSize: src.Disk.SectorSize(), Heads: o.Heads, Sectors: o.Sectors, Template: src.Template,
		Beside: func(string) (driver.WriteFile, string, error) {
			return nil, "", fmt.Errorf("a disk of several files inside of a package: %w", ondisk.ErrUnsupported)
		},
	})
	return d, err
}

// openDisk opens a disk that was written, through a handle of its own.
func (p *PackageOutput) openDisk(m *outMember) (*Image, error) {
	dir, err := p.out.reader()
	if err != nil {
		return nil, err
	}
	f, err := dir.openAny(m.part.final, ErrOutput)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	img, err := inArchive(f, nil, &member{f: f, name: m.name, off: m.data, size: m.size}, Options{
		Format: m.rewrite.Source.Format, SectorSize: m.rewrite.Source.Disk.SectorSize(),
	})
	if err != nil {
		return nil, errors.Join(err, f.Close(), dir.Close())
	}
	img.Path = m.name
	return img, nil
}

// copy writes a member as it is, headers and all.
func (p *PackageOutput) copy(ctx context.Context, m *outMember, progress Progress) error {
	if m.from.file == nil { // a folder or a link: nothing but headers
		return p.put(m.head, m, m.data-int64(len(m.head)))
	}
	progress.Begin(PhaseCopy, m.from.file.Size())
	err := eachChunk(ctx, m.from.file, func(b []byte, off int64) error {
		progress.Add(int64(len(b)))
		if ondisk.IsZero(b) {
			return nil // a hole
		}
		return p.put(b, m, m.data+off)
	})
	if err != nil {
		return err
	}
	return p.put(m.head, m, m.data-int64(len(m.head)))
}

func (p *PackageOutput) put(b []byte, m *outMember, off int64) error {
	_, err := m.part.WriteAt(b, off)
	return err
}

// finish writes what depends on everything else: the headers of what has changed, the OVF, and the manifest at last.
func (p *PackageOutput) finish(ctx context.Context, progress Progress) error {
	var manifest *outMember
	for _, m := range p.members {
		switch {
		case m.text && m.from.Role == RoleManifest:
			manifest = m
		case m.text:
			if err := p.putText(m, p.padded(m, p.env.Bytes())); err != nil {
				return err
			}
		case m.rewrite != nil:
			if err := p.putHeader(m); err != nil {
				return err
			}
		}
	}
	if err := p.setSizes(); err != nil {
		return err
	}
	sums, err := p.readBack(ctx, progress)
	if err != nil {
		return err
	}
	if manifest != nil {
		if err := p.putText(manifest, p.manifest(sums)); err != nil {
			return err
		}
	}
	for _, f := range p.out.parts {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return p.check()
}

// padded gives the OVF as many blocks as were left for it. White space behind the root element is a part of no value. Spec: XML
// 1.0, 2.1 and 2.8, "Misc".
func (p *PackageOutput) padded(m *outMember, text []byte) []byte {
	if p.Kind == "ovf" {
		return text
	}
	least := units.AlignUp(m.most, tarBlock) - tarBlock + 1
	return append(text, bytes.Repeat([]byte("\n"), int(max(0, least-int64(len(text)))))...)
}

func (p *PackageOutput) putText(m *outMember, text []byte) error {
	m.size = int64(len(text))
	m.written = text
	if err := p.put(text, m, m.data); err != nil {
		return err
	}
	return p.putHeader(m)
}

func (p *PackageOutput) putHeader(m *outMember) error {
	if m.head == nil {
		return nil
	}
	h, err := tarHeaders(m.old, m.size, m.most)
	if err != nil {
		return err
	}
	return p.put(h, m, m.data-int64(len(m.head)))
}

// setSizes ends the files. An archive ends with two blocks of zeros, and those that tar writes fill a record of 20 blocks.
func (p *PackageOutput) setSizes() error {
	if p.Kind == "ovf" {
		for _, m := range p.members {
			if !m.text {
				if err := m.part.Truncate(m.size); err != nil {
					return err
				}
			}
		}
		return nil
	}
	const record = 20 * tarBlock
	size := p.at + 2*tarBlock
	if p.src.Kind == "ova" && p.src.files[0].Size()%record == 0 {
		size = units.AlignUp(size, record)
	}
	return p.out.parts[0].Truncate(size)
}
