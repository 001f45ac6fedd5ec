package remote

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

const fetcherEnv = "TRUEUP_TEST_FETCHER"

// TestMain is the fetcher, too: that is this very program.
func TestMain(m *testing.M) {
	serve := map[string]func(io.Reader, io.Writer, func([]string, []string)) error{
		Fetch: Serve, FetchMany: ServeMany,
	}[os.Args[len(os.Args)-1]]
	if os.Getenv(fetcherEnv) == "" || serve == nil {
		os.Exit(m.Run())
	}
	if err := serve(os.Stdin, os.Stdout, func([]string, []string) {}); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
}

// An object is read through a process of its own, which leaves nothing, and says the same of it.
func TestFetcher(t *testing.T) {
	t.Setenv(fetcherEnv, "1")
	t.Setenv("TMPDIR", t.TempDir())
	want := content(3*stretchBytes + 500)
	s := newWeb(t, want, func(w http.ResponseWriter, r *http.Request, _ int64) bool {
		if r.Header.Get("Authorization") != "Bearer x" {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	_, err := Connect(t.Context(), s.URL+"/a/disk%20.img?x", "")
	require.ErrorContains(t, err, "--authorization FILE")
	f, err := Connect(t.Context(), s.URL+"/a/disk%20.img?x", "Bearer x")
	require.NoError(t, err)
	require.Equal(t, "disk .img", f.Name())
	require.False(t, f.Device())
	require.EqualValues(t, len(want), f.Size())
	got := make([]byte, len(want))
	_, err = f.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	e, err := f.Extent(5, 1000)
	require.NoError(t, err)
	require.Equal(t, disk.Extent{Range: disk.Range{Off: 5, Len: 1000}}, e)
	require.NoError(t, f.Unchanged())
	s.content = content(77)
	require.ErrorIs(t, f.Unchanged(), ondisk.ErrChanged)
	require.NoError(t, f.Close())
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left)

	_, err = Connect(t.Context(), "http://user@host/", "")
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// A read that fails because the object is another one by now says that.
func TestFetcherOfAnObjectThatChanges(t *testing.T) {
	t.Setenv(fetcherEnv, "1")
	s := newWeb(t, content(3*stretchBytes), nil)
	f, err := Connect(t.Context(), s.URL, "")
	require.NoError(t, err)
	s.content = content(stretchBytes)
	_, err = f.ReadAt(make([]byte, 1), 2*stretchBytes)
	require.ErrorIs(t, err, ondisk.ErrChanged)
	require.NoError(t, f.Close())
	require.ErrorContains(t, f.Unchanged(), "what asks the web server has ended")
}

// unread is a pipe that has no reader any more.
type unread struct{}

func (unread) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A process that has ended is told nothing, and its end is no error of the fetcher.
func TestFetcherOfAProcessThatEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	require.NoError(t, err)
	defer l.Close()
	in := strings.NewReader(`{"URI":"http://` + l.Addr().String() + `/x"}`)
	require.NoError(t, Serve(in, unread{}, func([]string, []string) {}))
}

func TestReadAuthorization(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "header")
	for text, want := range map[string]string{
		"Bearer x\n": "Bearer x", "Basic y\r\n": "Basic y", "": "", "\n": "", "a\nb": "",
		strings.Repeat("x", 70<<10): "",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		got, err := ReadAuthorization(file, nil)
		require.Equal(t, want, got)
		if want == "" {
			require.ErrorIs(t, err, ondisk.ErrUsage)
		} else {
			require.NoError(t, err)
		}
	}
	_, err := ReadAuthorization(file+"x", nil)
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// The value of --authorization goes to one server.
func TestAuthorizationIsForOneServer(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "header")
	require.NoError(t, os.WriteFile(file, []byte("Bearer x"), 0o600))
	_, err := ReadAuthorization(file, []string{
		"https://Host/a?x", "a.img", "HTTPS://host:443/b", "nbd://other/", "https://host/c", "http://%zz/",
	})
	require.NoError(t, err)
	for _, other := range []string{
		"https://other/a", "http://host/a", "https://host:444/a", "https://host.other/a", "http://host:443/a",
	} {
		uris := []string{"https://host/a", "https://host/b", other}
		_, err := ReadAuthorization(file, uris)
		require.ErrorIs(t, err, ondisk.ErrUsage, other)
		require.ErrorContains(t, err, other+" is on another than https://host/b")
		_, err = ReadAuthorization("", uris)
		require.NoError(t, err)
	}
}

// Addresses whose end no message could tell are refused, and nothing of them is shown.
func TestCheckAddresses(t *testing.T) {
	t.Parallel()
	require.NoError(t, CheckAddresses([]string{"a b.img", "https://h/a%20b?c", "nbd+unix:///x?socket=/a b", ""}))
	for _, uri := range []string{
		"https://h/vm folder/ok.img?sig=secret", "http://h/ok.img?name=my vm&sig=secret", "https://h/a?b\tsecret",
		"nbd://user:my secret@h/", "https://h/a\x7f?secret",
	} {
		err := CheckAddresses([]string{"https://h/a", uri})
		require.ErrorIs(t, err, ondisk.ErrUsage, uri)
		require.ErrorContains(t, err, "has a blank or a control character")
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"http://user:secret@host/a": "http://...@host/a", "http://user:secret@host/a@b": "http://...@b",
		"http://user:a/b@host:9/x": "http://...@host:9/x", "http://user:a?b@host/x": "http://?...",
		"http://user:a#b@host/x?c": "http://?...", "https://host/a?sign=x@secret&y": "https://?...",
		`"https://u:a/b@h/c?d": x; "http://u:a#b@h/c": y`: `"https://...@h/c?...": x; "http://?...": y`,
		"nbd://x:y@z@host:1/":                             "nbd://...@host:1/",
		"nbd+unix:///x?socket=a@b":                        "nbd+unix:///x?socket=a@b",
		"nbd+unix://x:y@/z?socket=a":                      "nbd+unix://...@/z?socket=a",
		"[nbd+unix:///x?socket=a@b,http://x:y@h]":         "[nbd+unix:///x?socket=a@b,http://...@h]",
		"[nbd+unix:///x?socket=a,http://h/?b]":            "[nbd+unix:///x?socket=a,http://h/?...]",
		"https://host":                                    "https://host",
		"HTTPS://host/a?X-Amz-Signature=b&c='d":           "HTTPS://host/a?...", "http://host#x": "http://host?...",
		`--with=[https://h/a?b,https://h/c?d]`: "--with=[https://h/a?...]", "a file?": "a file?",
		`"https://h/a?b": not found; https://h/?c.`: `"https://h/a?...": not found; https://h/?....`,
	} {
		require.Equal(t, want, Shown(uri))
	}
}

// A member of an archive stands in the path of an address, so that no other server is asked for the archive.
func TestSplitMember(t *testing.T) {
	for uri, want := range map[string][2]string{
		"http://h/a.zip!b.img":          {"http://h/a.zip", "b.img"},
		"https://h/a.zip!c%2Fb%21?x=!y": {"https://h/a.zip?x=!y", "c/b!"},
		"nbd://h/!b.img":                {"nbd://h/", "b.img"},
		"nbd+unix:///a!b?socket=/s!t":   {"nbd+unix:///a?socket=/s!t", "b"},
		"http://h!x:y@good/a.img":       {},
		"http://u!v:w!x@h/a.img":        {},
		"nbd://h!b.img":                 {},
		"http://h/a.img?x=!y":           {},
		"http://h/a.img#!y":             {},
		"http://h/a.zip!":               {},
		"http://h/a.zip!%zz":            {},
		"a!b":                           {},
		"!":                             {},
	} {
		archive, member, ok := splitMember(uri)
		require.Equal(t, want, [2]string{archive, member}, uri)
		require.Equal(t, want[1] != "", ok, uri)
		if ok {
			require.Equal(t, ServerOf(uri), ServerOf(archive), uri)
		}
	}
}
