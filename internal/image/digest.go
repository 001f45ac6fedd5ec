package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"slices"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/units"
)

// ErrDigest marks a member of a package whose bytes are not those that the manifest speaks of.
var ErrDigest = errors.New("differs from its digest")

// Progress receives how far the work on a copy is, phase by phase.
type Progress interface {
	Begin(phase string, total int64) // what is done from now on, and with how many bytes
	Add(n int64)                     // bytes of the phase that are done, from any goroutine
}

// Phases of the work on a copy.
const (
	PhaseCopy    = "copy"    // writing
	PhaseCompare = "compare" // with what was to be written
	PhaseDigest  = "digest"  // reading for the digests of a manifest
)

// unwatched is no progress.
type unwatched struct{}

func (unwatched) Begin(string, int64) {}
func (unwatched) Add(int64)           {}

// Check compares all members with the manifest. What the manifest does not name is not compared.
func (p *Package) Check(ctx context.Context, progress Progress) error {
	if p.Manifest == nil {
		return nil
	}
	for _, d := range p.Manifest.Digests {
		if p.named(d.Name) == nil {
			return ondisk.In(ErrDigest, "the manifest has a digest of %.256q, and the package has no file of that name; get it again", d.Name)
		}
	}
	for _, m := range p.Members {
		if m.file == nil {
			continue
		}
		if err := compare(ctx, m.Name, m.file, p.digests(m), progress); err != nil {
			return err
		}
	}
	return nil
}

// named finds the member that a manifest names: it stands beside the OVF.
func (p *Package) named(name string) *Member {
	if p.Kind == "ovf" {
		return p.Member(name)
	}
	full, err := p.checkMember(name)
	if err != nil {
		return nil
	}
	return p.Member(full)
}

// digests are the lines of the manifest about a member, as far as their algorithm is known.
func (p *Package) digests(m *Member) []ovf.Digest {
	return slices.DeleteFunc(slices.Clone(p.lines[m]), func(d ovf.Digest) bool { return d.New == nil })
}

// compare reads a member once and holds it against its digests.
func compare(ctx context.Context, name string, f driver.File, want []ovf.Digest, progress Progress) error {
	if len(want) == 0 {
		return nil
	}
	got, err := hashes(ctx, f, want, progress)
	if err != nil {
		return err
	}
	for i, d := range want {
		if !bytes.Equal(got[i], d.Sum) {
			return fmt.Errorf("%.256q %w: %s is %x, and the manifest has %x; the package was damaged or changed, get it again",
				name, ErrDigest, d.Algorithm, got[i], d.Sum)
		}
	}
	return nil
}

// CheckDigests compares the files of an image in a package with the package's manifest.
func (img *Image) CheckDigests(ctx context.Context) error {
	if img.digests == nil {
		return nil
	}
	for _, m := range img.members {
		if err := compare(ctx, m.name, m, img.digests[m.name], unwatched{}); err != nil {
			return err
		}
	}
	for _, f := range img.files {
		if img.members != nil {
			break
		}
		if err := compare(ctx, f.name, f, img.digests[path.Join(img.under, f.name)], unwatched{}); err != nil {
			return err
		}
	}
	return nil
}

// hashes reads a file once and computes a digest for each of want.
func hashes(ctx context.Context, f driver.File, want []ovf.Digest, progress Progress) ([][]byte, error) {
	by := map[string]hash.Hash{}
	var sinks []io.Writer
	for _, d := range want {
		if by[d.Algorithm] == nil {
			by[d.Algorithm] = d.New()
			sinks = append(sinks, by[d.Algorithm])
		}
	}
	all := io.MultiWriter(sinks...)
	progress.Begin(PhaseDigest, f.Size())
	err := eachChunk(ctx, f, func(b []byte, _ int64) error {
		progress.Add(int64(len(b)))
		_, err := all.Write(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, d := range want {
		out = append(out, by[d.Algorithm].Sum(nil))
	}
	return out, nil
}

// sameBytes compares two files.
func sameBytes(ctx context.Context, a, b driver.File, progress Progress) (bool, error) {
	same := a.Size() == b.Size()
	if !same {
		return false, nil
	}
	progress.Begin(PhaseCompare, a.Size())
	other := make([]byte, min(units.MiB, b.Size()))
	err := eachChunk(ctx, a, func(x []byte, off int64) error {
		y := other[:len(x)]
		if err := ondisk.ReadFull(b, y, off); err != nil {
			return err
		}
		progress.Add(int64(len(x)))
		same = same && bytes.Equal(x, y)
		return nil
	})
	return same, err
}

// eachChunk reads a file from front to back.
func eachChunk(ctx context.Context, f driver.File, use func(b []byte, off int64) error) error {
	buf := make([]byte, min(units.MiB, f.Size()))
	for off := int64(0); off < f.Size(); off += int64(len(buf)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		b := buf[:min(int64(len(buf)), f.Size()-off)]
		if err := ondisk.ReadFull(f, b, off); err != nil {
			return err
		}
		if err := use(b, off); err != nil {
			return err
		}
	}
	return nil
}
