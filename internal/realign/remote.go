package realign

import (
	"context"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Remotes are connections to exports of NBD by URI, each for one opening. They are made before the process confines
// itself, which cannot make any then.
type Remotes map[string][]connection

// connection is one to a server, or the error of making it.
type connection struct {
	file *nbd.File
	err  error
}

// maxRemotes bounds the connections.
const maxRemotes = 16

// Connect connects to the servers of those images that are exports; an error is that of opening the image. The end of
// ctx ends the connections. work is the path of the command.
func Connect(ctx context.Context, images []string, work string) (Remotes, error) {
	if err := CheckAddresses(images); err != nil {
		return nil, err
	}
	images = slices.DeleteFunc(slices.Clone(images), func(image string) bool { return !IsRemote(image) })
	if len(images) > maxRemotes {
		return nil, ondisk.In(ondisk.ErrUsage, "%d images of servers are given, and one run reads at most %d; give "+
			"fewer", len(images), maxRemotes)
	}
	all := Remotes{}
	for _, uri := range images {
		if isWeb(uri) {
			all.Close()
			return nil, refuseWeb(uri, work)
		}
		f, err := nbd.Open(ctx, uri)
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

// openRemote opens and reads an export of a server.
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
		img, err = image.OpenRemote(made[0].file, Shown(uri), o)
	}
	if err != nil {
		return nil, ondisk.In(ErrOpen, "%s: %w", uri, err)
	}
	return Read(img, r)
}

// Local refuses an image of a server, and a disk of Windows, for work that needs a file.
func Local(path, work string) error {
	where, remedy := "on a server", "make a file of it with trueup convert, and name that"
	switch {
	case isWeb(path):
		return refuseWeb(path, work)
	case !hasNoFolder(path):
		return nil
	case sys.IsDrive(path):
		where = "a device of Windows"
	case work == "trueup report": // of results, which are no image
		remedy = "save it as a file"
	case work == "trueup scan":
		remedy = "give it to trueup inspect"
	}
	return fmt.Errorf("%s: %w", path, &ondisk.Refusal{
		Code: "unsupported", Reason: work + " needs a file, and this is " + where, Remedy: remedy,
	})
}
