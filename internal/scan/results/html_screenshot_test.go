package results

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

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
