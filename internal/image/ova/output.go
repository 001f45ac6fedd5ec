package ova

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/units"
)

// KindOf returns "ova" or "ovf" by the extension of a name, or an empty string.
func KindOf(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".ova":
		return "ova"
	case ".ovf":
		return "ovf"
	}
	return ""
}

// Rewrite is a disk of a package with new content.
type Rewrite struct {
	Source *image.Image
	Size   int64 // of the new disk, bytes
}

// capacity returns the new capacity of a disk that has grown or whose capacity in the envelope is too small. It returns
// -1 if the capacity stays.
func (r *Rewrite) capacity(x ovf.Disk) int64 {
	if r.Size > r.Source.Disk.Size() || (x.Capacity >= 0 && x.Capacity < r.Size) {
		return r.Size
	}
	return -1
}

// CreateOptions are the options of Create.
type CreateOptions struct {
	Force   bool               // replace DEST, which must be an OVA
	Swap    bool               // DEST is the source; the caller exchanges the files instead of Publish
	Rewrite map[string]Rewrite // by member name
}

// Output is a package under construction.
type Output struct {
	Kind    string
	Dropped []string // members of the source that no longer fit, and are omitted

	*store.Parts
	path    string // as typed
	base    string
	src     *Package
	env     *ovf.Envelope
	parts   []driver.WriteFile // one for an archive
	members []*outMember
	renamed bool  // the OVF gets another name
	at      int64 // end of the members placed so far in an archive
}

// outMember is one member under construction.
type outMember struct {
	name    string
	from    *Member
	rewrite *Rewrite
	text    bool // the OVF or the manifest, written last, if anything changes
	part    driver.WriteFile
	old     *tar.Header // of a changed member in an archive
	head    []byte      // headers in an archive
	data    int64       // offset of its data in part
	most    int64       // upper bound of size
	size    int64
	written []byte // content of a text
}

// Create starts a package at path. It creates no file of that name before Publish.
func Create(path string, src *Package, o CreateOptions) (*Output, error) {
	p := &Output{Kind: KindOf(path), src: src, env: src.Envelope.Fork(), path: path, base: filepath.Base(path)}
	if p.Kind == "" {
		return nil, ondisk.In(ondisk.ErrUsage, "DEST %q of a package must end in .ova or .ovf", path)
	}
	if _, err := (store.Place{Flag: "DEST", Path: path, Copy: true}).Resolve(); err != nil {
		return nil, err
	}
	if err := p.choose(o.Rewrite); err != nil {
		return nil, err
	}
	if err := p.start(o); err != nil {
		return nil, err
	}
	return p, nil
}

// choose selects the members of the copy and their names.
func (p *Output) choose(rewrite map[string]Rewrite) error {
	own := p.src.role(roleOVF).Name
	p.renamed = p.Kind == "ovf" && own != p.base
	changes := len(rewrite) > 0 || p.renamed
	for _, m := range p.src.Members {
		text := changes && (m.Role == roleOVF || m.Role == roleManifest)
		o := &outMember{name: p.nameOf(m), from: m, most: m.Size, size: m.Size, text: text}
		if r, ok := rewrite[m.Name]; ok {
			o.rewrite, o.most = &r, r.Size+r.Size/8+64*units.MiB
		}
		if err := p.mayChange(o); err != nil {
			return err
		}
		if changes && m.Role == roleCertificate {
			p.Dropped = append(p.Dropped, m.Name)
			continue
		}
		if err := p.mayUnpack(o); err != nil {
			return err
		}
		p.members = append(p.members, o)
	}
	return nil
}

// mayUnpack returns an error if the copy is an OVF folder and a member cannot be a file there.
func (p *Output) mayUnpack(o *outMember) error {
	switch m := o.from; {
	case p.Kind != "ovf":
		return nil
	case m.file == nil:
		return fmt.Errorf("member %.256q of the archive is not a file: %w in an OVF folder; write an .ova", m.Name,
			ondisk.ErrUnsupported)
	case strings.Contains(o.name, "/"):
		return fmt.Errorf("file %.256q lies in a subfolder: %w in an OVF folder; write an .ova", o.name,
			ondisk.ErrUnsupported)
	case m.Role == roleFile && !p.src.refers(m.Name):
		return fmt.Errorf("the file %.256q of the archive is not named in the OVF: %w in an OVF folder; write an .ova",
			o.name, ondisk.ErrUnsupported)
	}
	return gate.CheckPath(o.name)
}

