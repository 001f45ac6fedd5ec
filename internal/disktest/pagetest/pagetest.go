// Package pagetest tests pages in a browser.
package pagetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// contrast returns the lowest contrast of a text with its background. Spec: WCAG 2.1, contrast ratio.
const contrast = `(() => {
  const rgb = (c) => c.match(/[\d.]+/g).map(Number);
  const linear = (v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const lum = (c) => { const [r, g, b] = c.slice(0, 3).map(linear); return .2126*r + .7152*g + .0722*b; };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  let low = 99;
  for (const e of document.querySelectorAll("main *")) {
    if (!Array.from(e.childNodes).some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [lum(rgb(getComputedStyle(e).color)), lum(ground(e))].sort((x, y) => y - x);
    low = Math.min(low, (a + .05) / (b + .05));
  }
  return low;
})()`

// violations returns axe-core's violations of the page: rules, and elements that break each.
const violations = `axe.run().then((r) => r.violations.map(
  (v) => v.id + ": " + v.help + ": " + v.nodes.map((n) => n.target.join(" ")).slice(0, 5).join(", ")))`

// Browser starts Chromium, which ends with the test.
func Browser(t testing.TB) context.Context {
	t.Helper()
	program := disktest.Tool(t, "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.UserDataDir(t.TempDir()), chromedp.Env("TMPDIR="+t.TempDir()), chromedp.Flag("disable-gpu", true),
		chromedp.WSURLReadTimeout(disktest.Patience))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox does not work for root
	}
	process, end := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(end)
	return process
}

// LookAt loads the page of a server, which must fit its window, be readable, request only the URLs of asks, and cause
// no console messages. scheme is light or dark, and width is the width of the window. A screenshot goes to the folder
// shots, unless shots is empty.
func LookAt(process context.Context, t testing.TB, url, scheme string, width int64, shots string, asks ...string) {
	t.Helper()
	ctx, cancel := chromedp.NewContext(process)
	defer cancel()
	var mu sync.Mutex
	var heard []string
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if e.Request.URL[:5] != "data:" {
				heard = append(heard, e.Request.URL)
			}
		case *log.EventEntryAdded:
			heard = append(heard, e.Entry.Text)
		}
	}))
	features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
	require.NoError(t, chromedp.Do(ctx, Send(network.Enable, network.EnableParams{}), Send(log.Enable, cdp.Empty{}),
		Send(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features}),
		chromedp.EmulateViewport(width, 900), chromedp.Navigate(url)))
	wide, err := chromedp.Run(ctx, chromedp.Evaluate[int64](
		`Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)`))
	require.NoError(t, err)
	require.Equal(t, width, wide, "%s scrolls sideways", url)
	low, err := chromedp.Run(ctx, chromedp.Evaluate[float64](contrast))
	require.NoError(t, err)
	require.GreaterOrEqual(t, low, 4.5, "%s, %s", url, scheme)
	Accessible(ctx, t)
	broken, err := chromedp.Run(ctx,
		chromedp.Evaluate[int](`Array.from(document.images).filter(i => !i.complete || i.naturalWidth === 0).length`))
	require.NoError(t, err)
	require.Zero(t, broken, "pictures that are not shown")
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	require.NoError(t, err)
	if shots != "" {
		name := fmt.Sprintf("%s-%s-%d.png", filepath.Base(url), scheme, width)
		require.NoError(t, os.WriteFile(filepath.Join(shots, name), png, 0o600))
	}
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, append([]string{url}, asks...), heard)
}

// Accessible requires that axe-core finds no violation on the page of a tab.
func Accessible(tab context.Context, t testing.TB) {
	t.Helper()
	axe := disktest.ReadFile(t, disktest.PythonFile(t, "axe_core_python/axe.min.js"))
	found, err := chromedp.Run(tab,
		chromedp.Evaluate[[]string](string(axe)+";"+violations, chromedp.EvalAwaitPromise))
	require.NoError(t, err)
	require.Empty(t, found)
}

// Send returns an action that runs a command and drops its result.
func Send[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, tab *chromedp.Target) error {
		_, err := cdp.Call(ctx, tab, command, params)
		return err
	})
}
