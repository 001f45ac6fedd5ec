package realign

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/remote"
)

// Remotes are connections to servers of images by URI, each for one opening. They are made before the process confines
// itself, which cannot make any then.
type Remotes map[string][]*remote.File

// IsRemote reports whether a word of a command line names an image of a server.
func IsRemote(word string) bool { return remote.IsURI(word) }

// Connect connects to the servers of those images that servers have. authorization is a file with the value of this
// header for web servers, empty for none.
func Connect(images []string, authorization string) (Remotes, error) {
	header, err := remote.ReadAuthorization(authorization)
	if err != nil {
		return nil, err
	}
	all := Remotes{}
	for _, uri := range images {
		if !IsRemote(uri) {
			continue
		}
		f, err := remote.Connect(context.Background(), uri, header) // which has its time
		if err != nil {
			return nil, errors.Join(ondisk.In(ErrOpen, "%s: %w", remote.Shown(uri), err), all.Close())
		}
		all[uri] = append(all[uri], f)
	}
	return all, nil
}

// Close ends the connections that nobody has taken.
func (r Remotes) Close() error {
	var errs []error
	for _, files := range r {
		for _, f := range files {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// openRemote opens and reads an image of a server.
func (r Reading) openRemote(uri string, o image.Options) (*Source, error) {
	files := r.Remotes[uri]
	switch {
	case len(files) == 0:
		return nil, ondisk.In(ondisk.ErrUnsupported, "%s: this command reads no images of servers; trueup convert "+
			"makes a file of it", uri)
	case len(r.Allow) > 0:
		return nil, ondisk.In(ondisk.ErrUsage, "%s: --allow-folder is for files; an image of a server names no others",
			uri)
	}
	r.Remotes[uri] = files[1:]
	img, err := image.OpenRemote(files[0], uri, o)
	if err != nil {
		return nil, ondisk.In(ErrOpen, "%s: %w", uri, err)
	}
	return Read(img, r)
}

// Local refuses an image of a server for work that needs a file.
func Local(uri, work string) error {
	if !IsRemote(uri) {
		return nil
	}
	return fmt.Errorf("%s: %w", uri, &ondisk.Refusal{
		Code: "unsupported", Reason: work + " needs a file, and this is an image of a server",
		Remedy: "make a file of it with trueup convert, and name that",
	})
}

// Fetch is the command of the process that asks web servers, and FetchServe serves it.
const Fetch = remote.Fetch

// FetchServe serves the program at the other end of its input and output, which reads an object of a web server.
func FetchServe(in io.Reader, out io.Writer) error { return remote.Serve(in, out) }
