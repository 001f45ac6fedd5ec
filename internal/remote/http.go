package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
)

// Object is a file of a web server, read by ranges. Each answer is that of the object which was opened, or an error.
// Safe for concurrent use.
type Object struct {
	client        *http.Client
	url           string
	authorization string
	size          int64 // bytes
	etag          string
	modified      string        // Last-Modified
	pause         time.Duration // before the first further try
}

const (
	// maxTries bounds the tries of one request without a byte between them. Their pauses double.
	maxTries   = 5
	firstTries = 2 // of a server that was never reached: its address may be wrong
	firstPause = 250 * time.Millisecond
	// headTime bounds the time to the header of an answer, and bodyTime that to the next bytes of it.
	headTime = 30 * time.Second
	bodyTime = 30 * time.Second
	maxHead  = 64 << 10 // bytes of the header of an answer
	maxTag   = 1 << 10  // bytes of its ETag or Last-Modified
	maxParts = 64       // answers to one read, of which each has a part
	maxHops  = 5        // redirects
)

// errAgain marks an error after which a request is tried again, and errBusy one of a server that answers so.
var (
	errAgain = errors.New("try again")
	errBusy  = ondisk.In(errAgain, "busy")
)

// IsWeb reports whether a word of a command line names an object of a web server.
func IsWeb(word string) bool {
	scheme, _, ok := strings.Cut(word, "://")
	return ok && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
}

// OpenObject asks a web server for size and validator of an object. authorization is the value of that header, empty
// for none.
func OpenObject(ctx context.Context, uri, authorization string) (*Object, error) {
	return openObject(ctx, transport(inFlight), uri, authorization)
}

// transport makes connections, so many at once to a server.
func transport(most int) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableCompression: true, ForceAttemptHTTP2: true,
		DialContext:           (&net.Dialer{Timeout: headTime}).DialContext,
		ResponseHeaderTimeout: headTime, TLSHandshakeTimeout: headTime, MaxResponseHeaderBytes: maxHead,
		MaxIdleConnsPerHost: most, MaxConnsPerHost: most, IdleConnTimeout: headTime,
	}
}

func openObject(ctx context.Context, t *http.Transport, uri, authorization string) (*Object, error) {
	u, err := url.Parse(uri)
	switch {
	case err != nil, u.Host == "":
		return nil, ondisk.In(ondisk.ErrUsage, "want http://HOST/PATH or https://HOST/PATH")
	case u.User != nil:
		return nil, ondisk.In(ondisk.ErrUsage, "the address has a name or a password, which others see; put the value "+
			"of the header into a file, for --authorization")
	case strings.ContainsAny(authorization, "\r\n\x00"):
		return nil, ondisk.In(ondisk.ErrUsage, "the value for --authorization has more than one line")
	}
	u.Fragment = ""
	o := &Object{
		client: &http.Client{Transport: t, CheckRedirect: sameHost}, url: u.String(), authorization: authorization,
		size: -1, pause: firstPause,
	}
	if err := o.retry(ctx, func() error { return o.fetch(ctx, make([]byte, 1), 0, new(int)) }); err != nil {
		return nil, err
	}
	return o, nil
}

// sameHost refuses redirects to another server, which would see what is asked for, and to one without TLS.
func sameHost(r *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) > maxHops:
		return fmt.Errorf("redirects: %w of %d", ondisk.ErrLimit, maxHops)
	case r.URL.Host != first.Host, r.URL.Scheme != first.Scheme:
		return fmt.Errorf("the server redirects to %.256q: %w; name that address itself if it is the right one",
			r.URL.Scheme+"://"+r.URL.Host, ondisk.ErrReference)
	}
	return nil
}

// Size returns the size in bytes.
func (o *Object) Size() int64 { return o.size }

// ReadAt follows the contract of io.ReaderAt.
func (o *Object) ReadAt(p []byte, off int64) (int, error) {
	return o.readAt(context.Background(), p, off)
}

func (o *Object) readAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	if off < 0 || off >= o.size {
		return 0, io.EOF
	}
	if int64(len(p)) > o.size-off {
		p, err = p[:o.size-off], io.EOF
	}
	for parts := 0; n < len(p); parts++ {
		got := n
		if parts == maxParts {
			return n, fmt.Errorf("read %d bytes at %d: %w of %d answers that end early", len(p), off, ondisk.ErrLimit,
				parts)
		}
		if bad := o.retry(ctx, func() error { return o.fetch(ctx, p, off, &n) }); bad != nil {
			return got, bad
		}
	}
	return n, err
}

