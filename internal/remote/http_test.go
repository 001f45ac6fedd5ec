package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// content is what the servers of the tests have.
func content(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i>>8 ^ i*5)
	}
	return b
}

// web serves by a function, and by a file server where that says so by false. The first request counts 1.
type web struct {
	*httptest.Server
	requests atomic.Int64
	handle   func(w http.ResponseWriter, r *http.Request, request int64) bool
	content  []byte
}

const tag = `"one"`

func newWeb(t *testing.T, b []byte, handle func(w http.ResponseWriter, r *http.Request, request int64) bool) *web {
	t.Helper()
	s := &web{handle: handle, content: b}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := s.requests.Add(1)
		if s.handle == nil || !s.handle(w, r, n) {
			s.serve(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *web) serve(w http.ResponseWriter, r *http.Request) {
	if w.Header().Get("ETag") == "" {
		w.Header().Set("ETag", tag)
	}
	http.ServeContent(w, r, "disk.img", time.Time{}, bytes.NewReader(s.content))
}

// open opens the object of a server; pauses are short.
func (s *web) open(t *testing.T) *Object {
	t.Helper()
	o, err := OpenObject(t.Context(), s.URL+"/disk.img", "")
	require.NoError(t, err)
	o.pause = time.Nanosecond
	return o
}

// An object is read by the ranges that are asked for, with its validator.
func TestObject(t *testing.T) {
	t.Parallel()
	want := content(100_001)
	s := newWeb(t, want, func(w http.ResponseWriter, r *http.Request, n int64) bool {
		if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Accept-Encoding") != "identity" ||
			n > 1 && r.Header.Get("If-Range") != tag {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	_, err := OpenObject(t.Context(), s.URL, "")
	require.ErrorContains(t, err, "--authorization FILE")
	s.requests.Store(0)
	o, err := OpenObject(t.Context(), s.URL+"/x?y#z", "Bearer secret")
	require.NoError(t, err)
	require.EqualValues(t, len(want), o.Size())
	got := make([]byte, 1000)
	n, err := o.ReadAt(got, 99_500)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, want[99_500:], got[:n])
	n, err = o.ReadAt(got, 7)
	require.NoError(t, err)
	require.Equal(t, want[7:1007], got[:n])
	_, err = o.ReadAt(got, o.Size())
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, o.Unchanged(t.Context()))
	require.EqualValues(t, 4, s.requests.Load())
}

func TestEmptyObject(t *testing.T) {
	t.Parallel()
	o := newWeb(t, nil, nil).open(t)
	require.Zero(t, o.Size())
	require.NoError(t, o.Unchanged(t.Context()))
}

// What a server cannot do, or must not, is said when the object is opened.
func TestObjectsThatAreRefused(t *testing.T) {
	t.Parallel()
	other := newWeb(t, content(10), nil)
	answer := func(status int, header ...string) func(w http.ResponseWriter, r *http.Request, n int64) bool {
		return func(w http.ResponseWriter, _ *http.Request, _ int64) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte("x"))
			return true
		}
	}
	const partial = http.StatusPartialContent
	for want, handle := range map[string]func(w http.ResponseWriter, r *http.Request, n int64) bool{
		`the server does not support range requests`:  answer(http.StatusOK, "ETag", tag),
		`answers 404 "Not Found"`:                     answer(http.StatusNotFound),
		`answers 401 "Unauthorized"; --authorization`: answer(http.StatusUnauthorized),
		`no strong ETag and no Last-Modified`:         answer(partial, "Content-Range", "bytes 0-0/10"),
		`sends no strong ETag and no Last-Modified, so`: answer(partial, "Content-Range", "bytes 0-0/10",
			"ETag", `W/"weak"`),
		`the range "bytes 1-1/10"`:       answer(partial, "ETag", tag, "Content-Range", "bytes 1-1/10"),
		`the range "bytes 0-0/*"`:        answer(partial, "ETag", tag, "Content-Range", "bytes 0-0/*"),
		`the range ""`:                   answer(partial, "ETag", tag),
		`the range "bytes 0-0/0"`:        answer(partial, "ETag", tag, "Content-Range", "bytes 0-0/0"),
		`the range "bytes 0-0/-5"`:       answer(partial, "ETag", tag, "Content-Range", "bytes 0-0/-5"),
		`packs the object as "gzip"`:     answer(partial, "Content-Encoding", "gzip", "Content-Range", "bytes 0-0/1"),
		`answers 416`:                    answer(http.StatusRequestedRangeNotSatisfiable, "ETag", tag),
		`redirects to "` + other.URL:     answer(http.StatusFound, "Location", other.URL+"/disk.img?token=secret"),
		`redirects: limit exceeded of 5`: answer(http.StatusFound, "Location", "/again"),
	} {
		s := newWeb(t, nil, handle)
		_, err := OpenObject(t.Context(), s.URL+"/disk.img?signature=secret", "Basic secret")
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
	require.Zero(t, other.requests.Load(), "no other host is asked")
	for _, uri := range []string{"http://user:secret@host/", "http:///x", "http://%zz/"} {
		_, err := OpenObject(t.Context(), uri, "")
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := OpenObject(t.Context(), "http://host/", "Basic x\r\nHost: y")
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// FuzzContentRange has a server state any range: only the one that was asked for is taken, of an object that has it.
func FuzzContentRange(f *testing.F) {
	f.Add("bytes 5-9/10", int64(5), int64(10))
	f.Add("bytes 0-0/*", int64(0), int64(1))
	f.Add("bytes */0", int64(0), int64(0))
	f.Fuzz(func(t *testing.T, header string, from, to int64) {
		size, err := contentRange(header, from, to)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, size, to)
		canonical := fmt.Sprintf("bytes %d-%d/%d", from, to-1, size)
		require.Equal(t, canonical, header)
	})
}

// An object that is another one by now is an error, whatever the server answers, and no byte of it is used.
func TestObjectsThatChange(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(s *web, w http.ResponseWriter){
		"another tag":  func(_ *web, w http.ResponseWriter) { w.Header().Set("ETag", `"two"`) },
		"another size": func(s *web, _ http.ResponseWriter) { s.content = content(9999) },
		"it is gone":   func(_ *web, w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"it is shorter than what is asked for": func(s *web, _ http.ResponseWriter) {
			s.content = content(10)
		},
		"another time": func(_ *web, w http.ResponseWriter) {
			w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
		},
	} {
		s := newWeb(t, content(10_000), nil)
		o := s.open(t)
		s.handle = func(w http.ResponseWriter, _ *http.Request, _ int64) bool {
			change(s, w)
			return false
		}
		n, err := o.ReadAt(make([]byte, 100), 5000)
		require.ErrorIs(t, err, ondisk.ErrChanged, name)
		require.Zero(t, n)
		require.ErrorIs(t, o.Unchanged(t.Context()), ondisk.ErrChanged, name)
	}
	s := newWeb(t, content(10_000), nil)
	o := s.open(t)
	s.handle = func(w http.ResponseWriter, _ *http.Request, _ int64) bool { // without a look at If-Range
		w.Header().Set("ETag", `"two"`)
		w.Header().Set("Content-Range", "bytes 5000-5099/10000")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, 100))
		return true
	}
	_, err := o.ReadAt(make([]byte, 100), 5000)
	require.ErrorIs(t, err, ondisk.ErrChanged)
}

// Connections that are cut, and servers that are busy, are borne with: what is missing is asked for.
func TestObjectIsTriedAgain(t *testing.T) {
	t.Parallel()
	want := content(50_000)
	cut := func(w http.ResponseWriter, r *http.Request, most int) {
		from, to, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-")
		first, _ := strconv.Atoi(from)
		last, _ := strconv.Atoi(to)
		w.Header().Set("ETag", tag)
		w.Header().Set("Content-Range", "bytes "+from+"-"+to+"/50000")
		w.Header().Set("Content-Length", strconv.Itoa(last+1-first))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(want[first:min(first+most, last+1)]) // and no more: the connection is cut
	}
	s := newWeb(t, want, nil)
	o := s.open(t)
	s.handle = func(w http.ResponseWriter, r *http.Request, n int64) bool {
		switch n % 4 {
		case 0:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 1:
			panic(http.ErrAbortHandler)
		default:
			cut(w, r, 10_000)
		}
		return true
	}
	got := make([]byte, 50_000)
	_, err := o.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))

	for name, handle := range map[string]func(w http.ResponseWriter, r *http.Request, n int64) bool{
		`5 tries: the server answers 503 "`: func(w http.ResponseWriter, _ *http.Request, _ int64) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		},
		"5 tries: the answer ends early": func(w http.ResponseWriter, r *http.Request, _ int64) bool {
			cut(w, r, 0)
			return true
		},
		"5 tries: the answer of the server cannot be read as HTTP": func(
			w http.ResponseWriter, r *http.Request, _ int64,
		) bool {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = fmt.Fprintf(conn, "HTTP/1.1 %s\r\n\r\n", "secret of "+r.URL.Path) // an echo
				_ = conn.Close()
			}
			return true
		},
		"limit exceeded of 64 answers": func(w http.ResponseWriter, r *http.Request, _ int64) bool {
			cut(w, r, 1)
			return true
		},
	} {
		s.handle = handle
		_, err := o.ReadAt(make([]byte, 1000), 0)
		require.ErrorContains(t, err, name)
		require.NotContains(t, err.Error(), "secret")
		require.Equal(t, strings.HasPrefix(name, "5 tries: the answer"), errors.Is(err, errUnavailable),
			"one that answers 503 is there")
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.pause = time.Hour
	s.handle = func(w http.ResponseWriter, _ *http.Request, _ int64) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		cancel()
		return true
	}
	require.ErrorIs(t, o.Unchanged(ctx), context.Canceled)
}

