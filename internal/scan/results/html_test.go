package results

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest/pagetest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// rendered is the report of a library, parsed by a second parser.
func rendered(t *testing.T, s *Summary, images []*Image) (string, *html.Node) {
	t.Helper()
	var b strings.Builder
	require.NoError(t, write(&b, htmlFormat, s, images))
	doc, err := html.Parse(strings.NewReader(b.String()))
	require.NoError(t, err)
	return b.String(), doc
}

// pageRows are the rows of images.
func pageRows(t *testing.T, doc *html.Node) (out []*html.Node) {
	t.Helper()
	for _, body := range pagetest.Elements(doc, "tbody") {
		if pagetest.Attribute(body, "id") != "rows" {
			continue
		}
		for r := range body.ChildNodes() {
			if r.Type == html.ElementNode {
				out = append(out, r)
			}
		}
	}
	return out
}

// pageCells are the texts of a row.
func pageCells(row *html.Node) (out []string) {
	for c := range row.ChildNodes() {
		if c.Type == html.ElementNode {
			out = append(out, pagetest.TextOf(c))
		}
	}
	return out
}

// pageTexts are the texts of each row for the script: a negative number is a place in the list of shared values.
func pageTexts(t *testing.T, doc *html.Node) (out []string) {
	t.Helper()
	var data struct{ Rows, Shared []any }
	require.NoError(t, json.Unmarshal([]byte(pagetest.TextOf(pagetest.Elements(doc, "script")[0])), &data))
	var textOf func(value any) string
	textOf = func(value any) string {
		switch v := value.(type) {
		case string:
			return v + "\n"
		case float64:
			if v < 0 {
				return textOf(data.Shared[-1-int(v)])
			}
		case []any:
			var all strings.Builder
			for _, item := range v {
				all.WriteString(textOf(item))
			}
			return all.String()
		}
		return ""
	}
	for _, row := range data.Rows[:len(data.Rows)-1] {
		out = append(out, textOf(row))
	}
	return out
}

func TestHTMLHasARowForEachImage(t *testing.T) {
	s, images := sampleLibrary()
	_, doc := rendered(t, s, images)
	rows, texts := pageRows(t, doc), pageTexts(t, doc)
	require.Len(t, rows, len(images))
	require.Len(t, texts, len(images))
	for n, i := range images {
		c := pageCells(rows[n])
		require.Len(t, c, 7, "columns of report.html.tmpl; this test counts them, as report.js does")
		require.True(t, strings.HasPrefix(c[1], i.Path), c[1])
		require.Equal(t, i.Format, strings.Fields(c[3] + " -")[0][:len(i.Format)])
		if i.Priority != nil {
			require.Contains(t, c[1], i.Priority.Reason)
			require.Contains(t, texts[n], i.Priority.Reason)
			require.Contains(t, c[1], i.Priority.Command)
		}
		for _, p := range slices.Concat(i.Refusals(), i.Findings) {
			require.Contains(t, texts[n], p.Text)
			require.Contains(t, texts[n], p.Remedy)
		}
		if i.Error != nil {
			require.Contains(t, c[1], i.Error.Message)
		}
	}
	all := pagetest.TextOf(doc) + strings.Join(texts, "")
	for _, says := range []string{
		"permission denied", "sandbox (landlock-5, seccomp, rlimits)",
		"Accepted until 2027-03-31: retired with the branch in March",
		"11 images have a partition off a multiple of 64 KiB; 10 of them off 4 KiB too.",
		"2026-11-20 22:00 UTC, after 42.0 s", "as --fail-on 4K has it",
		"An aligned copy moves partition 1 from LBA 63 to 128, to multiples of 64 KiB; its disk is 1 MiB larger.",
		"3 new, 1 changed, 33 the same, 1 removed since 2026-11-13 22:00 UTC",
	} {
		require.Contains(t, all, says)
	}
	require.NotContains(t, all, "incomplete")
	s.Complete = false
	_, doc = rendered(t, s, images)
	require.Contains(t, pagetest.TextOf(doc), "Interrupted: this report is incomplete.")
}

// A row of each state, as text: verdict, tags, size, extra I/O.
func TestHTMLCells(t *testing.T) {
	s, images := sampleLibrary()
	_, doc := rendered(t, s, images)
	got := map[string][]string{}
	for n, r := range pageRows(t, doc) {
		c := pageCells(r)
		got[images[n].Path[len("/vmfs/templates/"):]] = []string{c[0], c[2], c[4], c[5], c[6]}
	}
	for path, want := range map[string][]string{
		"legacy/exchange-store.vhd": {"1", "misaligned shut down", "128 GiB", "71 GiB", "100 %"},
		"legacy/sql-data.vhd":       {"2", "misaligned shut down new", "64 GiB", "41 GiB", "100 %"},
		"appliances/erp-suite.ova":  {"3", "misaligned running changed", "160 GiB", "19 GiB", "100 %"},
		"legacy/suse-9.vmdk":        {"9", "misaligned refused running", "20 GiB", "7 GiB", "100 %"},
		"win/office-2008.vhdx":      {"10", "below boundary running", "60 GiB", "22 GiB", ""},
		"linux/debian-12.qcow2":     {"", "aligned", "14 GiB", "3.19 GiB", ""},
		"legacy/kiosk-nt4.qcow2":    {"", "misaligned running accepted", "4 GiB", "900 MiB", "100 %"},
		"upload/web-s003.vmdk":      {"", "orphan new", "", "1.86 GiB", ""},
		"win/vista.vhd":             {"", "failed", "", "4 GiB", ""},
		"win/win2008.vmdk":          {"", "removed", "", "", ""},
	} {
		require.Equal(t, want, got[path], path)
	}
	// The exact number is available beside the short one.
	cells := pagetest.Elements(pageRows(t, doc)[0], "td")
	require.Equal(t, "137438953472 bytes", pagetest.Attribute(cells[len(cells)-3], "title"))
}

