package results

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/pagetest"
)

// Expressions for the visible state of the page.
const (
	shownPaths = `Array.from(document.querySelectorAll("#rows > tr summary"), s => s.firstChild.textContent)`
	stateText  = `document.getElementById("state").textContent`
	sortedBy   = `Array.from(document.querySelectorAll("th[aria-sort]")).map(h => h.dataset.sort + " " + ` +
		`h.getAttribute("aria-sort"))`
	openCount = `document.querySelectorAll("#rows details[open]").length`
)

// head is the button that sorts by a column.
func pageHead(by string) string { return `th[data-sort="` + by + `"] button` }

// The script ranks all kinds of rows as the report does.
func TestScriptKnowsAllKinds(t *testing.T) {
	require.Contains(t, htmlScript, `const kinds = ["`+strings.Join(kindOrder, `", "`)+`"];`)
}

func TestReportInChromium(t *testing.T) {
	tabs := chromium(t)
	s, images := sampleLibrary()
	path := htmlWritten(t, s, images)
	for name, test := range map[string]func(*page, []*Image){
		"sorts by a click and by the keyboard": sorts, "filters and says so": filters, "opens details": opensDetails,
		"keeps its state in the address": keepsState, "is a table for those who listen": isATable,
	} {
		t.Run(name, func(t *testing.T) {
			p := open(tabs, t, path, wide)
			test(p, images)
			p.quiet()
		})
	}
}

// by is the order of the images by a number, the highest first, as ranked where numbers are alike.
func by(images []*Image, number func(*Image) int64) (paths []string) {
	sorted := slices.Clone(images)
	slices.SortStableFunc(sorted, func(a, b *Image) int { return int(max(-1, min(1, number(b)-number(a)))) })
	for _, i := range sorted {
		paths = append(paths, i.Path)
	}
	return paths
}

func sorts(p *page, images []*Image) {
	t := p.t
	ranked := by(images, func(*Image) int64 { return 0 })
	require.Equal(t, []string{"rank ascending"}, eval[[]string](p, sortedBy))
	require.Equal(t, ranked, eval[[]string](p, shownPaths))
	p.run(chromedp.Click(pageHead("size")))
	require.Equal(t, []string{"size descending"}, eval[[]string](p, sortedBy))
	require.Equal(t, by(images, func(i *Image) int64 { return i.Size }), eval[[]string](p, shownPaths))
	p.run(chromedp.KeyEvent(kb.Enter)) // the button has the focus
	require.Equal(t, []string{"size ascending"}, eval[[]string](p, sortedBy))
	require.Equal(t, by(images, func(i *Image) int64 { return -i.Size }), eval[[]string](p, shownPaths))
	p.run(chromedp.Click(pageHead("stored")))
	require.Equal(t, by(images, func(i *Image) int64 { return i.Stored }), eval[[]string](p, shownPaths))
	p.run(chromedp.Click(pageHead("cost")))
	require.Equal(t, by(images, func(i *Image) int64 { return int64(orZero(i.Priority).Cost) }),
		eval[[]string](p, shownPaths))
	p.run(chromedp.Click(pageHead("verdict")))
	require.Equal(t, by(images, func(i *Image) int64 { return -int64(slices.Index(kindOrder, kindOf(i))) }),
		eval[[]string](p, shownPaths))
	p.run(chromedp.Click(pageHead("path")))
	got := eval[[]string](p, shownPaths)
	require.Equal(t, "/vmfs/templates/appliances/erp-suite.ova", got[0])
	require.Less(t, slices.Index(got, "/vmfs/templates/linux/rhel-9.qcow2"),
		slices.Index(got, "/vmfs/templates/linux/sles-15.qcow2"))
	p.run(chromedp.Click(pageHead("rank")))
	require.Equal(t, ranked, eval[[]string](p, shownPaths))
}

// settles waits until the page shows a text: typing takes effect after a pause.
func (p *page) settles(says string) {
	p.t.Helper()
	_, err := chromedp.Run(p.ctx,
		chromedp.Poll[bool](stateText+` === `+fmt.Sprintf("%q", says), chromedp.WithPollingTimeout(disktest.Patience)))
	require.NoError(p.t, err, "the page says %q, want %q", eval[string](p, stateText), says)
}