// Answers with other lengths than they state, or than was asked for, are errors.
func TestObjectWithWrongLengths(t *testing.T) {
	t.Parallel()
	s := newWeb(t, content(10_000), nil)
	o := s.open(t)
	s.handle = func(w http.ResponseWriter, _ *http.Request, _ int64) bool {
		w.Header().Set("ETag", tag)
		w.Header().Set("Content-Range", "bytes 0-99/10000")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(make([]byte, 150))
		return true
	}
	_, err := o.ReadAt(make([]byte, 100), 0)
	require.ErrorContains(t, err, "the server sends 150 bytes, want 100")
	s.handle = func(w http.ResponseWriter, _ *http.Request, _ int64) bool {
		w.Header().Set("ETag", tag)
		w.Header().Set("Content-Range", "bytes 0-99/10000")
		w.WriteHeader(http.StatusPartialContent)
		_ = http.NewResponseController(w).Flush() // in chunks, without a length
		_, _ = w.Write(make([]byte, 150))
		return true
	}
	_, err = o.ReadAt(make([]byte, 100), 0)
	require.ErrorContains(t, err, "the server sends more than it was asked for")
}

// Who reads from front to back gets what is there, in large requests of which several are in work; who reads here and
// there asks for no more than that.
func TestAhead(t *testing.T) {
	t.Parallel()
	want := content(10*stretchBytes + 1234)
	var bytesSent, largest atomic.Int64
	s := newWeb(t, want, func(_ http.ResponseWriter, r *http.Request, _ int64) bool {
		from, to, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-")
		first, _ := strconv.ParseInt(from, 10, 64)
		last, _ := strconv.ParseInt(to, 10, 64)
		bytesSent.Add(last + 1 - first)
		largest.Store(max(largest.Load(), last+1-first))
		return false
	})
	a := &ahead{Object: s.open(t), ctx: t.Context()}
	for i := range int64(20) {
		off := i * 7 % 10 * stretchBytes
		got := make([]byte, 4096)
		_, err := a.ReadAt(got, off)
		require.NoError(t, err)
		require.Equal(t, want[off:off+4096], got)
	}
	require.EqualValues(t, 1+20*4096, bytesSent.Load())
	bytesSent.Store(0)
	var got []byte
	p := make([]byte, 300_000)
	for off := int64(0); off < a.Size(); {
		n, err := a.ReadAt(p, off)
		if off+int64(n) < a.Size() {
			require.NoError(t, err)
		}
		got, off = append(got, p[:n]...), off+int64(n)
	}
	require.True(t, bytes.Equal(want, got))
	require.EqualValues(t, stretchBytes, largest.Load())
	require.Less(t, bytesSent.Load(), int64(len(want)+3*steady))
}
