package web_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/overview"
	"github.com/trueup/trueup/fleet/web"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

const token = "0123456789abcdef0123456789abcdef"

func put(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// site is a site with a page, whose fleet has one job.
func site() web.Site {
	o := overview.New()
	set(o, fleet.Running)
	return web.Site{Version: "v1", Overview: o, Metrics: func(w io.Writer) error { return o.Metrics(w, "v1") }}
}

func set(o *overview.Overview, state fleet.State) {
	o.Set(&fleet.Record{
		Job:   fleet.Job{Kind: fleet.Align, Datastore: "ds1", Path: "a.vmdk"},
		State: state,
	})
}

func start(t *testing.T, o web.Options, s web.Site) string {
	t.Helper()
	o.Flag = "page"
	server, err := web.Start(o, s)
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return server.URL()
}

// answer is the response to a client.
type answer struct {
	*http.Response
	body string
}

func ask(t *testing.T, c *http.Client, method, url, body string, change func(r *http.Request)) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if change != nil {
		change(r)
	}
	w, err := c.Do(r)
	require.NoError(t, err)
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	return answer{w, string(b)}
}

func get(t *testing.T, url string) answer {
	t.Helper()
	return ask(t, http.DefaultClient, "GET", url, "", nil)
}

// Addresses beyond loopback need TLS and a token.
func TestNoOpenPages(t *testing.T) {
	t.Parallel()
	short, good := put(t, "short", "secret\n"), put(t, "good", token+"\n")
	for want, o := range map[string]web.Options{
		"requires TLS":         {Address: "0.0.0.0:0", Token: good},
		"requires a token":     {Address: "[::]:0", Cert: "c", Key: "k"},
		"with an IP address":   {Address: "localhost:0"},
		"must be ADDRESS:PORT": {Address: "127.0.0.1"},
		"require each other":   {Address: "127.0.0.1:0", Cert: "c"},
		"must be 32 to 4096":   {Address: "127.0.0.1:0", Token: short},
		"no such file":         {Address: "127.0.0.1:0", Token: short + ".absent"},
		"--tls-cert c: open c": {Address: "127.0.0.1:0", Cert: "c", Key: "k"},
	} {
		o.Flag = "page"
		_, err := web.Start(o, site())
		require.ErrorContains(t, err, want)
		usage := !strings.HasPrefix(want, "no such") && !strings.Contains(want, "open c")
		require.Equal(t, usage, errors.Is(err, ondisk.ErrUsage), want)
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	s := site()
	s.Report = func(context.Context) (io.Reader, error) { return strings.NewReader("<!doctype html>the report"), nil }
	at := start(t, web.Options{Address: ":0"}, s)
	require.True(t, strings.HasPrefix(at, "http://127.0.0.1:"), at)
	for path, want := range map[string]struct{ kind, text string }{
		"/":        {"text/html; charset=utf-8", "ds1: a.vmdk"},
		"/metrics": {"text/plain; version=0.0.4; charset=utf-8", "\ntrueup_fleet_up 1\n"},
		"/report":  {"text/html; charset=utf-8", "the report"},
	} {
		a := get(t, at+path)
		require.Equal(t, http.StatusOK, a.StatusCode, path)
		require.Contains(t, a.body, want.text)
		require.Equal(t, want.kind, a.Header.Get("Content-Type"))
		require.Equal(t, "no-store", a.Header.Get("Cache-Control"))
		require.Equal(t, "nosniff", a.Header.Get("X-Content-Type-Options"))
		policy := a.Header.Get("Content-Security-Policy")
		require.Contains(t, policy, "default-src 'none'")
		require.Contains(t, policy, "frame-ancestors 'none'")
		require.Equal(t, path == "/report", strings.Contains(policy, "unsafe-inline"))
	}
	for _, path := range []string{"/index.html", "/report/", "/../etc/passwd", "/login"} {
		require.Equal(t, http.StatusNotFound, get(t, at+path).StatusCode, path)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		a := ask(t, http.DefaultClient, method, at+"/", "", nil)
		require.Equal(t, http.StatusMethodNotAllowed, a.StatusCode, method)
	}
}

// A site with metrics alone has no page.
func TestMetricsAlone(t *testing.T) {
	t.Parallel()
	s := site()
	s.Overview = nil
	at := start(t, web.Options{Address: "[::1]:0"}, s)
	require.Equal(t, http.StatusOK, get(t, at+"/metrics").StatusCode)
	for _, path := range []string{"/", "/events", "/report"} {
		require.Equal(t, http.StatusNotFound, get(t, at+path).StatusCode, path)
	}
}

// A foreign page whose name resolves to this machine gets nothing.
func TestRebinding(t *testing.T) {
	t.Parallel()
	at := start(t, web.Options{Address: "127.0.0.1:0"}, site())
	for host, want := range map[string]int{
		"localhost": 200, "LOCALHOST:1": 200, "127.0.0.1": 200, "127.9.9.9:80": 200, "[::1]:80": 200,
		"evil.example": 421, "evil.example:80": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421,
		"10.0.0.1": 421, "[::]": 421, "0.0.0.0": 421,
	} {
		for _, path := range []string{"/", "/metrics"} {
			a := ask(t, http.DefaultClient, "GET", at+path, "", func(r *http.Request) { r.Host = host })
			require.Equal(t, want, a.StatusCode, host)
			require.Equal(t, want == 200, strings.Contains(a.body, "ds1"), host)
		}
	}
}

// An error is in the log, and not in the response.
func TestReportFails(t *testing.T) {
	t.Parallel()
	s := site()
	logged := make(chan string, 1)
	s.Warn = func(text string) { logged <- text }
	s.Report = func(context.Context) (io.Reader, error) { return nil, errors.New("open /secret/place") }
	a := get(t, start(t, web.Options{Address: ":0"}, s)+"/report")
	require.Equal(t, http.StatusServiceUnavailable, a.StatusCode)
	require.NotContains(t, a.body, "secret")
	require.Equal(t, "open /secret/place", <-logged)
}

// With a token, nothing is shown without it: as a header, or as a cookie.
func TestToken(t *testing.T) {
	t.Parallel()
	cert, key := disktest.Certificate(t)
	at := start(t, web.Options{Address: "0.0.0.0:0", Cert: cert, Key: key, Token: put(t, "token", token+"\n")}, site())
	at = "https://127.0.0.1" + at[strings.LastIndex(at, ":"):]
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(cert)
	require.NoError(t, err)
	require.True(t, pool.AppendCertsFromPEM(pem))
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	t.Cleanup(c.CloseIdleConnections)
	for shown, want := range map[string]int{
		"": 401, "Bearer " + token: 200, "Bearer " + token + "0": 401, "Bearer " + token[1:]: 401, "Bearer": 401,
		"Basic " + token: 401, token: 401,
	} {
		for _, path := range []string{"/", "/metrics", "/events", "/report", "/nothing"} {
			if want == 200 && path != "/" && path != "/metrics" {
				continue
			}
			a := ask(t, c, "GET", at+path, "", func(r *http.Request) { r.Header.Set("Authorization", shown) })
			require.Equal(t, want, a.StatusCode, "%s %s", shown, path)
			require.Equal(t, want == 200, strings.Contains(a.body, "ds1"))
		}
	}
	c.Jar, err = cookiejar.New(nil)
	require.NoError(t, err)
	login := func(text string) answer {
		return ask(t, c, "POST", at+"/login", url.Values{"token": {text}}.Encode(), func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		})
	}
	for _, wrong := range []string{"", "wrong", strings.Repeat("x", 1<<20)} {
		a := login(wrong)
		require.Equal(t, http.StatusUnauthorized, a.StatusCode)
		require.Contains(t, a.body, "This is not the token.")
		require.Empty(t, a.Cookies())
	}
	require.Contains(t, login(" "+token+"\n").body, "ds1: a.vmdk", "it leads to the page")
	require.Contains(t, ask(t, c, "GET", at+"/metrics", "", nil).body, "trueup_fleet_up 1")
	u, err := url.Parse(at)
	require.NoError(t, err)
	given := c.Jar.Cookies(u)
	require.Len(t, given, 1)
	require.NotContains(t, given[0].Value, token)
	c.Jar = nil
	until, mac, _ := strings.Cut(given[0].Value, ".")
	for value, want := range map[string]int{
		given[0].Value: 200, until + "0." + mac: 401, "9999999999." + mac: 401, until: 401, until + ".": 401, "": 401,
		"1." + mac: 401,
	} {
		a := ask(t, c, "GET", at+"/metrics", "", func(r *http.Request) {
			r.AddCookie(&http.Cookie{Name: given[0].Name, Value: value})
		})
		require.Equal(t, want, a.StatusCode, value)
	}
}