func filters(p *page, images []*Image) {
	t := p.t
	p.settles("All 38 rows are shown.")
	p.run(chromedp.SendKeys("#find", "QCOW2 debian"))
	p.settles("3 of 38 rows are shown: with “QCOW2 debian”.")
	require.ElementsMatch(t, []string{
		"/vmfs/templates/linux/debian-10.qcow2", "/vmfs/templates/linux/debian-11.qcow2",
		"/vmfs/templates/linux/debian-12.qcow2",
	},
		eval[[]string](p, shownPaths))
	p.run(chromedp.Click("#reset"))
	p.settles("All 38 rows are shown.")
	p.run(chromedp.SendKeys("#find", "exchange_no_such"))
	p.settles("0 of 38 rows are shown: with “exchange_no_such”.")
	require.True(t, eval[bool](p, `document.getElementById("none").checkVisibility()`))
	p.run(chromedp.Click("#reset"), chromedp.SendKeys("#find", "daten")) // a label
	p.settles("1 of 38 rows are shown: with “daten”.")
	p.run(chromedp.Click("#reset"), chromedp.SendKeys("#find", "grain directory")) // an error
	p.settles("1 of 38 rows are shown: with “grain directory”.")
	p.run(chromedp.Click("#reset"), chromedp.Click(`input[value="failed"]`), chromedp.Click(`input[value="below"]`))
	p.settles("4 of 38 rows are shown: failed, below boundary.")
	p.run(chromedp.Click("#reset"), chromedp.Click(`input[value="refused"]`))
	p.settles("1 of 38 rows are shown: refused.")
	require.Equal(t, []string{"/vmfs/templates/legacy/suse-9.vmdk"}, eval[[]string](p, shownPaths))
	p.run(chromedp.Click("#reset"), chromedp.Focus("#format"), chromedp.KeyEvent("vhd"))
	p.settles("3 of 38 rows are shown: format vhd.")
	p.run(chromedp.Click(pageHead("size"))) // sorting keeps the filter
	require.Len(t, eval[[]string](p, shownPaths), 3)
}

// filled waits until the open rows have their details.
func (p *page) filled(rows int) {
	p.t.Helper()
	_, err := chromedp.Run(p.ctx,
		chromedp.Poll[bool](fmt.Sprintf(`document.querySelectorAll("#rows details[open] > div").length === %d`, rows)))
	require.NoError(p.t, err)
}

func opensDetails(p *page, images []*Image) {
	t := p.t
	require.Zero(t, eval[int](p, openCount))
	third := "#rows > tr:nth-child(3)"
	require.Equal(t, "erp-suite.ova", filepath.Base(images[2].Path))
	p.run(chromedp.Click(third + " summary"))
	require.Equal(t, 1, eval[int](p, openCount))
	p.filled(1)
	require.True(t, eval[bool](p, `document.querySelector("`+third+` svg.map").checkVisibility()`))
	require.Equal(t, 2, eval[int](p, `document.querySelectorAll("`+third+` svg.map").length`),
		"each disk of a package has a map")
	p.run(chromedp.WaitVisible(third + " .copy"))
	p.run(chromedp.Focus(third+" summary"), chromedp.KeyEvent(kb.Enter))
	require.Zero(t, eval[int](p, openCount))
	p.run(chromedp.Click(third + " > td:nth-child(5)")) // a number is above the line, and opens it too
	require.Equal(t, 1, eval[int](p, openCount))
	p.run(chromedp.Click(`input[value="refused"]`), chromedp.Click("#open"))
	p.filled(1)
	require.Contains(t, eval[string](p, `document.querySelector("tr.refused details").innerText`),
		"refused disk: "+lilo.Text+" "+lilo.Remedy)
}

func keepsState(p *page, images []*Image) {
	t := p.t
	p.run(chromedp.Click(pageHead("size")), chromedp.Click(`input[value="misaligned"]`),
		chromedp.SendKeys("#find", "vhd"))
	p.settles("2 of 38 rows are shown: misaligned, with “vhd”.")
	got := eval[[]string](p, shownPaths)
	address := eval[string](p, `location.hash`)
	require.Equal(t, "#sort=-size&find=vhd&only=misaligned", address)
	p.run(chromedp.Reload())
	p.settles("2 of 38 rows are shown: misaligned, with “vhd”.")
	require.Equal(t, got, eval[[]string](p, shownPaths))
	require.Equal(t, []string{"size descending"}, eval[[]string](p, sortedBy))
	// an address is a stranger's text, too
	eval[bool](p, `location.hash = "#sort=__proto__&only=%3Cscript%3E&format=none"; true`)
	p.settles("All 38 rows are shown.")
}

