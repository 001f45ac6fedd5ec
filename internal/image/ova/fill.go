package ova

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/units"
)

// CreateDisk starts the new bytes of a disk in a package, by the size and source that Create was given. They get no
// name of their own: the output is neither published nor discarded.
type CreateDisk func(o store.CreateOptions) (*store.Output, error)

// window is a stretch of a file that is being written, and at its end until it is complete.
type window struct {
	driver.WriteFile
	off int64

	mu   sync.Mutex
	size int64
}

// WriteAt writes within the window, which grows.
func (w *window) WriteAt(b []byte, off int64) (int, error) {
	w.mu.Lock()
	w.size = max(w.size, off+int64(len(b)))
	w.mu.Unlock()
	return w.WriteFile.WriteAt(b, w.off+off)
}

// Truncate sets the size of the window. The file gets its own at the end.
func (w *window) Truncate(size int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.size = size
	return nil
}

// fill has a disk written at its place, and takes its size and what it holds into the OVF.
func (p *Output) fill(m *outMember, fill func(member string, create CreateDisk) error) error {
	w := &window{WriteFile: m.part, off: m.data}
	err := fill(m.from.Name, func(o store.CreateOptions) (*store.Output, error) {
		again := func() (*image.Image, error) { m.size = w.size; return p.openDisk(m) }
		return p.CreateDisk(w, m.name, m.rewrite.Size, m.rewrite.Source, o, again)
	})
	if err != nil {
		return err
	}
	if m.size = w.size; m.size > m.most {
		// our own bug
		return fmt.Errorf("disk %.256q takes %d bytes, and %d were thought to be enough", m.name, m.size, m.most)
	}
	img, err := p.openDisk(m)
	if err != nil {
		return err
	}
	defer img.Close()
	held, err := disk.Stored(img.Disk)
	if err == nil {
		err = describe(p.env, p.src.disk(m.from.Name), m.size, m.rewrite, held)
	}
	return err
}

// describe changes what the OVF says about a disk's file: its size, the capacity of the disk where that is wrong now,
// and what the disk holds.
func describe(e *ovf.Envelope, d Disk, size int64, r *Rewrite, held int64) error {
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

// openDisk opens a disk that was written, through a handle of its own.
func (p *Output) openDisk(m *outMember) (img *image.Image, err error) {
	files, err := p.ReadBack()
	if err != nil {
		return nil, err
	}
	o := image.Options{Format: m.rewrite.Source.Format, SectorSize: m.rewrite.Source.Disk.SectorSize()}
	if p.Kind == "ovf" {
		img, err = files.OpenImage(m.name, o)
	} else {
		img, err = files.OpenInside(m.name, disk.Range{Off: m.data, Len: m.size}, noOthers, o)
	}
	if err == nil {
		img.Path = m.name
	}
	return img, errors.Join(err, files.Close())
}

// noOthers is for a disk that names no other file.
func noOthers(string) (disk.Range, error) { return disk.Range{}, fs.ErrNotExist }

// copy writes a member as it is, headers and all.
func (p *Output) copy(ctx context.Context, m *outMember, progress diskcopy.Progress) error {
	if m.from.file == nil { // a folder or a link: nothing but headers
		return p.put(m.head, m, m.data-int64(len(m.head)))
	}
	from := asDisk(m.from.file)
	if err := begin(ctx, progress, diskcopy.PhaseCopy, diskcopy.ChunkSize, from); err != nil {
		return err
	}
	if _, err := diskcopy.Run(ctx, from, target{m}, diskcopy.Options{Progress: progress.Add}); err != nil {
		return err
	}
	return p.put(m.head, m, m.data-int64(len(m.head)))
}

// target takes the bytes of a member that is copied. What is zero stays a hole.
type target struct{ m *outMember }

func (t target) WriteAt(b []byte, off int64) (int, error) { return t.m.part.WriteAt(b, t.m.data+off) }

// Unit returns the least stretch of zeros that is left out, in bytes.
func (t target) Unit() int64 { return diskcopy.ChunkSize }

// Reserve has nothing to do: the place of a member is known.
func (t target) Reserve(int64, int64) error { return nil }

func (p *Output) put(b []byte, m *outMember, off int64) error {
	_, err := m.part.WriteAt(b, off)
	return err
}

// finish writes what depends on everything else: the headers of what has changed, the OVF, and the manifest at last.
func (p *Output) finish(ctx context.Context, progress diskcopy.Progress) error {
	var manifest *outMember
	for _, m := range p.members {
		switch {
		case m.text && m.from.Role == roleManifest:
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
	for _, f := range p.parts {
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return p.check()
}

// padded gives the OVF as many blocks as were left for it. White space behind the root element is a part of no value.
// Spec: XML 1.0, 2.1 and 2.8, "Misc".
func (p *Output) padded(m *outMember, text []byte) []byte {
	if p.Kind == "ovf" {
		return text
	}
	least := units.AlignUp(m.most, tarBlock) - tarBlock + 1
	return append(text, bytes.Repeat([]byte("\n"), int(max(0, least-int64(len(text)))))...)
}

func (p *Output) putText(m *outMember, text []byte) error {
	m.size = int64(len(text))
	m.written = text
	if err := p.put(text, m, m.data); err != nil {
		return err
	}
	return p.putHeader(m)
}

func (p *Output) putHeader(m *outMember) error {
	if m.head == nil {
		return nil
	}
	h, err := tarHeaders(m.old, m.size, m.most)
	if err != nil {
		return err
	}
	return p.put(h, m, m.data-int64(len(m.head)))
}

// setSizes ends the files. An archive ends with two blocks of zeros, and those that tar writes fill a record of 20
// blocks.
func (p *Output) setSizes() error {
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
	if p.src.Kind == "ova" && p.src.files.First().Size()%record == 0 {
		size = units.AlignUp(size, record)
	}
	return p.parts[0].Truncate(size)
}