// Unchanged asks whether the object is still the one that was opened.
func (o *Object) Unchanged(ctx context.Context) error {
	return o.retry(ctx, func() error { return o.fetch(ctx, make([]byte, min(1, o.size)), 0, new(int)) })
}

// retry calls a function again while its error says that this may help, with pauses.
func (o *Object) retry(ctx context.Context, try func() error) error {
	pause := o.pause
	for tries := 1; ; tries++ {
		err := try()
		if err == nil || !errors.Is(err, errAgain) {
			return err
		}
		if tries >= o.mostTries(err) {
			class := errUnavailable
			if errors.Is(err, errBusy) {
				class = ErrServer // others of its objects may be had
			}
			return ondisk.In(class, "%d tries: %w", tries, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		pause *= 2
	}
}

// mostTries returns how often a request is tried that fails so. What never answered may have a wrong address.
func (o *Object) mostTries(err error) int {
	op, ok := errors.AsType[net.Error](err)
	dial, _ := errors.AsType[*net.OpError](err)
	switch {
	case o.size >= 0:
	case ok && op.Timeout():
		return 1
	case dial != nil && dial.Op == "dial":
		return firstTries
	}
	return maxTries
}

// fetch asks once for what is missing of p, of which n bytes are there, and counts what comes. A part is a success. The
// first answer of all says what the object is.
func (o *Object) fetch(ctx context.Context, p []byte, off int64, n *int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, to := off+int64(*n), off+int64(len(p))
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, max(from, to-1)))
	r.Header.Set("Accept-Encoding", "identity")
	if o.authorization != "" {
		r.Header.Set("Authorization", o.authorization)
	}
	if v := o.validator(); v != "" {
		r.Header.Set("If-Range", v)
	}
	a, err := o.client.Do(r)
	if err != nil {
		if bad := (*url.Error)(nil); errors.As(err, &bad) {
			err = bad.Err // without the address, which may have a secret
		}
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			err = nbd.Unreached(err)
		}
		if final(err) {
			return err
		}
		return ondisk.In(errAgain, "%w", plain(err))
	}
	defer a.Body.Close()
	switch {
	case empty(a) && o.size < 0:
		return o.identify(a, 0)
	case empty(a):
		return o.same(a, 0)
	}
	if err := o.check(a, from, to); err != nil {
		return err
	}
	return o.receive(a.Body, p[*n:], n, cancel)
}

// plain returns the error of a connection without what the server sent, which may have the address with its secrets.
func plain(err error) error {
	_, network := errors.AsType[net.Error](err)
	if network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, http.ErrSchemeMismatch) || errors.Is(err, context.Canceled) {
		return err
	}
	return errors.New("the answer of the server cannot be read as HTTP")
}

// final reports whether the error of a request is one that another try has too.
func final(err error) bool {
	_, strange := errors.AsType[*tls.CertificateVerificationError](err)
	name, unknown := errors.AsType[*net.DNSError](err)
	return strange || unknown && name.IsNotFound ||
		errors.Is(err, ondisk.ErrReference) || errors.Is(err, ondisk.ErrLimit)
}

// receive takes the body of an answer. One that ends early is continued by the next request.
func (o *Object) receive(body io.Reader, p []byte, n *int, cancel func()) error {
	stalled := time.AfterFunc(bodyTime, cancel)
	defer stalled.Stop()
	got := 0
	for got < len(p) {
		m, err := body.Read(p[got:])
		got += m
		*n += m
		stalled.Reset(bodyTime)
		switch {
		case err == nil, got == len(p):
		case got > 0:
			return nil
		default:
			return ondisk.In(errAgain, "the answer ends early: %w", plain(err))
		}
	}
	if m, _ := body.Read(make([]byte, 1)); m > 0 {
		return errors.New("the server sends more than it was asked for")
	}
	return nil
}

// validator returns what identifies the object in a request. Weak tags do not. Spec: RFC 9110, 13.1.5.
func (o *Object) validator() string {
	if o.etag != "" && !strings.HasPrefix(o.etag, "W/") {
		return o.etag
	}
	return o.modified
}

