package results

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/css"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/pagetest"
)

// page is a report in a browser, with the browser's messages and requests.
type page struct {
	t   *testing.T
	ctx context.Context
	url string

	mu       sync.Mutex
	requests []string
	messages []string
}

// browser is shared by all tests of this package; each opens its own tabs.
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

// open loads a file into a new tab, after the given settings.
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

// A page that does everything that quiet checks is noticed.
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

// get runs an action with a result.
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

// quiet requires that a page has requested nothing else and caused no message of the browser.
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

// wide is a desktop width.
var wide = chromedp.EmulateViewport(1360, 900)

// contrasts lists texts with too little contrast: WCAG 2.1, success criterion 1.4.3, and "relative luminance".
const contrasts = `(() => {
  const parse = c => c.match(/[\d.]+/g).map(Number);
  const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = parse(c).map(linear); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (parse(c)[3] !== 0) return c;
    }
    return "rgb(255, 255, 255)";
  };
  const bad = new Set();
  let seen = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (walker.currentNode.data.trim() === "" || e.closest("svg, script, noscript")) continue;
    const a = light(getComputedStyle(e).color), b = light(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen++;
    if (!(ratio >= 4.5)) bad.add(walker.currentNode.data.trim().slice(0, 30) + " " + ratio.toFixed(2));
  }
  return seen > 500 ? Array.from(bad) : ["only " + seen + " texts were found"];
})()`

func TestReportHasContrast(t *testing.T) {
	tabs := chromium(t)
	s, images := sampleLibrary()
	path := htmlWritten(t, s, images)
	grounds := map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}
	for name, ground := range grounds {
		p := open(tabs, t, path, wide, scheme(name))
		require.Equal(t, ground, eval[string](p, `getComputedStyle(document.body).backgroundColor`))
		eval[bool](p, `for (const d of document.querySelectorAll("details")) d.open = true; true`)
		p.filled(len(images))
		require.Empty(t, eval[[]string](p, contrasts), name)
		p.quiet()
	}
}

