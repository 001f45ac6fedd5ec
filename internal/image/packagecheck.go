package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// readBack reads every member that is complete through a handle of its own, holds copies against what was copied, and
// computes the digests of the manifest.
func (p *PackageOutput) readBack(ctx context.Context, tell func(int64)) (map[string][]byte, error) {
	dir, err := p.out.reader()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	sums := map[string][]byte{}
	for _, m := range p.members {
		if m.from.file == nil || (m.text && m.from.Role == RoleManifest) {
			continue
		}
		f, err := dir.openAny(m.part.final, ErrOutput)
		if err != nil {
			return nil, err
		}
		err = p.readMember(ctx, m, &member{f: f, name: m.name, off: m.data, size: m.size}, sums, tell)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return sums, nil
}

func (p *PackageOutput) readMember(ctx context.Context, m *outMember, f driver.File, sums map[string][]byte, tell func(int64)) error {
	want := p.src.digests(m.from)
	got, sum, err := hashes(ctx, f, want, tell)
	if err != nil {
		return err
	}
	if m.sum != nil && !bytes.Equal(sum, m.sum) {
		return fmt.Errorf("%.256q %w: other bytes than were written; the storage or memory of this machine is at fault, nothing was published", m.name, ErrDigest)
	}
	m.sum = sum
	for i, d := range want {
		sums[d.Algorithm+" "+d.Name] = got[i]
	}
	return nil
}

// manifest is the text of the new manifest.
func (p *PackageOutput) manifest(sums map[string][]byte) []byte {
	return p.src.Manifest.Rewrite(
		func(d ovf.Digest) []byte { return sums[d.Algorithm+" "+d.Name] },
		func(name string) string {
			if m := p.src.named(name); m != nil && p.Kind == "ovf" {
				return p.nameOf(m)
			}
			return name
		})
}

// check opens the package as a later reader will, and holds it against what was meant.
func (p *PackageOutput) check() error {
	dir, err := p.out.reader()
	if err != nil {
		return err
	}
	got, err := openPackageIn(dir, p.out.base)
	if err != nil {
		return errors.Join(fmt.Errorf("read back %s: %w: %w", p.out.base, ErrDigest, err), dir.Close())
	}
	defer got.Close()
	bad := func(what string) error {
		return fmt.Errorf("the package as read back has other %s than were written: it %w; nothing was published", what, ErrDigest)
	}
	if len(got.Members) != len(p.members) {
		return bad("members")
	}
	for _, want := range p.members {
		m := got.Member(want.name)
		if m == nil || m.Size != want.size || (p.Kind == "ova" && m.data != want.data) {
			return bad("members")
		}
		if !want.text {
			continue
		}
		text, err := ondisk.Bytes(m.file, 0, m.Size)
		if err != nil {
			return err
		}
		if sum := sha(text); !bytes.Equal(sum, want.sum) {
			return bad("texts")
		}
	}
	return nil
}
