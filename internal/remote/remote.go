// Package remote reads files that servers have, by their URIs. It knows nothing of images.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/pattern"
)

// IsURI reports whether a word of a command line names what a server has, and no file.
func IsURI(word string) bool { return nbd.IsURI(word) || IsWeb(word) }

// CheckAddresses refuses addresses with blanks: in a text it could not be seen where they and their secrets end.
func CheckAddresses(words []string) error {
	for _, word := range words {
		scheme, rest, _ := strings.Cut(word, "://")
		if !IsURI(word) || strings.EqualFold(scheme, "nbd+unix") && strings.HasPrefix(rest, "/") {
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
var address = pattern.Lazy(`(?i)\b(https?|nbds?(?:\+\w+)?)://(\S*@)?([^\s?#]*)([?#]\S*[^\s"':;,.)\]])?`)

// Shown returns a text, such as a message or a URI, without what may be secret in its URIs.
func Shown(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return address().ReplaceAllStringFunc(text, func(uri string) string {
		part := address().FindStringSubmatch(uri)
		scheme, secret, rest, query := part[1]+"://", part[2], part[3], part[4]
		switch web := IsWeb(uri); {
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

// File is what a server has: an export of NBD, or an object of a web server, which a fetcher serves by NBD. Safe for
// concurrent use.
type File struct {
	client  *nbd.Client
	uri     string
	pages   pages
	fetcher *fetcher // nil for an export
	stop    func() bool

	// Of an archive that the file may be, and a member of it that the URI named; empty for none.
	Archive, Member string
	Whole           bool // the server has a file of the whole name: without an archive in it, there is no member
}

// Connect connects to the server of a URI. authorization is the value of this header for a web server, empty for none.
// If the server does not have the file, it may be a member of one: http://host/ARCHIVE!MEMBER?query. A server of NBD
// may take any name for its only export. All reads end with ctx, also those that wait for an answer.
func Connect(ctx context.Context, uri, authorization string) (*File, error) {
	f, err := connect(ctx, uri, authorization)
	at, member, ok := splitMember(uri)
	switch {
	case ok && err == nil && !IsWeb(uri):
		f.Archive, f.Member, f.Whole = at, member, true
		return f, nil
	case !ok || err == nil || errors.Is(err, ondisk.ErrUsage) || errors.Is(lost(err), errUnavailable):
		return f, err
	}
	archive, none := connect(ctx, at, authorization)
	if none != nil {
		return nil, err
	}
	archive.Archive, archive.Member = at, member
	return archive, nil
}

// splitMember takes the URI of a member of an archive apart. The mark stands in the path: no other server is asked.
func splitMember(uri string) (archive, member string, ok bool) {
	end := len(uri)
	if i := strings.IndexAny(uri, "?#"); i >= 0 {
		end = i
	}
	_, rest, _ := strings.Cut(uri[:end], "://")
	_, path, _ := strings.Cut(rest, "/")
	_, member, ok = strings.Cut(path, "!")
	plain, err := url.PathUnescape(member)
	if !ok || err != nil || plain == "" {
		return "", "", false
	}
	return uri[:end-len("!"+member)] + uri[end:], plain, true
}

func connect(ctx context.Context, uri, authorization string) (*File, error) {
	var f *fetcher
	at := uri
	if IsWeb(uri) {
		var err error
		if f, at, err = startFetcher(ctx, order{uri, authorization}); err != nil {
			return nil, err
		}
	}
	c, err := nbd.Dial(ctx, at)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	if f != nil {
		c.Wait(fetchTime)
	}
	stop := context.AfterFunc(ctx, func() { c.Abort(ctx.Err()) })
	return &File{client: c, uri: uri, pages: pages{of: c, size: c.Size()}, fetcher: f, stop: stop}, nil
}

// Size returns the size in bytes.
func (f *File) Size() int64 { return f.client.Size() }

// Name returns the name of the file, or that of the export for messages.
func (f *File) Name() string {
	if u, err := url.Parse(f.uri); err == nil && f.fetcher != nil {
		return path.Base(u.Path)
	}
	if name := f.client.Name(); name != "" {
		return name
	}
	return "default export"
}

// ID tells the file from others.
func (f *File) ID() string { return f.uri }

// Device reports whether the bytes are those of a device: its name says nothing of a format, and it does not show that
// others have written to it.
func (f *File) Device() bool { return f.fetcher == nil }

// ReadAt follows the contract of io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.pages.ReadAt(p, off)
	if f.fetcher != nil && err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) {
		err = cmp.Or(f.Unchanged(), err)
	}
	return n, err
}

// Forget has what was read and asked before be read and asked again.
func (f *File) Forget() {
	f.pages.forget()
	f.client.Forget()
}

// Extent returns what the server knows of holes.
func (f *File) Extent(off, limit int64) (disk.Extent, error) { return f.client.Extent(off, limit) }

// Unchanged returns the error of a server that was lost, and of an object that is another one by now. What others write
// to an export cannot be seen.
func (f *File) Unchanged() error {
	if f.fetcher != nil {
		return f.fetcher.unchanged()
	}
	if err := f.client.Alive(); err != nil {
		return fmt.Errorf("export %.256q: %w", f.client.Name(), err)
	}
	return nil
}

// Close ends the connection.
func (f *File) Close() error {
	f.stop()
	return errors.Join(f.client.Close(), f.fetcher.close())
}
