package main

import (
	"encoding/csv"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/units"
)

// told is what a format says about an image. What a format has no place for is copied from the JSON.
type told struct{ Verdict, Rank, Cost, Size, Command, Guest string }

// jsonTold are the images of the JSON, ranked.
func jsonTold(s scanResult) (out map[string]told, ranked []*results.Image) {
	for _, i := range s.rows {
		ranked = append(ranked, i)
	}
	results.Rank(ranked)
	out = map[string]told{}
	for _, i := range ranked {
		one := told{Verdict: string(i.Verdict)}
		if i.State != results.Judged {
			one.Verdict = string(i.State)
		}
		if i.Size > 0 {
			one.Size = units.Format(i.Size)
		}
		if p := i.Priority; p != nil {
			one.Rank, one.Cost, one.Command = strconv.Itoa(p.Rank), strconv.FormatFloat(p.Cost, 'f', -1, 64), p.Command
			one.Guest = guestTold(i)
		}
		out[i.Path] = one
	}
	return out, ranked
}

// guestTold is the gravest state of the disks of an image; empty: none was looked into.
func guestTold(i *results.Image) (worst string) {
	order := []string{"", "shut down", "unknown", "running", "hibernated"}
	for _, d := range i.Disks {
		if d.Guest != nil && slices.Index(order, string(d.Guest.State)) > slices.Index(order, worst) {
			worst = string(d.Guest.State)
		}
	}
	return worst
}

func csvTold(t *testing.T, text string) map[string]told {
	t.Helper()
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	require.NoError(t, err)
	column := map[string]int{}
	for n, name := range records[0] {
		column[name] = n
	}
	out, sizes, disks := map[string]told{}, map[string]int64{}, map[string]bool{}
	for _, r := range records[1:] {
		cell := func(name string) string { return r[column[name]] }
		path := cell("path")
		if disk := path + "!" + cell("member"); !disks[disk] && cell("disk_size_bytes") != "" {
			n, err := strconv.ParseInt(cell("disk_size_bytes"), 10, 64)
			require.NoError(t, err)
			disks[disk] = true
			sizes[path] += n
		}
		one := told{Verdict: cell("verdict"), Rank: cell("rank"), Cost: cell("cost_percent"), Command: cell("command")}
		if cell("state") != "judged" {
			one.Verdict = cell("state")
		}
		if sizes[path] > 0 {
			one.Size = units.Format(sizes[path])
		}
		if before, also := out[path]; also {
			one.Size, before.Size = "", ""
			require.Equal(t, before, one, "rows of one image")
			one.Size = units.Format(sizes[path])
		}
		out[path] = one
	}
	return out
}

// junitTold are words for what became of the cases, with the commands of those that failed.
func junitTold(t *testing.T, text string) map[string]told {
	t.Helper()
	var doc struct {
		Cases []struct {
			Folder  string `xml:"classname,attr"`
			Name    string `xml:"name,attr"`
			Failure *struct {
				Type string `xml:"type,attr"`
				Body string `xml:",chardata"`
			} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testsuite>testcase"`
	}
	require.NoError(t, xml.Unmarshal([]byte(text), &doc))
	out := map[string]told{}
	for _, c := range doc.Cases {
		one := told{Verdict: "aligned"}
		switch {
		case c.Failure != nil:
			one.Verdict = c.Failure.Type
			one.Command = regexp.MustCompile(`(?m)^trueup align .*$`).FindString(c.Failure.Body)
		case c.Error != nil:
			one.Verdict = "failed"
		case c.Skipped != nil:
			one.Verdict = "orphan"
		}
		out[c.Folder+"/"+c.Name] = one
	}
	return out
}

// textTold are the rows of the table.
func textTold(text string) map[string]told {
	words := map[string]string{
		"off 4K": "misaligned", "off 64K": "below_boundary", "error": "failed",
		"aligned": "aligned", "orphan": "orphan",
	}
	out := map[string]told{}
	for _, m := range regexp.MustCompile(
		`(?m)^ *(\d+|-)  (off 4K|off 64K|error|aligned|orphan) +\S+ +\S+  (\S+) +(-|\S+ \S*B)  .*`+
			`  (?:boot|data|\?|-) +(-|shut down|running|hibernated|unknown) +\S.*  (/\S+)$`).FindAllStringSubmatch(text,
		-1) {
		out[m[6]] = told{
			Verdict: words[m[2]], Rank: strings.Trim(m[1], "-"), Size: strings.Trim(m[4], "-"),
			Guest: strings.Trim(m[5], "-"),
		}
	}
	return out
}

// htmlTold are the rows of the page: rank, path, verdict, format, size, stored, extra I/O.
func htmlTold(t *testing.T, text string) map[string]told {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(text))
	require.NoError(t, err)
	words := map[string]string{"below boundary": "below_boundary"}
	out := map[string]told{}
	for n := range doc.Descendants() {
		if n.Data != "tr" || !slices.Contains(n.Parent.Attr, html.Attribute{Key: "id", Val: "rows"}) {
			continue
		}
		var cells []string
		for c := range n.ChildNodes() {
			if c.Type == html.ElementNode {
				cells = append(cells, pageText(c))
			}
		}
		require.Len(t, cells, 7)
		path := strings.Fields(cells[1])[0]
		verdict, tag, _ := strings.Cut(strings.TrimSpace(strings.TrimLeft(cells[2], "✕△✓?! \n")), "   ")
		if w, ok := words[verdict]; ok {
			verdict = w
		}
		out[path] = told{
			Verdict: verdict, Guest: strings.TrimPrefix(tag, "guest "), Rank: strings.TrimSpace(cells[0]),
			Cost: strings.TrimSuffix(strings.TrimSpace(cells[6]), " %"), Size: strings.TrimSpace(cells[4]),
		}
	}
	return out
}