// nameOf returns the name of a member in the copy. In a folder, the OVF gets the name of DEST, and manifest and
// certificate its stem.
func (p *Output) nameOf(m *Member) string {
	if p.Kind == "ova" || m.Role == roleFile {
		return m.Name
	}
	if m.Role == roleOVF {
		return p.base
	}
	return strings.TrimSuffix(p.base, filepath.Ext(p.base)) + filepath.Ext(m.Name)
}

// mayChange returns an error if a disk cannot be rewritten in its format, or cannot be described in the OVF, or if a
// changed member has a digest of an unknown algorithm.
func (p *Output) mayChange(m *outMember) error {
	if m.rewrite != nil {
		if err := store.Rewritable(m.rewrite.Source); err != nil {
			return err
		}
		if err := describe(p.src.Envelope.Fork(), p.src.disk(m.from.Name), 0, m.rewrite, 0); err != nil {
			return err
		}
	}
	for _, d := range p.src.lines[m.from] {
		if d.New == nil && (m.text || m.rewrite != nil) {
			return fmt.Errorf("the digest %.64q of %.256q in the manifest: %w, trueup cannot compute it for the "+
				"copy; remove the manifest, or make one with SHA256", d.Algorithm, m.name, ondisk.ErrUnsupported)
		}
	}
	return nil
}

// start creates the files.
func (p *Output) start(o CreateOptions) error {
	if _, ours := p.src.Uses(p.path); p.Kind == "ovf" && !ours {
		if _, err := os.Lstat(p.path); err == nil {
			return ondisk.In(ondisk.ErrOutput, "%s exists, and the files of an OVF are never replaced; choose "+
				"another folder", p.path)
		}
	}
	var first driver.WriteFile
	var err error
	if p.Parts, first, err = store.CreateFiles(p.path, p.src.files, o.Force, o.Swap); err != nil {
		return err
	}
	p.parts = append(p.parts, first)
	for _, m := range p.members {
		m.part = first
		if p.Kind == "ova" || m.from.Role == roleOVF {
			continue
		}
		if m.part, err = p.AddFile(m.name); err != nil {
			return errors.Join(err, p.Discard())
		}
		p.parts = append(p.parts, m.part)
	}
	if o.Swap && p.Kind == "ovf" {
		for _, name := range p.Dropped {
			p.Without(name)
		}
	}
	return nil
}

// Write places and writes the members in order. It calls disk for each member to rewrite, which fills the output of
// create.
func (p *Output) Write(
	ctx context.Context, progress diskcopy.Progress, disk func(member string, create CreateDisk) error,
) error {
	for _, m := range p.members {
		if err := p.place(m); err != nil {
			return err
		}
		var err error
		switch {
		case m.rewrite != nil:
			err = p.fill(m, disk)
		case !m.text:
			err = p.copy(ctx, m, progress)
		}
		if err != nil {
			return err
		}
		p.at = units.AlignUp(m.data+m.size, tarBlock)
	}
	return p.finish(ctx, progress)
}

// place sets the offsets of the headers and the data of a member.
func (p *Output) place(m *outMember) (err error) {
	if m.text && m.from.Role == roleOVF {
		if err := p.mostText(m); err != nil {
			return err
		}
	}
	if p.Kind == "ovf" {
		return nil
	}
	if m.head, err = p.header(m); err != nil {
		return err
	}
	m.data = p.at + int64(len(m.head))
	return nil
}

// mostText sets an upper bound for the text of the OVF, which is written after the sizes of all disks are known. A
// manifest in an archive keeps its size, since new digests have the old length.
func (p *Output) mostText(m *outMember) error {
	e := p.src.Envelope.Fork()
	for _, x := range p.members {
		if x.rewrite == nil {
			continue
		}
		if err := describe(e, p.src.disk(x.from.Name), x.most, x.rewrite, x.rewrite.Size); err != nil {
			return err
		}
	}
	m.most = int64(len(e.Bytes()))
	m.size = m.most
	return nil
}

// header returns the headers of a member. A changed member gets a preliminary size, in headers of the final length.
func (p *Output) header(m *outMember) (_ []byte, err error) {
	switch {
	case p.src.Kind == "ovf":
		m.old, err = newTarHeader(m.name, p.src.modified(m.from))
	case m.rewrite != nil || m.text:
		_, m.old, err = tarEntry(p.src.files.First(), m.from.head)
	default:
		return ondisk.Bytes(p.src.files.First(), m.from.head, m.from.data-m.from.head)
	}
	if err != nil {
		return nil, err
	}
	return tarHeaders(m.old, m.most, m.most)
}

// modified returns the modification time of an OVF's file, in seconds since 1970.
func (p *Package) modified(m *Member) int64 {
	for _, s := range p.States() {
		if s.Name == m.Name {
			return s.Modified / int64(time.Second)
		}
	}
	return 0
}

