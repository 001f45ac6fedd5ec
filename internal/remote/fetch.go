package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Fetch is the command of a fetcher: this program once more, which asks a web server and decodes nothing of an image.
const Fetch = "fetch-clerk"

// fetchTime bounds the time of an answer of a fetcher, which ends its own requests to the server before that: all tries
// of one range.
const fetchTime = 10 * time.Minute

// order is what a fetcher is told first. What follows are empty objects, each of which asks whether all is unchanged.
type order struct{ URI, Authorization string }

// reply is what it answers.
type reply struct {
	Error  string
	Class  int    // of the error, 1 + its place in classes
	Socket string `json:",omitempty"` // where it serves the object by NBD, in the first answer
}

// ErrServer marks errors of servers that have no other class, and errUnavailable those of servers that cannot be
// reached, or do not answer.
var (
	ErrServer      = errors.New("error of a server")
	errUnavailable = ondisk.In(ErrServer, "unavailable server")
)

// classes are those of errors that the other process must know.
var classes = []error{
	ondisk.ErrChanged, ondisk.ErrUnsupported, ondisk.ErrUsage, ondisk.ErrReference, ondisk.ErrLimit, errUnavailable,
}

func replyOf(err error) (r reply) {
	if err == nil {
		return r
	}
	r.Error = err.Error()
	for i, class := range classes {
		if errors.Is(err, class) {
			r.Class = 1 + i
			break
		}
	}
	return r
}

func (r reply) err() error {
	switch {
	case r.Error == "":
		return nil
	case r.Class > 0 && r.Class <= len(classes):
		return ondisk.In(classes[r.Class-1], "%s", r.Error)
	}
	return ondisk.In(ErrServer, "%s", r.Error)
}

// fetcher is the other process.
type fetcher struct {
	*sys.Clerk
	ctx  context.Context //nolint:containedctx // of the command
	stop func() bool
	mu   sync.Mutex
	ask  *json.Encoder
	got  *json.Decoder
}

// startFetcher starts a fetcher of an object, and returns where it serves that. The fetcher ends with ctx.
func startFetcher(ctx context.Context, o order) (f *fetcher, socket string, err error) {
	c, err := sys.StartClerk(os.Stderr, Fetch)
	if err != nil {
		return nil, "", err
	}
	f = &fetcher{Clerk: c, ctx: ctx, ask: json.NewEncoder(c.In), got: json.NewDecoder(c.Out)}
	f.stop = context.AfterFunc(ctx, func() { _ = c.In.Close() })
	r, err := f.say(o)
	if err = cmp.Or(err, r.err()); err != nil {
		return nil, "", errors.Join(err, f.close())
	}
	return f, r.Socket, nil
}

// say asks, and reads the answer.
func (f *fetcher) say(question any) (r reply, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err = f.ask.Encode(question); err == nil {
		err = f.got.Decode(&r)
	}
	if err != nil {
		err = cmp.Or(f.ctx.Err(), fmt.Errorf("what asks the web server has ended: %w", err))
	}
	return r, err
}

func (f *fetcher) unchanged() error {
	r, err := f.say(struct{}{})
	return cmp.Or(err, r.err())
}

func (f *fetcher) close() error {
	if f == nil {
		return nil
	}
	f.stop()
	return f.Close()
}

// Serve is what a fetcher does, until its input ends. It restricts itself by confine to reading some files, removing
// others, and asking servers.
func Serve(in io.Reader, out io.Writer, confine func(read, remove []string)) error {
	// Only the end of the input ends it: Ctrl-C is for the other process, which may have something to finish.
	signal.Notify(make(chan os.Signal, 1), append(sys.EndSignals(), sys.BrokenPipe)...)
	sys.NoCore()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	questions, answers := json.NewDecoder(in), json.NewEncoder(out)
	var o order
	if err := questions.Decode(&o); err != nil {
		return err
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		defer cancel() // the other process has ended, or waits for nothing any more
		for questions.Decode(&struct{}{}) == nil {
			asked <- struct{}{}
		}
	}()
	l, err := nbd.ListenPrivate()
	if err != nil {
		return answers.Encode(replyOf(err))
	}
	confine(trusted(), nbd.Leftovers(l))
	object, err := OpenObject(ctx, o.URI, o.Authorization)
	if ctx.Err() != nil { // so is who would read an answer
		return l.Close()
	}
	if err != nil {
		return errors.Join(answers.Encode(replyOf(err)), l.Close())
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	serving.Go(func() {
		_ = (&nbd.Server{Export: nbd.Export{Disk: object.disk(ctx)}, Once: true}).Serve(ctx, l) // the client sees that
	})
	err = answers.Encode(reply{Socket: nbd.URI(l.Addr(), "")})
	for range asked {
		if err == nil {
			err = answers.Encode(replyOf(object.Unchanged(ctx)))
		}
	}
	return err
}

// trusted lists the files and folders by which Go finds servers and knows their certificates. Spec: packages net and
// crypto/x509.
func trusted() []string {
	files := []string{
		"/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/services", "/etc/ssl", "/etc/pki",
		"/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates",
		"/var/lib/ca-certificates", os.Getenv("SSL_CERT_FILE"),
	}
	if at, err := filepath.EvalSymlinks("/etc/resolv.conf"); err == nil && filepath.Dir(at) != "/etc" {
		files = append(files, filepath.Dir(at)) // the file is replaced when the network changes
	}
	return append(files, filepath.SplitList(os.Getenv("SSL_CERT_DIR"))...)
}

// disk returns the object for the server of a fetcher.
func (o *Object) disk(ctx context.Context) disk.Disk {
	from := &ahead{Object: o, ctx: ctx}
	return disk.New(o.size, units.SectorSize, func(off int64) (disk.Run, error) {
		return disk.Run{Len: o.size - off, Src: from, Off: off}, nil
	})
}

// oneServer refuses addresses of several web servers: none may see the header that is for another.
func oneServer(uris []string) error {
	first, of := "", ""
	for _, uri := range uris {
		server := ServerOf(uri)
		if !IsWeb(uri) || server == "" {
			continue // which cannot be asked
		}
		if of != "" && server != of {
			return ondisk.In(ondisk.ErrUsage, "--authorization is for one web server, and %s is on another than %s; "+
				"use one server in each run", uri, first)
		}
		first, of = uri, server
	}
	return nil
}

// ServerOf returns the address of the server of a URI, without secrets; empty if it cannot be read.
func ServerOf(uri string) string {
	if !IsWeb(uri) {
		server, _, _ := nbd.ServerOf(uri)
		return server
	}
	u, err := url.Parse(uri)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	scheme := strings.ToLower(u.Scheme)
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[scheme])
	return scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// ReadAuthorization reads the value of the header Authorization from a file, so that it is on no command line. It is
// for one web server, which has the objects of uris.
func ReadAuthorization(file string, uris []string) (string, error) {
	if file == "" {
		return "", nil
	}
	const most = 64 << 10
	f, err := os.Open(file) //nolint:gosec // as the user names it
	if err != nil {
		return "", ondisk.In(ondisk.ErrUsage, "--authorization: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	value := strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		return "", ondisk.In(ondisk.ErrUsage, "--authorization: %w", err)
	case value == "" || len(b) > most || strings.ContainsAny(value, "\r\n\x00"):
		return "", ondisk.In(ondisk.ErrUsage, "--authorization %s: want one line, such as Bearer TOKEN", file)
	}
	return value, oneServer(uris)
}
