package realign

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
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

// IsRemote reports whether a word of a command line is the address of an export or of a web server, and no file.
func IsRemote(word string) bool { return nbd.IsURI(word) || isWeb(word) }

// isWeb reports whether a word of a command line is a web address, which trueup does not read.
func isWeb(word string) bool {
	scheme, _, ok := strings.Cut(word, "://")
	return ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
}

// refuseWeb returns the refusal of a web address, with the command line that reads it. work is the path of a command
// or the name of a flag.
func refuseWeb(uri, work string) error {
	command := strings.TrimPrefix(work, "trueup ")
	switch command {
	case "align", "convert", "verify":
		command += ` "$uri" DEST`
	case "inspect", "plan":
		command += ` "$uri"`
	case "scan":
		command = `inspect "$uri"`
	default:
		command = `align "$uri" DEST`
	}
	remedy := fmt.Sprintf("nbdkit serves it: nbdkit -U - curl %s --run 'trueup %s'", shell.Quote(Shown(uri)), command)
	if !shell.ForBash(runtime.GOOS) {
		remedy = "download it first; there is no nbdkit on this system"
	}
	return fmt.Errorf("%s: %w", Shown(uri), &ondisk.Refusal{
		Code: "unsupported", Reason: "trueup reads files and exports of NBD, and no web addresses", Remedy: remedy,
	})
}

// CheckAddresses refuses addresses with blanks: in a text it could not be seen where they and their secrets end.
func CheckAddresses(words []string) error {
	for _, word := range words {
		scheme, rest, _ := strings.Cut(word, "://")
		if !IsRemote(word) || strings.EqualFold(scheme, "nbd+unix") && strings.HasPrefix(rest, "/") {
			continue // which has no secret
		}
		if strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r == 0x7F }) {
			return ondisk.In(ondisk.ErrUsage, "an address of %.10q has a blank or a control character, want %%20 and "+
				"the like", scheme)
		}
	}
	return nil
}

// hiddenQuery stands for the query of a web address, which may hold a signature.
const hiddenQuery = "?..."

// address finds URIs in a text: the scheme, all up to the last @, since a password may have any character, the place,
// and the query.
var address = ondisk.LazyPattern(`(?i)\b(https?|nbds?(?:\+\w+)?)://(\S*@)?([^\s?#]*)([?#]\S*[^\s"':;,.)\]])?`)

// Shown returns a text, such as a message or a URI, without what may be secret in its URIs.
func Shown(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return address().ReplaceAllStringFunc(text, func(uri string) string {
		part := address().FindStringSubmatch(uri)
		scheme, secret, rest, query := part[1]+"://", part[2], part[3], part[4]
		switch web := isWeb(uri); {
		case web && strings.ContainsAny(secret, "?#"): // what follows may be of the query
			return scheme + hiddenQuery + rest[len(strings.TrimRight(rest, `"':;,.)]`)):]
		case web && query != "":
			rest += hiddenQuery
		case !web && strings.HasPrefix(secret, "/"): // an address without a host, which has no password
			return scheme + Shown(secret+rest+query)
		case !web:
			rest = Shown(rest + query) // of several in one word
		}
		if secret != "" {
			scheme += "...@"
		}
		return scheme + rest
	})
}
