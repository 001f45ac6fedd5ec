package ova

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// ErrDigest marks a member of a package whose bytes are not those that the manifest speaks of.
var ErrDigest = errors.New("differs from its digest")

// unwatched is no progress.
type unwatched struct{}

func (unwatched) Begin(string, int64) {}
func (unwatched) Add(int64)           {}

// Check compares all members with the manifest. What the manifest does not name is not compared.
func (p *Package) Check(ctx context.Context, progress diskcopy.Progress) error {
	if p.Manifest == nil {
		return nil
	}
	for _, d := range p.Manifest.Digests {
		if p.named(d.Name) == nil {
			return ondisk.In(ErrDigest, "the manifest has a digest of %.256q, and the package has no file of that "+
				"name; get it again", d.Name)
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
		return p.member(name)
	}
	full, err := p.checkMember(name)
	if err != nil {
		return nil
	}
	return p.member(full)
}

// digests returns the lines of the manifest about a member, as far as their algorithm is known.
func (p *Package) digests(m *Member) []ovf.Digest {
	return slices.DeleteFunc(slices.Clone(p.lines[m]), func(d ovf.Digest) bool { return d.New == nil })
}

// compare reads a member once and checks it against its digests.
func compare(ctx context.Context, name string, f driver.File, want []ovf.Digest, progress diskcopy.Progress) error {
	if len(want) == 0 {
		return nil
	}
	got, err := hashes(ctx, f, want, progress)
	if err != nil {
		return err
	}
	for i, d := range want {
		if !bytes.Equal(got[i], d.Sum) {
			return fmt.Errorf("%.256q %w: %s is %x, and the manifest has %x; the package was damaged or "+
				"changed, get it again",
				name, ErrDigest, d.Algorithm, got[i], d.Sum)
		}
	}
	return nil
}

// hashes reads a file once and computes a digest for each of want.
func hashes(ctx context.Context, f driver.File, want []ovf.Digest, progress diskcopy.Progress) ([][]byte, error) {
	by := map[string]hash.Hash{}
	var sinks []io.Writer
	for _, d := range want {
		if by[d.Algorithm] == nil {
			by[d.Algorithm] = d.New()
			sinks = append(sinks, by[d.Algorithm])
		}
	}
	progress.Begin(diskcopy.PhaseDigest, f.Size())
	all := io.MultiWriter(append(sinks, watched{ctx, progress})...)
	if _, err := io.CopyBuffer(all, io.NewSectionReader(f, 0, f.Size()), make([]byte, units.MiB)); err != nil {
		return nil, err
	}
	var out [][]byte
	for _, d := range want {
		out = append(out, by[d.Algorithm].Sum(nil))
	}
	return out, nil
}

// watched counts what is written to it, until its context ends.
type watched struct {
	ctx      context.Context //nolint:containedctx // it lives as long as one call
	progress diskcopy.Progress
}

func (w watched) Write(b []byte) (int, error) {
	w.progress.Add(int64(len(b)))
	return len(b), w.ctx.Err()
}

// asDisk shows a file as a disk, which is what is copied and compared.
func asDisk(f driver.File) disk.Disk {
	return disk.New(f.Size(), units.SectorSize, disk.Whole(f, f.Size()))
}

// sameBytes compares two files.
func sameBytes(ctx context.Context, want, got driver.File, progress diskcopy.Progress) (bool, error) {
	a, b := asDisk(want), asDisk(got)
	if a.Size() == b.Size() {
		if err := begin(ctx, progress, diskcopy.PhaseProve, 0, a, b); err != nil {
			return false, err
		}
	}
	diffs, err := verify.Same(ctx, a, b, verify.Options{Progress: progress.Add})
	return len(diffs) == 0, err
}

// begin begins a phase that works on what all these disks hold beside holes.
func begin(ctx context.Context, progress diskcopy.Progress, phase string, unit int64, disks ...disk.Disk) error {
	total, err := diskcopy.Size(ctx, unit, disks...)
	if err == nil {
		progress.Begin(phase, total)
	}
	return err
}
