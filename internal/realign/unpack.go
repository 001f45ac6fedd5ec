package realign

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
)

// PhaseUnpack is the phase of a run that unpacks an image, by packed bytes.
const PhaseUnpack = "unpack"

// Unpacking says how packed images are read. The zero value reads none.
type Unpacking struct {
	On     bool
	Spool  string          // folder for what is unpacked; empty: only archives of plain files are read
	Run    context.Context //nolint:containedctx // of the command, whose end ends the unpacking
	Watch  func() Progress // called when unpacking begins; what it returns may be nil
	Warn   func(message string)
	Ended  func() // called when an image is unpacked
	Wanted string // what the command is called
}

// Flags returns the flags of a command line that unpacks in the same folder.
func (u Unpacking) Flags() []string { return []string{"--spool", shell.Quote(u.Spool)} }

// unpacked opens an image that may be packed, by open. The error of one that is not is ErrNoMatch.
func (r Reading) unpacked(
	open func(ctx context.Context, way unpack.Way) (*image.Image, error),
) (*image.Image, error) {
	u := r.Unpacking
	way := unpack.Way{Spool: u.Spool, Warn: u.Warn}
	if !u.On {
		way.Refuse = func(kind string) error { return packedRefusal(kind, cmp.Or(u.Wanted, "this command")) }
	}
	var watched Progress
	way.Begin = func(size int64) {
		if watched == nil && u.Watch != nil {
			watched = u.Watch()
		}
		if watched != nil {
			watched.Begin(PhaseUnpack, size)
		}
	}
	way.Add = func(n int64) {
		if watched != nil {
			watched.Add(n)
		}
	}
	ctx := u.Run
	if ctx == nil {
		ctx = context.Background()
	}
	img, err := open(ctx, way)
	if u.Ended != nil {
		u.Ended()
	}
	return img, err
}

// openLocal opens an image of this machine, which may be a disk of a package, or packed.
func (r Reading) openLocal(path string, o image.Options) (*image.Image, error) {
	img, err := r.unpacked(func(ctx context.Context, way unpack.Way) (*image.Image, error) {
		return unpack.Open(ctx, path, o, way)
	})
	if errors.Is(err, ondisk.ErrNoMatch) {
		return ova.OpenImage(path, o)
	}
	return img, err
}

// packedRefusal returns the error of a packed image for work that needs a file of its own.
func packedRefusal(kind, work string) error {
	return &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf("%s needs an image in a file of its own, and this one is packed (%s)",
			work, kind),
		Remedy: "make a file of it with trueup convert, and name that",
	}
}
