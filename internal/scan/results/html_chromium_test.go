package results

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/pagetest"
)

// page is a report in a browser, and what the browser said and asked for.
type page struct {
	t   *testing.T
	ctx context.Context
	url string

	mu       sync.Mutex
	requests []string
	messages []string
}

// browser is the one that all tests of this package share; each opens tabs of its own.
var browser struct {
	start sync.Once
	ctx   context.Context
	err   error
	stop  func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if browser.stop != nil {
		browser.stop()
	}
	os.Exit(code)
}

// chromium returns a browser without a window.
func chromium(t *testing.T) context.Context {
	t.Helper()
	program := disktest.Tool(t, "chromium")
	browser.start.Do(func() { browser.err = startBrowser(program) })
	require.NoError(t, browser.err)
	return browser.ctx
}

func startBrowser(program string) error {
	dir, err := os.MkdirTemp("", "trueup-chromium-")
	if err != nil {
		return err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program), chromedp.UserDataDir(dir), chromedp.Env("TMPDIR="+dir),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("force-color-profile", "srgb"),
		chromedp.WSURLReadTimeout(disktest.Patience),
	)
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's own does not work for root
	}
	process, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, closeTabs := chromedp.NewContext(process)
	browser.ctx = ctx
	browser.stop = func() {
		closeTabs()
		end()
		os.RemoveAll(dir)
	}
	return chromedp.Do(ctx)
}

// written makes a report of a library.
func htmlWritten(t *testing.T, s *Summary, images []*Image) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.html")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, write(f, htmlFormat, s, images))
	require.NoError(t, f.Close())
	return path
}

// open loads a file into a tab of its own, after the given settings.
func open(browser context.Context, t *testing.T, path string, before ...chromedp.Action[chromedp.Void]) *page {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	p := &page{t: t, ctx: ctx, url: "file://" + path}
	require.NoError(t, chromedp.Listen(ctx, p.hear))
	p.run(pagetest.Send(network.Enable, network.EnableParams{}), pagetest.Send(log.Enable, cdp.Empty{}),
		pagetest.Send(runtime.Enable, cdp.Empty{}))
	p.run(before...)
	p.run(chromedp.Navigate(p.url))
	return p
}

func (p *page) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	case *runtime.EventConsoleAPICalled:
		p.messages = append(p.messages, string(e.Type))
	case *runtime.EventExceptionThrown:
		p.messages = append(p.messages, e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		p.messages = append(p.messages, e.Entry.Text)
	}
}

// What quiet looks for is heard: a page that does all of it.
func TestBrowserTellsWhatAPageDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "loud.html")
	loud := `<!doctype html>
		<meta http-equiv="Content-Security-Policy" content="script-src 'unsafe-inline'; style-src 'none'">
		<img src="picture.png"><p style="color:red">blocked
		<script>console.log("said"); throw new Error("thrown")</script>`
	require.NoError(t, os.WriteFile(path, []byte(loud), 0o600))
	p := open(chromium(t), t, path)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Equal(t, []string{p.url, "file://" + filepath.Dir(path) + "/picture.png"}, p.requests)
	heard := strings.Join(p.messages, "\n")
	require.Contains(t, heard, "log")
	require.Contains(t, heard, "Uncaught")
	require.Contains(t, heard, "Content Security Policy")
}

func (p *page) run(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, actions...))
}

// get runs an action that answers.
func get[T any](p *page, action chromedp.Action[T]) T {
	p.t.Helper()
	out, err := chromedp.Run(p.ctx, action)
	require.NoError(p.t, err)
	return out
}

// eval asks the page for the value of an expression.
func eval[T any](p *page, expression string) T {
	p.t.Helper()
	return get(p, chromedp.Evaluate[T](expression))
}

// quiet is what every page must be in the end.
func (p *page) quiet() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	// a test may load it again
	require.Equal(p.t, []string{p.url}, slices.Compact(p.requests), "the report asks for something")
	require.Empty(p.t, p.messages, "the browser complains")
}

// scheme makes the browser prefer light or dark.
func scheme(name string) chromedp.Action[chromedp.Void] {
	return pagetest.Send(emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{
			Name:  "prefers-color-scheme",
			Value: name,
		}}})
}

// wide is a desk.
var wide = chromedp.EmulateViewport(1360, 900)