// CreateDisk starts the output for a disk in a package, with the size and source from Create. The output has no name of
// its own, and is neither published nor discarded.
type CreateDisk func(o store.CreateOptions) (*store.Output, error)

// window is a part of a file being written. It is at the end of the file until it is complete.
type window struct {
	driver.WriteFile
	off int64

	mu   sync.Mutex
	size int64
}

// WriteAt writes within the window and extends its size.
func (w *window) WriteAt(b []byte, off int64) (int, error) {
	w.mu.Lock()
	w.size = max(w.size, off+int64(len(b)))
	w.mu.Unlock()
	return w.WriteFile.WriteAt(b, w.off+off)
}

// Truncate sets the size of the window. The size of the file is set at the end.
func (w *window) Truncate(size int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.size = size
	return nil
}

// fill has a disk written at its offset, and updates its size and used size in the OVF.
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
		// cannot happen
		return fmt.Errorf("disk %.256q takes %d bytes, more than the %d reserved", m.name, m.size, m.most)
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

// describe updates a disk in the OVF: its file size, its used size and, if needed, its capacity.
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

// openDisk opens a written disk through a new handle.
func (p *Output) openDisk(m *outMember) (img *image.Image, err error) {
	files, err := p.ReadBack()
	if err != nil {
		return nil, err
	}
	defer files.Close() // only read
	o := image.Options{Format: m.rewrite.Source.Format, SectorSize: m.rewrite.Source.Disk.SectorSize()}
	if p.Kind == "ovf" {
		img, err = files.OpenImage(m.name, o)
	} else {
		noOthers := func(string) (disk.Range, error) { return disk.Range{}, fs.ErrNotExist }
		img, err = files.OpenInside(m.name, disk.Range{Off: m.data, Len: m.size}, noOthers, o)
	}
	if err == nil {
		img.Path = m.name
	}
	return img, err
}

// copy copies a member unchanged, with its headers.
func (p *Output) copy(ctx context.Context, m *outMember, progress diskcopy.Progress) error {
	if m.from.file == nil { // a folder or a link has only headers
		return p.put(m.head, m, m.data-int64(len(m.head)))
	}
	from := asDisk(m.from.file)
	if err := diskcopy.Begin(ctx, progress, diskcopy.PhaseCopy, diskcopy.ChunkSize, from); err != nil {
		return err
	}
	if _, err := diskcopy.Run(ctx, from, target{m}, diskcopy.Options{Progress: progress.Add}); err != nil {
		return err
	}
	return p.put(m.head, m, m.data-int64(len(m.head)))
}

// target is the output for a copied member. Zeros stay holes.
type target struct{ m *outMember }

func (t target) WriteAt(b []byte, off int64) (int, error) { return t.m.part.WriteAt(b, t.m.data+off) }

// Unit returns the smallest run of zeros that becomes a hole, in bytes.
func (t target) Unit() int64 { return diskcopy.ChunkSize }

// Reserve does nothing: the offset of the member is fixed.
func (t target) Reserve(int64, int64) error { return nil }

func (p *Output) put(b []byte, m *outMember, off int64) error {
	_, err := m.part.WriteAt(b, off)
	return err
}

// finish writes the headers of changed members, then the OVF, and last the manifest, which depends on all others.
func (p *Output) finish(ctx context.Context, progress diskcopy.Progress) error {
	for _, m := range p.members {
		if err := p.putChanged(m); err != nil {
			return err
		}
	}
	if err := p.setSizes(); err != nil {
		return err
	}
	sums, err := p.readBack(ctx, progress)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(p.members, (*outMember).newManifest); i >= 0 {
		if err := p.putText(p.members[i], p.manifest(sums)); err != nil {
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

// newManifest reports whether the member is a manifest that differs from the source's.
func (m *outMember) newManifest() bool { return m.text && m.from.Role == roleManifest }

// putChanged writes the header of a changed member, or the OVF.
func (p *Output) putChanged(m *outMember) error {
	switch {
	case m.newManifest():
		return nil
	case m.text:
		return p.putText(m, p.padded(m, p.env.Bytes()))
	case m.rewrite != nil:
		return p.putHeader(m)
	}
	return nil
}

// padded extends the OVF to the number of blocks reserved for it, with white space behind the root element, which has
// no meaning. Spec: XML 1.0, 2.1 and 2.8, "Misc".
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

// setSizes sets the file sizes. An archive ends with two blocks of zeros, and tar pads it to records of 20 blocks.
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
