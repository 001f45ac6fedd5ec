package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/nbd"
	"github.com/trueup/trueup/internal/ondisk"
)

// hub starts what asks servers, in a process of its own.
func hub(t *testing.T, uris ...string) (*Hub, []Address) {
	t.Helper()
	t.Setenv(fetcherEnv, "1")
	all := Addresses(uris)
	h, err := StartHub(t.Context(), all, "", maxOpen)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h, all
}

// exported serves bytes by NBD until the end of the test.
func exported(t *testing.T, l net.Listener, content []byte) (uri string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		size := int64(len(content))
		d := disk.New(size, 512, func(off int64) (disk.Run, error) {
			return disk.Run{Len: size - off, Src: bytes.NewReader(content), Off: off}, nil
		})
		_ = (&nbd.Server{Export: nbd.Export{Name: "a/disk", Disk: d}}).Serve(ctx, l)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return nbd.URI(l.Addr(), "a/disk")
}

// visits visits all addresses, and returns what came of each: its bytes as a reader of a Served has them, or the error.
func visits(t *testing.T, h *Hub, all []Address) (got map[string][]byte, failed map[string]error) {
	t.Helper()
	got, failed = map[string][]byte{}, map[string]error{}
	var mu sync.Mutex
	require.NoError(t, h.Visit(t.Context(), all, func(a Address, o *Opened, err error) error {
		var b []byte
		if err == nil {
			s := NewServed(o.Info, a.Shown, func(q []byte) ([]byte, error) { return o.Answer(q), nil })
			b = make([]byte, s.Size())
			var n int
			if n, err = s.ReadAt(b, 0); err == nil || errors.Is(err, io.EOF) && n == len(b) {
				err = s.Unchanged()
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed[a.Shown] = err
		} else {
			got[a.Shown] = b
		}
		return nil
	}))
	return got, failed
}

// Files of web servers and exports, by network and by sockets of this machine, are read in full, each on its own.
func TestHub(t *testing.T) {
	want := content(maxAsk + 70_000)
	other := content(5 * 512)
	web := newWeb(t, want, func(w http.ResponseWriter, r *http.Request, _ int64) bool {
		if strings.HasPrefix(r.URL.Path, "/none") {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		if strings.HasPrefix(r.URL.Path, "/changes") && r.Header.Get("If-Range") != "" {
			w.Header().Set("ETag", `"another"`)
		}
		return false
	})
	local, err := nbd.ListenUnix(filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	network, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	uris := []string{exported(t, local, other), exported(t, network, other), "nbds://host/", web.URL + "/changes"}
	for n := range 40 {
		uris = append(uris, fmt.Sprintf("%s/%d.img?sign=secret", web.URL, n))
		if n == 20 {
			uris = append(uris, web.URL+"/none.img")
		}
	}
	h, all := hub(t, append(uris, uris...)...)
	require.Len(t, all, len(uris), "each once")
	got, failed := visits(t, h, all)
	require.Len(t, got, 42)
	for _, uri := range uris[:2] {
		require.True(t, bytes.Equal(other, got[uri]), uri)
	}
	for n := range 40 {
		require.True(t, bytes.Equal(want, got[identified(fmt.Sprintf("%s/%d.img?sign=secret", web.URL, n))]), n)
	}
	require.Len(t, failed, 3)
	require.ErrorContains(t, failed[web.URL+"/none.img"], `the server answers 404 "Not Found"`)
	require.ErrorIs(t, failed[web.URL+"/none.img"], ErrServer)
	require.ErrorIs(t, failed[web.URL+"/changes"], ondisk.ErrChanged)
	require.ErrorIs(t, failed["nbds://host/"], ondisk.ErrUnsupported)
}

// A server that never answers, or that is not there, delays no other, and is not asked for all that it is to have.
func TestVisitBadServers(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	const absent = "127.0.0.1:1" // which no other test is given
	good := newWeb(t, content(3000), nil)
	var uris, fine []string
	for n := range 30 {
		uris = append(uris, fmt.Sprintf("http://%s/%d", silent.Addr(), n), fmt.Sprintf("nbd://%s/%d", absent, n))
		fine = append(fine, fmt.Sprintf("%s/%d", good.URL, n))
	}
	h, all := hub(t, append(uris, fine...)...)
	ctx, cancel := context.WithCancel(t.Context())
	var opened, refused, skipped atomic.Int64
	left := int64(len(fine) + 30) // those of the good server, and of the one that is not there
	err = h.Visit(ctx, all, func(a Address, _ *Opened, err error) error {
		switch {
		case err == nil:
			opened.Add(1)
		case strings.Contains(err.Error(), "it was not asked for"):
			skipped.Add(1)
			if !errors.Is(err, ErrServer) {
				return err
			}
		case strings.Contains(err.Error(), "cannot be reached"):
			refused.Add(1)
		}
		if strings.Contains(a.URI, silent.Addr().String()) {
			return fmt.Errorf("%s has an end: %w", a.URI, err)
		}
		if atomic.AddInt64(&left, -1) == 0 {
			cancel() // the silent one is still waited for
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 30, opened.Load())
	require.EqualValues(t, maxLost, refused.Load())
	require.EqualValues(t, 30-maxLost, skipped.Load())

	h.time = 50 * time.Millisecond
	_, failed := visits(t, h, Addresses(uris[:1]))
	require.ErrorContains(t, failed[uris[0]], "the server took longer than 50ms for one image")
}

// When the process that asks servers has ended, every file has an error.
func TestHubThatEnds(t *testing.T) {
	web := newWeb(t, content(3000), nil)
	h, all := hub(t, web.URL+"/a", web.URL+"/b")
	require.NoError(t, h.network.In.Close())
	<-h.network.done
	_, failed := visits(t, h, all)
	require.Len(t, failed, 2)
	require.ErrorContains(t, failed[all[0].Shown], "the process that asks servers has ended")
}

// A tag may have any byte, and another tag is another object.
func TestHubKeepsTags(t *testing.T) {
	tags := map[string]string{"/a": "\"v\xe4\"", "/b": "\"v\xf6\""}
	web := newWeb(t, content(3000), func(w http.ResponseWriter, r *http.Request, _ int64) bool {
		w.Header().Set("ETag", tags[r.URL.Path])
		return false
	})
	h, all := hub(t, web.URL+"/a", web.URL+"/b")
	require.NoError(t, h.Visit(t.Context(), all, func(a Address, o *Opened, err error) error {
		if err == nil && string(o.Tag) != tags[strings.TrimPrefix(a.URI, web.URL)] {
			err = fmt.Errorf("tag %q", o.Tag)
		}
		return err
	}))
	tags["/long"] = `"` + strings.Repeat("<", 60_000) + `"`
	_, failed := visits(t, h, Addresses([]string{web.URL + "/long", web.URL + "/" + strings.Repeat("<", 60_000)}))
	require.Len(t, failed, 2, "answers that are too long are answers")
	for _, err := range failed {
		require.ErrorIs(t, err, ondisk.ErrLimit)
	}
}

// What a reader asks, which an image may have taken over, is of its own file and within it.
func TestOpenedAnswersLittle(t *testing.T) {
	web := newWeb(t, content(3000), nil)
	h, all := hub(t, web.URL+"/a")
	require.NoError(t, h.Visit(t.Context(), all, func(_ Address, o *Opened, err error) error {
		require.NoError(t, err)
		for _, question := range [][]byte{
			nil,
			{saysClose},
			append([]byte{asksOpen}, "http://other/"...),
			{asksRead},
			readQuestion(2999, 2),
			readQuestion(-1, 1), readQuestion(3001, 0), readQuestion(0, maxAsk+1),
		} {
			_, err := dataOf(o.Answer(question))
			require.Error(t, err, "%q", question)
		}
		data, err := dataOf(o.Answer(readQuestion(2999, 1)))
		require.NoError(t, err)
		require.Equal(t, content(3000)[2999:], data)
		o.Bytes = maxFileBytes
		_, err = dataOf(o.Answer(readQuestion(0, 1)))
		require.ErrorIs(t, err, ondisk.ErrLimit)
		return nil
	}))
}

// Addresses that differ in what is not shown are told apart, in whatever order they come, by SHA-256 as sha256sum has
// it. Another signature is no other object.
func TestAddresses(t *testing.T) {
	t.Parallel()
	const amazon = "X-Amz-Credential=me&X-Amz-Date=%[1]d&X-Amz-Signature=%[1]d"
	shown := map[string]string{
		"https://h/a?x": "https://h/a?...#d75fc78f68e5",
		"https://h/a?y": "https://h/a?...#bad6cdf937aa",
		"nbd://h/":      "nbd://h/", "https://h/a": "https://h/a",
		"https://h/a@b": "https://...@b#1822f04c79cc", "https://i/a@b": "https://...@b#c2c585e4ef6c",
		"https://h/a?X-Amz-Signature=x":                   "https://h/a?...#46be4ac67fc6", // and nothing else of it
		"https://h/a?token=x":                             "https://h/a?...#5cbc69a129e0",
		"https://h/b?x&" + fmt.Sprintf(amazon, 1):         "https://h/b?...#3537a912d3d4",
		"https://h/b?y&" + fmt.Sprintf(amazon, 1):         "https://h/b?...#20a582df4981",
		"https://h/c?" + fmt.Sprintf(amazon, 1):           "https://h/c?...",
		"https://h/d?sv=1&se=2&sp=r&sr=b&sig=x":           "https://h/d?...",
		"https://h/d?snapshot=1&sv=1&se=2&sig=x":          "https://h/d?...#fa356c0aa9f3",
		"https://h/e?Expires=1&Signature=2&Key-Pair-Id=3": "https://h/e?...",
		"https://user:password@h/a":                       "https://...@h/a",
	}
	words := slices.Sorted(maps.Keys(shown))
	for range 2 {
		all := Addresses(append(words, "a.img", "nbd://h/", "https://h/c?"+fmt.Sprintf(amazon, 2),
			"https://h/b?x&"+fmt.Sprintf(amazon, 2)))
		require.Len(t, all, len(words), "each object once")
		for n, a := range all {
			require.Equal(t, Address{words[n], shown[words[n]]}, a)
		}
		slices.Reverse(words)
	}
	for uri, want := range map[string]string{
		"HTTPS://Host/a?x": "https://host:443", "http://h:81/": "http://h:81", "nbd://h/x": "nbd://h:10809",
		"nbd+unix:///x?socket=/a b": "nbd+unix:///?socket=/a b", "nbd+unix:///?socket=/./a": "nbd+unix:///?socket=/a",
		"nbds://h/": "", "http://": "", "http://%zz/": "",
	} {
		require.Equal(t, want, ServerOf(uri), uri)
	}
}

// FuzzMessages has a process send any bytes: no more is taken than a message may have, and no answer is both data and
// an error.
func FuzzMessages(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, writeMessage(&b, 7, answerOf([]byte("data"), nil)))
	require.NoError(f, writeMessage(&b, 8, answerOf(nil, ondisk.In(ondisk.ErrChanged, "it changed"))))
	f.Add(b.Bytes())
	f.Add([]byte("\x00\x00\x00\x01\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x01\x00\x00\x00\x0dr\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x02"))
	f.Fuzz(func(t *testing.T, pipe []byte) {
		for r := bytes.NewReader(pipe); ; {
			_, body, err := readMessage(r)
			if err != nil {
				return
			}
			require.LessOrEqual(t, len(body), len(pipe))
			data, err := dataOf(body)
			require.True(t, err == nil || data == nil)
			if off, n, err := readOf(body, 1000); err == nil {
				require.True(t, off >= 0 && n >= 0 && off+int64(n) <= 1000)
			}
		}
	})
}