// written returns when the object was written, in ns since 1970; 0 if that is not known.
func (o *Object) written() int64 {
	at, err := http.ParseTime(o.modified)
	if err != nil || at.Year() < 1970 || at.Year() > 2261 {
		return 0
	}
	return at.UnixNano()
}

// check looks at the header of an answer to a request for the bytes from from to to.
func (o *Object) check(a *http.Response, from, to int64) error {
	status := fmt.Sprintf("%d %.64q", a.StatusCode, http.StatusText(a.StatusCode))
	opened := o.size >= 0
	switch {
	case a.StatusCode == http.StatusPartialContent:
	case a.StatusCode == http.StatusOK && (!opened || o.same(a, o.size) == nil):
		return fmt.Errorf("the server does not support range requests (it answers %s): %w; download the file",
			status, ondisk.ErrUnsupported)
	case opened && (a.StatusCode == http.StatusOK || a.StatusCode == http.StatusRequestedRangeNotSatisfiable ||
		a.StatusCode == http.StatusPreconditionFailed || a.StatusCode == http.StatusNotFound ||
		a.StatusCode == http.StatusGone):
		return fmt.Errorf("the object %w: the server answers %s", ondisk.ErrChanged, status)
	case a.StatusCode >= 500, a.StatusCode == http.StatusTooManyRequests, a.StatusCode == http.StatusRequestTimeout:
		return ondisk.In(errBusy, "the server answers %s", status)
	case a.StatusCode == http.StatusUnauthorized, a.StatusCode == http.StatusForbidden:
		return fmt.Errorf("the server answers %s; --authorization FILE gives it the header that it wants", status)
	default:
		return fmt.Errorf("the server answers %s", status)
	}
	if e := a.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return fmt.Errorf("the server packs the object as %.64q, which is %w", e, ondisk.ErrUnsupported)
	}
	size, err := contentRange(a.Header.Get("Content-Range"), from, to)
	if err != nil {
		return err
	}
	if a.ContentLength >= 0 && a.ContentLength != to-from {
		return fmt.Errorf("the server sends %d bytes, want %d", a.ContentLength, to-from)
	}
	if opened {
		return o.same(a, size)
	}
	return o.identify(a, size)
}

// contentRange returns the size of the object that the header of an answer states. Spec: RFC 9110, 14.4.
func contentRange(header string, from, to int64) (int64, error) {
	_, total, _ := strings.Cut(header, "/")
	size, err := strconv.ParseInt(total, 10, 64)
	want := fmt.Sprintf("bytes %d-%d/", from, to-1)
	if err != nil || header != want+strconv.FormatInt(size, 10) || size < to {
		return 0, fmt.Errorf("the server sends the range %.64q, want %.64q and a size that is known", header, want)
	}
	return size, nil
}

// empty reports whether an answer is that of an object of 0 bytes, of which no range can be had.
func empty(a *http.Response) bool {
	return a.StatusCode == http.StatusRequestedRangeNotSatisfiable && a.Header.Get("Content-Range") == "bytes */0" ||
		a.StatusCode == http.StatusOK && a.ContentLength == 0
}

// identify keeps size and validators of the object as the first answer has them.
func (o *Object) identify(a *http.Response, size int64) error {
	o.etag, o.modified = a.Header.Get("ETag"), a.Header.Get("Last-Modified")
	switch n := max(len(o.etag), len(o.modified)); {
	case n > maxTag:
		return fmt.Errorf("ETag or Last-Modified of %d bytes: %w of %d", n, ondisk.ErrLimit, maxTag)
	case o.validator() == "":
		return fmt.Errorf("the server sends no strong ETag and no Last-Modified, so that a change would not be seen, "+
			"which is %w; download the file", ondisk.ErrUnsupported)
	}
	o.size = size
	return nil
}

// same returns the error of an answer that is not about the object which was opened.
func (o *Object) same(a *http.Response, size int64) error {
	etag, modified := a.Header.Get("ETag"), a.Header.Get("Last-Modified")
	if size != o.size || etag != o.etag || modified != o.modified {
		return fmt.Errorf("the object %w: size, ETag or Last-Modified differ; run again", ondisk.ErrChanged)
	}
	return nil
}