// All parts are sent first, and then those that have changed.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := site()
	s.Tick = time.Millisecond
	at := start(t, web.Options{Address: ":0"}, s)
	w, err := http.Get(at + "/events")
	require.NoError(t, err)
	defer w.Body.Close()
	require.Equal(t, "text/event-stream", w.Header.Get("Content-Type"))
	in := bufio.NewScanner(w.Body)
	parts := map[string]string{}
	until := func(is func() bool) {
		t.Helper()
		for name := ""; !is(); {
			require.True(t, in.Scan())
			if n, found := strings.CutPrefix(in.Text(), "event: "); found {
				name = n
				parts[name] = ""
			} else if line, found := strings.CutPrefix(in.Text(), "data: "); found {
				parts[name] += line + "\n"
			}
		}
	}
	until(func() bool { return parts["time"] != "" })
	require.Contains(t, parts["running"], "ds1: a.vmdk")
	require.Contains(t, parts["datastores"], "<table>")
	require.Len(t, parts, 8)
	clear(parts)
	set(s.Overview, fleet.Done)
	until(func() bool { return strings.Contains(parts["ended"], "ds1: a.vmdk") })
	until(func() bool {
		return strings.Contains(parts["running"], "No job runs.") || parts["running"] == "" && false
	})
	require.NotContains(t, parts, "workers", "it has not changed")
}