// A library of 1,500 images, which are more rows than are drawn at once, or of 100,000 in the exhaustive tests.
func TestLargeReportInChromium(t *testing.T) {
	if testing.Short() || disktest.Raced {
		t.Skip("loads a file of megabytes three times")
	}
	n := 1500
	if disktest.Exhaustive {
		n = 100_000
	}
	tabs := chromium(t)
	s, images := largeLibrary(n)
	path := htmlWritten(t, s, images)
	info := disktest.Stat(t, path)
	require.Less(t, info.Size(), int64(n)*180+2<<20)
	measured := os.Getenv("TRUEUP_MEASURE") == "1" // on an idle machine
	best := func(what string, limit time.Duration, measure func() time.Duration) {
		t.Helper()
		least := disktest.Patience
		for range 3 {
			least = min(least, measure())
		}
		t.Logf("%s: %s of a file of %d bytes", what, least, info.Size())
		if measured {
			require.Less(t, least, limit, what)
		}
	}
	var p *page
	best("first paint", 3*time.Second, func() time.Duration {
		p = open(tabs, t, path, wide)
		return milliseconds(eval[float64](p,
			`performance.getEntriesByType("paint").find(e => e.name === "first-contentful-paint").startTime`))
	})
	all := by(images, func(*Image) int64 { return 0 })
	p.settles(fmt.Sprintf("All %d rows match, and the first 500 are shown.", n))
	require.Equal(t, all[:500], eval[[]string](p, shownPaths))
	// A click by the place of the button misses it while the page scrolls.
	require.True(t, eval[bool](p, `(document.getElementById("more").click(), true)`))
	require.Equal(t, all[:1000], eval[[]string](p, shownPaths))
	require.Equal(t, all[500], eval[string](p, `document.activeElement.firstChild.textContent`))
	// A reader's browser does not report every row that moves to a tool.
	p.run(pagetest.Send(css.Disable, cdp.Empty{}), pagetest.Send(dom.Disable, cdp.Empty{}))
	// Until the next frame, which a reader waits for.
	timed := func(does string) func() time.Duration {
		script := `(async () => { const t = performance.now(); ` + does + `; document.body.offsetHeight;
			await new Promise(r => requestAnimationFrame(() => setTimeout(r))); return performance.now() - t; })()`
		return func() time.Duration {
			return milliseconds(get(p, chromedp.Evaluate[float64](script, chromedp.EvalAwaitPromise)))
		}
	}
	best("sort by size", time.Second, timed(`document.querySelector('th[data-sort="size"] button').click()`))
	require.Len(t, eval[[]string](p, shownPaths), 500)
	best("sort by path", time.Second, timed(`document.querySelector('th[data-sort="path"] button').click()`))
	sort.Strings(all) // the numbers in these paths have one length
	require.Equal(t, all[:500], eval[[]string](p, shownPaths))
	best("filter", 200*time.Millisecond, timed(`document.querySelector('input[value="misaligned"]').click()`))
	best("find", 350*time.Millisecond,
		timed(`f = document.getElementById("find"); f.value += "datastore03 "; f.dispatchEvent(new Event("input")); `+
			`await new Promise(r => setTimeout(r, 120))`))
	var off []string
	for _, i := range images {
		if strings.Contains(i.Path, "datastore03") && kindOf(i) == "misaligned" {
			off = append(off, i.Path)
		}
	}
	sort.Strings(off)
	want := fmt.Sprintf("%d of %d rows are shown: misaligned, with “%s”.", len(off), n,
		strings.TrimSpace(strings.Repeat("datastore03 ", 3)))
	if len(off) > 500 {
		want = strings.Replace(want, "are shown", "match, and the first 500 are shown", 1)
	}
	p.settles(want)
	require.Equal(t, off[:min(len(off), 500)], eval[[]string](p, shownPaths))
	// All rows are saved, drawn or not.
	saved := `(async () => { let b; URL.createObjectURL = (c) => { b = c; return "" };
		HTMLAnchorElement.prototype.click = () => {};
		document.getElementById("reset").click(); document.getElementById("save").click();
		return (await b.text()).split("\r\n").length - 2; })()`
	require.Equal(t, n, get(p, chromedp.Evaluate[int](saved, chromedp.EvalAwaitPromise)))
	p.quiet()
}

func milliseconds(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

var pictures = flag.Bool("pictures", false, "take the pictures of docs anew")

// The pictures of the README: go test ./internal/scan/results -run TestScreenshots -pictures. They are not compared,
// since fonts differ from machine to machine.
func TestScreenshots(t *testing.T) {
	tabs := chromium(t)
	s, images := sampleLibrary()
	path := htmlWritten(t, s, images)
	for _, shot := range []struct {
		scheme string
		height int64
		open   []int // rows
		top    int   // the row at the top of the picture, 0 for the head of the page
	}{{"light", 1425, []int{3}, 0}, {"dark", 1080, []int{11, 12}, 8}} {
		p := open(tabs, t, path, chromedp.EmulateViewport(1360, shot.height), scheme(shot.scheme))
		for _, n := range shot.open {
			eval[bool](p, fmt.Sprintf(`document.querySelectorAll("#rows details")[%d].open = true`, n))
		}
		p.filled(len(shot.open))
		if shot.top > 0 {
			eval[bool](p,
				fmt.Sprintf(
					`document.getElementById("rows").rows[%d].scrollIntoView(); scrollBy(0, `+
						`-document.querySelector("thead").offsetHeight); true`, shot.top))
		}
		png := get(p, chromedp.CaptureScreenshot())
		require.Greater(t, len(png), 10<<10)
		require.Less(t, len(png), 400<<10)
		if *pictures {
			require.NoError(t, os.WriteFile("../../../docs/scan-report-"+shot.scheme+".png", png, 0o644))
		}
		p.quiet()
	}
}