// asksForNothing checks that no attribute loads or runs anything, and that the policy forbids it too.
func asksForNothing(t *testing.T, doc *html.Node) {
	t.Helper()
	for n := range doc.Descendants() {
		for _, a := range n.Attr {
			require.False(t, strings.HasPrefix(a.Key, "on"), "%s of %s", a.Key, n.Data)
			require.NotContains(t, []string{
				"href", "src", "srcset", "style", "action", "formaction", "data", "poster", "background", "ping",
			}, a.Key)
		}
	}
	require.Empty(t, pagetest.Elements(doc, "link"))
	hash := func(name string) string {
		found := slices.DeleteFunc(pagetest.Elements(doc, name), func(n *html.Node) bool {
			return pagetest.Attribute(n, "type") == "application/json" // not run
		})
		require.Len(t, found, 1)
		sum := sha256.Sum256([]byte(pagetest.TextOf(found[0])))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	require.Equal(t, "default-src 'none'; style-src "+hash("style")+"; script-src "+hash(
		"script")+"; base-uri 'none'; form-action 'none'",
		pagetest.Attribute(pagetest.Elements(doc, "meta")[1], "content"))
}

func TestHTMLAsksForNothing(t *testing.T) {
	s, images := sampleLibrary()
	out, doc := rendered(t, s, images)
	asksForNothing(t, doc)
	require.NotContains(t, out, "://")
	require.NotContains(t, out, "@import")
	for _, url := range strings.Split(out, "url(")[1:] {
		require.Equal(t, "#", url[:1])
	}
}

func TestHTMLIsDeterministic(t *testing.T) {
	s, images := sampleLibrary()
	first, _ := rendered(t, s, images)
	s, images = sampleLibrary()
	second, _ := rendered(t, s, images)
	require.Equal(t, sha256.Sum256([]byte(first)), sha256.Sum256([]byte(second)))
}

func TestHTMLOfNothing(t *testing.T) {
	_, doc := rendered(t, NewSummary(), nil)
	require.Empty(t, pageRows(t, doc))
	require.Contains(t, pagetest.TextOf(doc), "No image was found.")
}

// Unknown values are not shown as good news.
func TestHTMLOfNothingJudged(t *testing.T) {
	const aligned = "No image has a partition off a multiple of 64 KiB."
	none := NewSummary()
	none.Complete, none.Boundary = true, align.DefaultBoundary
	require.Equal(t, []string{"No image was found."}, htmlLead(none))
	none.Complete = false
	require.Empty(t, htmlLead(none))

	failed := NewImage("/srv/a.vmdk")
	failed.Fail("format", "the file is cut")
	require.Equal(t, []string{"1 image could not be judged."}, htmlLead(summed([]*Image{failed})))
	fine := row("/srv/b.raw", align.Aligned, "", 0, false)
	require.Equal(t, []string{aligned, "1 image could not be judged."}, htmlLead(summed([]*Image{failed, fine})))
}

func TestHTMLOfUnchangedImages(t *testing.T) {
	s := summed([]*Image{row("/srv/a.raw", align.Misaligned, align.DataDisk, 100, false)})
	s.Changes, s.ChangedOnly = &Changes{Since: "2026-11-20T10:00:00Z", Same: 1}, true
	_, doc := rendered(t, s, nil)
	require.Contains(t, pagetest.TextOf(doc), "Nothing is new, changed or removed.")
	require.Contains(t, pagetest.TextOf(doc),
		"1 the same, 0 removed since 2026-11-20 10:00 UTC; rows and exit code are those "+
			"of "+
			"what is new, changed or removed alone")
	require.NotContains(t, pagetest.TextOf(doc), "No image was found.")
}

// Of unreadable places, the first thousand are listed, and all are counted.
func TestManyUnreadablePlaces(t *testing.T) {
	s := summed([]*Image{row("/srv/b.raw", align.Aligned, "", 0, false)})
	for range 1500 {
		s.Lose(Unreadable{Path: "/srv/closed", Error: report.Error{Code: "io", Message: "permission denied"}}, Default)
	}
	for _, verbose := range []bool{false, true} {
		out := tableOf(report.Text{Verbose: verbose}, s, nil)
		require.Contains(t, out, "1,500 files and folders, so images may be missing here.")
		require.Contains(t, out, map[bool]string{false: "... and 1,490 more", true: "... and 500 more"}[verbose])
	}
	_, doc := rendered(t, s, nil)
	require.Contains(t, pagetest.TextOf(doc), "1500 places could not be looked at")
	require.Contains(t, pagetest.TextOf(doc), "and 500 more")
}

// Texts that a page would interpret.
var htmlHostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`,
	`</style><style>*{display:none}</style>`, `</title></details>`, "a\u2028b", "\xed\xa0\x80", "\xff\xfe",
	"\x1b]0;x\a\x1b[2J", "exe.\u202egnp.vmdk", "{{.Policy}}", "-->", "]]>", "`${1}`", "'; DROP", "&lt;b&gt;",
}

// fill puts a text into every string of a value, and hostile numbers into every number.
func fill(v reflect.Value, text string, number int64) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		v.SetInt(number)
	case reflect.Float64:
		v.SetFloat(float64(number))
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem(), text, number)
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			text, _ := json.Marshal([]any{text, number})
			v.SetBytes(text)
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), text, number)
		fill(v.Index(1), text, number)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() && v.Type().Field(i).Type.String() != "error" {
				fill(v.Field(i), text, number)
			}
		}
	default: // maps, flags and errors are not shown
	}
}

func TestHTMLShowsHostileTextAsText(t *testing.T) {
	s, images := sampleLibrary()
	_, plain := rendered(t, s, images[:1])
	for _, text := range htmlHostile {
		var one Image
		fill(reflect.ValueOf(&one).Elem(), text, 7)
		one.State = Judged
		failed := one
		failed.State, failed.Priority, failed.Disks = Failed, nil, nil
		var sum Summary
		fill(reflect.ValueOf(&sum).Elem(), text, 7)
		out, doc := rendered(t, &sum, []*Image{&one, &failed})
		shown := report.SafeMessage(text)
		require.Len(t, pageRows(t, doc), 2, text)
		for _, r := range pageRows(t, doc) {
			require.Equal(t, shown, pagetest.Elements(r, "summary")[0].FirstChild.Data)
		}
		require.GreaterOrEqual(t, strings.Count(strings.Join(pageTexts(t, doc), ""), shown), 40,
			"the text is shown where it is, as it is")
		for _, name := range []string{"script", "style", "title", "meta", "head"} {
			require.Len(t, pagetest.Elements(doc, name), len(pagetest.Elements(plain, name)),
				"%q makes a %s", text, name)
		}
		require.Empty(t, pagetest.Elements(doc, "img"))
		require.True(t, utf8.ValidString(out))
		require.Equal(t, -1, strings.IndexFunc(out, func(r rune) bool {
			return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029')
		}), "%q leaves a character that a terminal or an eye could take wrongly", text)
		asksForNothing(t, doc)
	}
}

func TestHTMLIsBounded(t *testing.T) {
	var parts []pagePart
	for n := range 3000 {
		parts = append(parts, pagePart{int64(2048 * (n + 1)), units.MiB, "linux", "ext4", ""})
	}
	parts[2999].lba++
	d := sampleDisk("gpt", "", 3002*units.MiB, parts...)
	for range 500 {
		d.Findings = append(d.Findings, align.Finding{Code: "x", Subject: "disk", Text: "again"})
	}
	i := htmlSample("many.vmdk", "vmdk", "", 1, slices.Repeat([]Disk{d}, 300)...)
	i.Parents = slices.Repeat([]string{"parent"}, 5000)
	i.Files = slices.Repeat([]File{{Name: "part"}}, 5000)
	s := sampleSummary([]*Image{i})
	s.Unreadable, s.UnreadableCount = slices.Repeat([]Unreadable{{Path: "p"}}, 1000), 1_000_000
	out, doc := rendered(t, s, []*Image{i})
	require.Less(t, len(out), 2<<20)
	row := pageRow(i)
	disks := row[13].(list)
	require.Equal(t, list{64, 236}, list{len(disks), row[14]})
	disk := disks[0].(list)
	shown := disk[5].(list)
	require.Equal(t, list{64, 3000 - 64}, list{len(shown), disk[6]})
	require.Equal(t, int64(6144001), shown[63].(list)[3], "those off the boundary first")
	require.Equal(t, 484, disk[9].(list)[1], "findings")
	require.Contains(t, pagetest.TextOf(doc), "and 999000 more")
}

// Without its script the page has the most urgent rows, and states how many it leaves out.
func TestHTMLOfManyRows(t *testing.T) {
	s, images := largeLibrary(1200)
	_, doc := rendered(t, s, images)
	require.Equal(t, [2]int{1000, 1200}, [2]int{len(pageRows(t, doc)), len(pageTexts(t, doc))})
	require.Contains(t, pagetest.TextOf(doc), "The 1000 most urgent rows are below; 200 are left out.")
	_, doc = rendered(t, s, images[:1000])
	require.NotContains(t, pagetest.TextOf(doc), "left out")
}
