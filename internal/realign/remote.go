package realign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/remote"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// Remotes are connections to servers of images by URI, each for one opening. They are made before the process confines
// itself, which cannot make any then.
type Remotes map[string][]connection

// connection is one to a server, or the error of making it.
type connection struct {
	file *remote.File
	err  error
}

// IsRemote reports whether a word of a command line names an image of a server.
func IsRemote(word string) bool { return remote.IsURI(word) }

// Shown returns a text, such as a message or a URI, without what may be secret in its URIs.
func Shown(text string) string { return remote.Shown(text) }

// CheckAddresses refuses addresses with blanks among the words of a command line.
func CheckAddresses(words []string) error { return remote.CheckAddresses(words) }

// maxRemotes bounds the connections, each of which may be to a process of its own.
const maxRemotes = 16

// Connect connects to the servers of those images that servers have; an error is that of opening the image.
// authorization is a file with the value of this header for web servers, empty for none. The end of ctx ends the
// connections.
func Connect(ctx context.Context, images []string, authorization string) (Remotes, error) {
	if err := remote.CheckAddresses(images); err != nil {
		return nil, err
	}
	header, err := remote.ReadAuthorization(authorization, images)
	if err != nil {
		return nil, err
	}
	images = slices.DeleteFunc(slices.Clone(images), func(image string) bool { return !IsRemote(image) })
	if len(images) > maxRemotes {
		return nil, ondisk.In(ondisk.ErrUsage, "%d images of servers are given, and one run reads at most %d; give "+
			"fewer", len(images), maxRemotes)
	}
	all := Remotes{}
	for _, uri := range images {
		f, err := remote.Connect(ctx, uri, header)
		all[uri] = append(all[uri], connection{f, err})
	}
	return all, nil
}

// Close ends the connections that were not used.
func (r Remotes) Close() {
	for _, made := range r {
		for _, c := range made {
			if c.file != nil {
				_ = c.file.Close()
			}
		}
	}
	clear(r)
}

// Authorized returns the flags of a command line that is to have the same authorization.
func Authorized(file string) []string {
	if file == "" {
		return nil
	}
	return []string{"--authorization", shell.Quote(file)}
}

// openRemote opens and reads an image of a server.
func (r Reading) openRemote(uri string, o image.Options) (*Source, error) {
	made := r.Remotes[uri]
	switch {
	case len(made) == 0:
		return nil, ondisk.In(ondisk.ErrUnsupported, "%s: this command reads no images of servers; trueup convert "+
			"makes a file of it", uri)
	case len(r.Allow) > 0:
		return nil, ondisk.In(ondisk.ErrUsage, "%s: --allow-folder is for files; an image of a server names no others",
			uri)
	}
	r.Remotes[uri] = made[1:]
	img, err := (*image.Image)(nil), made[0].err
	if err == nil {
		img, err = r.openServed(made[0].file, uri, o)
	}
	if err != nil {
		return nil, ondisk.In(ErrOpen, "%s: %w", uri, err)
	}
	return Read(img, r)
}

// openServed opens the image in a file of a server, which may be packed.
func (r Reading) openServed(f *remote.File, uri string, o image.Options) (*image.Image, error) {
	s := unpack.Served{
		File: f, Member: f.Member, Whole: f.Whole, Archive: Shown(cmp.Or(f.Archive, f.ID())), All: Shown(uri),
	}
	img, err := r.unpacked(func(ctx context.Context, way unpack.Way) (*image.Image, error) {
		return unpack.OpenServed(ctx, s, o, way)
	})
	if errors.Is(err, ondisk.ErrNoMatch) {
		return image.OpenRemote(f, s.All, o)
	}
	return img, err
}

// Local refuses an image of a server, and a disk of Windows, for work that needs a file.
func Local(path, work string) error {
	where, remedy := "on a server", "make a file of it with trueup convert, and name that"
	switch {
	case !hasNoFolder(path):
		return nil
	case sys.IsDrive(path):
		where = "a device of Windows"
	case work == "trueup report": // of results, which are no image
		remedy = "download it"
	}
	return fmt.Errorf("%s: %w", path, &ondisk.Refusal{
		Code: "unsupported", Reason: work + " needs a file, and this is " + where, Remedy: remedy,
	})
}

// Fetch is the command of the process that asks web servers, and FetchServe serves it.
const Fetch = remote.Fetch

// FetchServe serves the program at the other end of its input and output, which reads an object of a web server. It
// restricts itself by confine to reading some files, removing others, and asking servers.
func FetchServe(in io.Reader, out io.Writer, confine func(read, remove []string)) error {
	return remote.Serve(in, out, confine)
}

// FetchMany is the command of the process that asks the servers of a scan, and FetchManyServe serves it.
const FetchMany = remote.FetchMany

// FetchManyServe is FetchServe for files of many servers. It restricts itself by confine to reading some files and
// asking the network, or to some sockets of this machine.
func FetchManyServe(in io.Reader, out io.Writer, confine func(read, sockets []string)) error {
	return remote.ServeMany(in, out, confine)
}