func pageText(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data + " ")
		}
	}
	return b.String()
}

// everyFormatLibrary is a library with images of all kinds, and packages whose copies cannot have the usual names.
func everyFormatLibrary(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "library")
	disktest.Run(t, "cp", "-a", newEveryKind(t).dir, dir)
	loose := filepath.Join(dir, "loose")
	require.NoError(t, os.Mkdir(loose, 0o755))
	disktest.Run(t, "tar", "-xf", filepath.Join(dir, "deep", "two.ova"), "-C", loose)
	disktest.Run(t, "cp", filepath.Join(dir, "deep", "two.ova"), filepath.Join(dir, "deep", "other.name"))
	return dir
}

// All formats of a scan tell the same of each image, and so does inspect.
func TestScanFormatsAgree(t *testing.T) {
	t.Parallel()
	dir := everyFormatLibrary(t)
	s := scan(t, dir)
	want, ranked := jsonTold(s)
	reportAs := func(format string) string {
		r := trueup(t, "scan", "-o", format, "-v", dir)
		require.Equal(t, s.code, r.code, format)
		return r.stdout
	}
	requireTold := func(format string, got map[string]told, part func(told) told) {
		t.Helper()
		require.Len(t, got, len(want), format)
		for path, w := range want {
			require.Equal(t, part(w), part(got[path]), "%s: %s", format, path)
		}
	}
	requireTold("csv", csvTold(t, reportAs("csv")), func(x told) told { x.Guest = ""; return x })
	requireTold("junit", junitTold(t, reportAs("junit")),
		func(x told) told { return told{Verdict: x.Verdict, Command: x.Command} })
	requireTold("text", textTold(reportAs("text")), func(x told) told {
		return told{
			Verdict: x.Verdict, Rank: x.Rank,
			Size: x.Size, Guest: x.Guest,
		}
	})
	requireTold("html", htmlTold(t, reportAs("html")), func(x told) told {
		if x.Command = ""; x.Cost == "0" {
			x.Cost = "" // no extra I/O
		}
		return x
	})
	metrics := reportAs("prometheus")
	for word, n := range map[string]int{
		"aligned": s.sum.Aligned, "below_boundary": s.sum.Below,
		"misaligned": s.sum.Misaligned, "failed": s.sum.Failed, "orphan": s.sum.Orphans,
	} {
		require.Regexp(t, fmt.Sprintf(`(?m)^trueup_images\{.*verdict="%s"\} %d$`, word, n), metrics)
	}
	for _, i := range ranked {
		if i.State == results.Judged {
			require.Equal(t, i.Verdict.ExitCode(), trueup(t, "inspect", "-q", i.Path).code, i.Path)
		}
	}
}

// The script of a scan makes all the copies that the scan says can be made, and they are aligned.
func TestScanScriptOfEveryKind(t *testing.T) {
	t.Parallel()
	dir := everyFormatLibrary(t)
	script := filepath.Join(t.TempDir(), "fix.sh")
	before := scan(t, "--script", script, dir)
	r := run(t, disktest.Tool(t, "env"), "TRUEUP="+builtPath, "bash", script)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout, fmt.Sprintf("%d made, 0 passed over, 0 failed", before.sum.Fix.Images))
	after := scan(t, "--include", "*-aligned.*", dir)
	copies := 0
	for path, i := range after.rows {
		if i.State == results.Judged {
			copies++
			require.Equal(t, align.Aligned, i.Verdict, path)
		}
	}
	require.Equal(t, before.sum.Fix.Images, copies)
}