// isATable reads the accessibility tree: the rows are laid out as grids, and must still be rows. Offscreen ones come
// when Chromium has time.
func isATable(p *page, images []*Image) {
	pagetest.Accessible(p.ctx, p.t)
	var roles map[string]int
	disktest.WaitFor(p.t, "the cells of all rows", func() bool {
		tree, err := chromedp.Call(p.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		require.NoError(p.t, err)
		roles = map[string]int{}
		for _, n := range tree.Nodes {
			if n.Role != nil {
				roles[string(n.Role.Value)]++
			}
		}
		return roles[`"cell"`] >= 7*len(images)
	})
	require.GreaterOrEqual(p.t, roles[`"table"`], 1, roles)
	require.GreaterOrEqual(p.t, roles[`"row"`], len(images)+1)
	require.Equal(p.t, 7, roles[`"columnheader"`])
}

// The script draws the rows that the page has without it.
func TestReportWithoutScript(t *testing.T) {
	tabs := chromium(t)
	s, images := sampleLibrary()
	path := htmlWritten(t, s, images)
	rows := `Array.from(document.querySelectorAll("#rows > tr"), r => [r.className]` +
		`.concat(r.querySelector("summary").innerHTML, ` +
		`Array.from(r.cells).filter((c, n) => n !== 1).map(c => c.title + c.innerHTML)))`
	drawn := eval[[][]string](open(tabs, t, path, wide), rows)
	p := open(tabs, t, path, wide,
		pagetest.Send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	require.False(t, eval[bool](p, `document.getElementById("tools").checkVisibility()`),
		"what does nothing without a script is not shown")
	require.True(t, eval[bool](p, `document.querySelector("noscript").checkVisibility()`))
	require.Len(t, drawn, len(images))
	require.Equal(t, eval[[][]string](p, rows), drawn)
	require.Zero(t, eval[int](p, `document.querySelectorAll("th button").length`))
	at := eval[[]float64](p,
		`(r => [r.left + 5, r.top + 5])(document.querySelector("#rows > tr:nth-child(1) `+
			`summary").getBoundingClientRect())`)
	p.run(chromedp.MouseClickXY(at[0], at[1]))
	require.Equal(t, 1, eval[int](p, openCount), "a click on the line opens the details")
	require.Contains(t, eval[string](p, `document.querySelector("#rows details[open]").innerText`),
		"trueup align /vmfs/templates/legacy/exchange-store.vhd")
	p.quiet()
}

func TestHostileReportInChromium(t *testing.T) {
	tabs := chromium(t)
	var images []*Image
	for _, text := range htmlHostile {
		d := xpDisk(text, 8*gib)
		d.Member, d.Boot.Text, d.Advice.Text = text, text, text
		i := htmlSample(text+"/x.vmdk", text, text, 1, d)
		i.Accepted = &Accepted{Reason: text, Until: text}
		images = append(images, i)
	}
	p := open(tabs, t, htmlWritten(t, sampleSummary(images), images), wide)
	p.settles(fmt.Sprintf("All %d rows are shown.", len(htmlHostile)))
	p.run(chromedp.Click("#open"), chromedp.Click(pageHead("path")), chromedp.SendKeys("#find", "<script>alert(1)"))
	p.settles(fmt.Sprintf("1 of %d rows are shown: with “<script>alert(1)”.", len(htmlHostile)))
	require.Contains(t, eval[string](p, `document.querySelector("#rows summary").textContent`),
		"<script>alert(1)</script>/x.vmdk")
	require.Equal(t, 1, eval[int](p, `document.scripts.length`))
	p.quiet() // no dialog, no complaint of the policy, no request
}

func TestReportOnAPhone(t *testing.T) {
	tabs := chromium(t)
	s, images := sampleLibrary()
	images[0].SetPath("/" + strings.Repeat("averylongnamewithoutanybreak", 30) + ".vmdk")
	images[3].Disks[0].Partitions[0].Volume.Label = strings.Repeat("W", 200)
	s.Paths = []string{images[0].Path}
	path := htmlWritten(t, s, images)
	for _, width := range []int64{320, 390, 768, 1024, 1200} {
		p := open(tabs, t, path, chromedp.EmulateViewport(width, 844, chromedp.EmulateMobile))
		for _, opened := range []bool{false, true} {
			eval[bool](p,
				fmt.Sprintf(
					`for (const d of document.querySelectorAll("details")) d.open = %v; for (const r of `+
						`document.querySelectorAll("#rows > tr")) r.style.contentVisibility = "visible"; true`, opened))
			if opened {
				p.filled(len(images))
			}
			require.Equal(t, int(width),
				eval[int](p, `Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)`),
				"the page scrolls sideways at %d", width)
			require.Empty(t, eval[[]string](p,
				`Array.from(document.querySelectorAll("#rows > tr > td")).filter(c => `+
					`c.getBoundingClientRect().right > innerWidth).map(c => c.textContent)`))
		}
		if width == 320 {
			pagetest.Accessible(p.ctx, t)
		}
		p.quiet()
	}
}

// Print and save contain the filtered rows, in the order of the page; the printed page states that it is partial.
func TestPartOfAReport(t *testing.T) {
	disktest.Tool(t, "pdftotext")
	tabs := chromium(t)
	s, images := sampleLibrary()
	odd := map[string]string{ // paths, and their cells
		`=1+1;@x "y",z.vhd`: `'=1+1;'@x "y",z.vhd`, ` "-a.vhd`: ` "'-a.vhd`, "plain, really.vhd": "plain, really.vhd",
	}
	paths := slices.Sorted(maps.Keys(odd))
	for _, i := range images {
		if i.Format == "vhd" {
			i.SetPath(paths[0])
			paths = paths[1:]
		}
	}
	require.Empty(t, paths)
	dir := t.TempDir()
	p := open(tabs, t, htmlWritten(t, s, images), wide, pagetest.Send(cdpbrowser.SetDownloadBehavior,
		cdpbrowser.SetDownloadBehaviorParams{Behavior: "allow", DownloadPath: dir}))
	p.run(chromedp.Focus("#format"), chromedp.KeyEvent("vhd"))
	p.settles("3 of 38 rows are shown: format vhd.")
	p.run(chromedp.Click(pageHead("path")))
	sorted := eval[[]string](p, shownPaths)
	require.Len(t, sorted, 3)
	p.run(chromedp.Click("#save"))
	saved := filepath.Join(dir, "images.csv")
	disktest.WaitFor(t, "the file", func() bool { // its name comes before its bytes
		st, err := os.Stat(saved)
		return err == nil && st.Size() > 0
	})
	records, err := csv.NewReader(bytes.NewReader(disktest.ReadFile(t, saved))).ReadAll()
	require.NoError(t, err)
	require.Len(t, records, 4)
	for n, r := range records[1:] {
		i := images[slices.IndexFunc(images, func(i *Image) bool { return i.Path == sorted[n] })]
		rank, command := "", ""
		if i.Priority != nil {
			rank, command = strconv.Itoa(i.Priority.Rank), i.command()
		}
		size := strings.TrimPrefix(strconv.FormatInt(i.Size, 10), "0") // unknown where it is 0
		require.Equal(t, []string{
			rank, odd[i.Path], wordOf(kindOf(i)), size, strconv.FormatInt(i.Stored, 10), command,
		}, []string{r[0], r[1], r[2], r[5], r[6], r[9]})
	}
	pdf := filepath.Join(dir, "report.pdf")
	require.NoError(t, os.WriteFile(pdf, get(p, chromedp.PrintToPDF()), 0o600))
	text := strings.Join(strings.Fields(disktest.Output(t, "pdftotext", pdf, "-")), " ")
	require.Contains(t, text, "This is a part of the report. 3 of 38 rows are shown: format vhd. The sums above")
	require.Contains(t, text, "plain, really.vhd")
	require.NotContains(t, text, ".ova")
	p.quiet()
}

func TestReportOnPaper(t *testing.T) {
	disktest.Tool(t, "pdftotext")
	tabs := chromium(t)
	s, images := sampleLibrary()
	p := open(tabs, t, htmlWritten(t, s, images), wide)
	eval[bool](p, `document.querySelectorAll("#rows details")[3].open = true`)
	p.filled(1)
	pdf := filepath.Join(t.TempDir(), "report.pdf")
	require.NoError(t, os.WriteFile(pdf, get(p, chromedp.PrintToPDF()), 0o600))
	// Lines break where they must, at hyphens too.
	joined := strings.NewReplacer(" ", "", "\n", "", "\f", "", "-", "").Replace
	text := joined(disktest.Output(t, "pdftotext", pdf, "-"))
	for _, i := range images {
		require.Contains(t, text, joined(i.Path))
	}
	require.Contains(t, text, joined(images[3].Priority.Command), "what is open is printed")
	require.NotContains(t, text, "rowsareshown", "what only works on a screen is not printed")
	p.quiet()
}

// rectangles returns the class, place and width of each rectangle in the rows of a page, by the class of the picture.
func rectangles(p *page, rows int) map[string][][3]string {
	p.t.Helper()
	eval[bool](p, `for (const d of document.querySelectorAll("#rows details")) d.open = true; true`)
	p.filled(rows)
	out := map[string][][3]string{}
	for _, r := range eval[[][4]string](p, `Array.from(document.querySelectorAll("#rows rect"), r => `+
		`[r.parentNode, r].map(e => e.getAttribute("class")).concat(["x", "width"].map(a => r.getAttribute(a))))`) {
		out[r[0]] = append(out[r[0]], [3]string(r[1:]))
	}
	return out
}

// The map is to scale: a start at a quarter of the disk is at a quarter of the picture.
func TestMapIsToScale(t *testing.T) {
	tabs := chromium(t)
	d := sampleDisk("mbr", "", 8*gib, pagePart{63, gib, "07", "ntfs", ""},
		pagePart{2 * gib / 512, 4 * gib, "05 extended", "", ""}, pagePart{2*gib/512 + 63, gib, "07", "ntfs", ""},
		pagePart{7 * gib / 512, 2 * gib, "83", "ext4", ""})
	path := htmlWritten(t, NewSummary(), []*Image{htmlSample("x.vmdk", "raw", "", 1, d)})
	require.Equal(t, map[string][][3]string{
		// the last is truncated at the end of the disk
		"map": {
			{"unjudged", "25%", "50%"},
			{"misaligned", "0%", "12.5%"},
			{"misaligned", "25%", "12.5%"},
			{"aligned", "87.5%", "12.5%"},
		},
		// LBA 63 is at 3584 of 4096 bytes in a quarter of the picture, and both share one picture.
		"lens": {
			{"misaligned", "21.875%", "25%"},
			{"misaligned more", "46.875%", "25%"},
			{"misaligned more", "71.875%", "25%"},
			{"misaligned more", "96.875%", "25%"},
		},
	}, rectangles(open(tabs, t, path, wide), 1))
}

// Numbers of a broken table must not break pictures: negative, beyond the end, the largest.
func TestPicturesOfHostileNumbers(t *testing.T) {
	tabs := chromium(t)
	var images []*Image
	for _, number := range []int64{0, -1, -1 << 63, 1<<63 - 1, 512} {
		for _, v := range []align.Verdict{align.Misaligned, align.BelowBoundary, align.Aligned, ""} {
			var i Image
			fill(reflect.ValueOf(&i).Elem(), "x", number)
			i.State = Judged
			for d := range i.Disks {
				for p := range i.Disks[d].Partitions {
					i.Disks[d].Partitions[p].Verdict = v
				}
			}
			images = append(images, &i)
		}
	}
	p := open(tabs, t, htmlWritten(t, NewSummary(), images), wide)
	shown := rectangles(p, len(images))
	require.NotEmpty(t, shown["map"])
	require.NotEmpty(t, shown["lens"])
	for _, r := range slices.Concat(shown["map"], shown["lens"]) {
		require.NotContains(t, r[1]+r[2], "-", "outside of the picture")
	}
	require.NotContains(t, eval[string](p, `document.body.innerHTML`), "NaN")
	require.Contains(t, eval[string](p, `document.getElementById("rows").innerHTML`), `"9223372036854775807 bytes"`)
	p.quiet()
}

// The script puts paths, files and commands together again as they were, whatever the names.
func TestNamesInChromium(t *testing.T) {
	tabs := chromium(t)
	var images []*Image
	for _, name := range slices.Concat(htmlHostile, []string{
		"disk", "vm.d/disk", "/vms.old/web", ".hidden", "vm.d/.hidden", "a.b.c/d.e.vhd", "web.d/web.d/web.d", "...",
		"a/..vhd", ".d/vhd", "$a$&.vhd", "\xa9.é", "é/\xa9.vhd", "dir with  blanks /x .vhd", "a\n.b\nc", "0", "-1.vhd",
		strings.Repeat("long", 2500) + ".vhd",
	}) {
		i := htmlSample("image", "vhd", "", 1, xpDisk("", 8*gib))
		i.SetPath(name)
		i.Assess(nil)
		i.Files = append(i.Files, File{Name: path.Base(name), Size: 1}, File{Name: "other.vhd", Size: 2})
		images = append(images, i)
	}
	s := sampleSummary(images)
	p := open(tabs, t, htmlWritten(t, s, images), wide)
	eval[bool](p, `for (const d of document.querySelectorAll("#rows details")) d.open = true; true`)
	p.filled(len(images))
	got := eval[[][]string](p, `Array.from(document.querySelectorAll("#rows details"), d => [`+
		`d.querySelector("summary").firstChild, d.querySelector(".run code"), d.querySelector("dd"),`+
		`].map(e => e.textContent))`)
	for n, i := range images {
		require.NotEmpty(t, i.command())
		assert.Equal(t, []string{safe(i.Path), safe(i.command()), safe(filesText(i))}, got[n])
	}
	p.quiet()
}
