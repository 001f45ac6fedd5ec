package scan

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/remote"
	"github.com/trueup/trueup/internal/scan/catalog"
	"github.com/trueup/trueup/internal/scan/results"
)

// Servers are images of servers. The zero value has no images.
type Servers struct {
	Addresses []remote.Address
	Hub       *remote.Hub // nil: there are none
	Pool      *Pool       // of workers that read no file
	// Authorization is the file of that name on the command lines of copies; empty for none.
	Authorization string
}

// addresses returns those of this share.
func (r *search) addresses() []remote.Address {
	all := slices.Clone(r.Servers.Addresses)
	mine := slices.DeleteFunc(all, func(a remote.Address) bool { return !r.Shard.Has(a.Shown) })
	r.others.Add(int64(len(r.Servers.Addresses) - len(mine)))
	return mine
}

// visit makes the rows of all addresses.
func (r *search) visit(ctx context.Context, addresses []remote.Address) error {
	return r.Servers.Hub.Visit(ctx, addresses, func(a remote.Address, o *remote.Opened, err error) error {
		i, err := r.served(ctx, a, o, err)
		if err != nil {
			return err
		}
		if r.Exchange && i.Priority != nil {
			i.NoExchange = "a server has it"
		}
		readAll(i, r.authorized(a), a.Shown)
		return r.row(i)
	})
}

// served returns the row of an image of a server, which has the file o or failed with an error.
func (r *search) served(ctx context.Context, a remote.Address, o *remote.Opened, failed error) (*results.Image, error) {
	x := &found{entry: entry{named: true, shown: a.Shown}}
	x.id.Kind = image.Disk
	if failed != nil {
		x.fail(r.classify(failed))
		x.failed.Files = []results.File{}
		return r.keepServed(a, x, x.failed)
	}
	x.File = fileOf(o)
	if !o.Device {
		if known, err := r.lookup(a.Shown, x); err != nil {
			return nil, err
		} else if known && x.known.Image != nil {
			return r.reuseServed(a, x.known)
		}
	}
	i, err := r.askServed(ctx, x, o)
	if err != nil {
		return nil, err
	}
	if image.IsPacked(i.Format) && i.State == results.Failed && !fleeting(i) {
		x.id.Format, x.id.Remedy = i.Format, "download it, and unpack that"
		i = x.packed(i.Error.Message)
	}
	i.SetPath(a.Shown)
	i.Files, i.Stored, i.Read = []results.File{x.File}, x.Allocated, o.Bytes
	i.Settle(r.servedFlags(a))
	return r.keepServed(a, x, i)
}

// fileOf returns a file of a server with numbers that show a change, as those of other files do. The inode is made of
// what identifies the content.
func fileOf(o *remote.Opened) results.File {
	f := results.File{Name: o.Name, Size: o.Size, Allocated: o.Size, Modified: o.Modified}
	if len(o.Tag) > 0 {
		sum := sha256.Sum256(o.Tag)
		f.Inode = binary.BigEndian.Uint64(sum[:]) >> 12 // JSON has 52 bits
	}
	if !bytes.HasPrefix(o.Tag, []byte{'"'}) {
		f.Changed = o.Modified // the time alone shows a change, and has whole seconds
	}
	return f
}

// askServed has a worker judge the image in a file of a server.
func (r *search) askServed(ctx context.Context, x *found, o *remote.Opened) (*results.Image, error) {
	answer := func(question []byte) ([]byte, error) { return o.Answer(question), nil }
	a, err := r.Servers.Pool.do(ctx, Request{Path: []byte(x.shown), Judge: true, Remote: &o.Info, asks: answer})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil && a.Image != nil:
		a.Image.Fleeting = a.Fleeting
		return a.Image, nil
	case err == nil:
		err = errors.New("the worker gave no answer; please report it")
	}
	x.fail(r.classify(err))
	return x.failed, nil
}

// servedFlags are those of a command line that makes a copy.
func (r *search) servedFlags(a remote.Address) []string {
	return slices.Concat(r.Flags, r.authorized(a))
}

// authorized are the flags of any command line that reads an image of a server.
func (r *search) authorized(a remote.Address) []string {
	if !remote.IsWeb(a.URI) {
		return nil
	}
	return realign.Authorized(r.Servers.Authorization)
}

// reuseServed takes a row from the store.
func (r *search) reuseServed(a remote.Address, k *catalog.Known) (*results.Image, error) {
	change, err := r.Store.Reuse(a.Shown, *k)
	k.Image.SetPath(a.Shown)
	k.Image.Server = serverOf(a)
	k.Image.Settle(r.servedFlags(a))
	k.Image.Change, k.Image.Read = change, 0
	return k.Image, err
}

// serverOf returns the server of an address, without secrets, as it is shown.
func serverOf(a remote.Address) string { return cmp.Or(remote.ServerOf(a.Shown), a.Shown) }

// keepServed completes a row, and stores it.
func (r *search) keepServed(a remote.Address, x *found, i *results.Image) (*results.Image, error) {
	i.Server = serverOf(a)
	if r.Store == nil {
		return i, nil
	}
	return i, r.keep(a.Shown, x, i, "")
}
