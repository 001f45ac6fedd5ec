package results

import (
	"fmt"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/css"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/pagetest"
)

// contrasts lists texts whose colour is too near to their ground: WCAG 2.1, success criterion 1.4.3, and "relative
// luminance".
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
		require.Empty(t, eval[[]string](p, contrasts), name)
		p.quiet()
	}
}

// A library of 10,000 images, or of 1,500, whose rows need several frames too.
func TestLargeReportInChromium(t *testing.T) {
	if testing.Short() || disktest.Raced {
		t.Skip("loads a file of megabytes three times")
	}
	n := 1500
	if disktest.Exhaustive {
		n = 10_000
	}
	tabs := chromium(t)
	s, images := largeLibrary(n)
	path := htmlWritten(t, s, images)
	info := disktest.Stat(t, path)
	require.Less(t, info.Size(), int64(n)<<11)
	measured := os.Getenv("TRUEUP_MEASURE") == "1" // on a machine that does nothing else
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
	best("first paint", 2*time.Second, func() time.Duration {
		p = open(tabs, t, path, wide)
		return milliseconds(eval[float64](p,
			`performance.getEntriesByType("paint").find(e => e.name === "first-contentful-paint").startTime`))
	})
	require.Len(t, eval[[]string](p, shownPaths), n)
	// A reader's browser does not report every row that moves to a tool.
	p.run(pagetest.Send(css.Disable, cdp.Empty{}), pagetest.Send(dom.Disable, cdp.Empty{}))
	// Until the next frame is there: what a reader waits for.
	timed := func(does string) func() time.Duration {
		script := `(async () => { const t = performance.now(); ` + does + `; document.body.offsetHeight;
			await new Promise(r => requestAnimationFrame(() => setTimeout(r))); return performance.now() - t; })()`
		return func() time.Duration {
			return milliseconds(get(p, chromedp.Evaluate[float64](script, chromedp.EvalAwaitPromise)))
		}
	}
	best("sort by size", time.Second, timed(`document.querySelector('th[data-sort="size"] button').click()`))
	best("sort by path", time.Second, timed(`document.querySelector('th[data-sort="path"] button').click()`))
	settled := `document.querySelectorAll("#rows > tr:not([hidden])").length === `
	require.True(t, get(p, chromedp.Poll[bool](settled+strconv.Itoa(n))), "what is not in the first frame follows")
	paths := eval[[]string](p, shownPaths)
	require.True(t, sort.StringsAreSorted(paths) || sort.StringsAreSorted(reversed(paths)),
		"the numbers in these paths have one length")
	best("filter", time.Second, timed(`document.querySelector('input[value="misaligned"]').click()`))
	best("find", time.Second,
		timed(`f = document.getElementById("find"); f.value += "datastore03 "; f.dispatchEvent(new Event("input")); `+
			`await new Promise(r => setTimeout(r, 120))`))
	off := 0
	for _, i := range images {
		if strings.Contains(i.Path, "datastore03") && kindOf(i) == "misaligned" {
			off++
		}
	}
	p.settles(fmt.Sprintf("%d of %d rows are shown: misaligned, with “%s”.", off, n,
		strings.TrimSpace(strings.Repeat("datastore03 ", 3))))
	require.True(t, get(p, chromedp.Poll[bool](settled+strconv.Itoa(off))))
	// A filter while rows still move to their places does not lose them.
	eval[bool](p,
		`document.querySelector('th[data-sort="rank"] button').click(); document.getElementById("reset").click(); true`)
	require.True(t, get(p, chromedp.Poll[bool](settled+strconv.Itoa(n))))
	require.Equal(t, by(images, func(*Image) int64 { return 0 }), eval[[]string](p, shownPaths))
	p.quiet()
}

func reversed(s []string) []string {
	s = slices.Clone(s)
	slices.Reverse(s)
	return s
}

func milliseconds(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
