package results

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed" // page, style and script of the report
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"iter"
	"slices"
	"sync"
)

//go:embed html/report.html.tmpl
var htmlPage string

//go:embed html/report.css
var htmlStyle string

//go:embed html/report.js
var htmlScript string

var htmlFormat = Format{
	Name: "html", Write: func(w io.Writer, r *Report) error { return writeHTML(w, r.Summary, r.Images) },
}

// writeHTML writes the report of a run as one file that asks no server for anything. images are in the order of Rank.
// Rows are made one at a time, and the same values give the same bytes.
func writeHTML(w io.Writer, s *Summary, images []*Image) error {
	d := parsedPage()
	out := bufio.NewWriterSize(w, 64<<10)
	if err := d.ExecuteTemplate(out, "page", newPage(s, images, policy())); err != nil {
		return fmt.Errorf("html report: %w", err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("html report: %w", err)
	}
	return nil
}

// parsedPage is the page with style and script in their places. They are templates too, so that no value has to be
// declared safe.
var parsedPage = sync.OnceValue(func() *template.Template {
	t := template.Must(template.New("page").Parse(htmlPage))
	template.Must(t.New("style").Parse(htmlStyle))
	template.Must(t.New("script").Parse(htmlScript))
	return t
})

// policy allows the one style and the one script by their hashes and nothing else, so that a value that got out of its
// place would still not run. It hashes what the browser sees: html/template drops comments.
var policy = sync.OnceValue(func() string {
	return "default-src 'none'; style-src '" + inlineHash("inline-style") + "'; script-src '" +
		inlineHash("inline-script") +
		"'; base-uri 'none'; form-action 'none'"
})

// inlineHash returns the hash of the text between the tags of an element.
func inlineHash(name string) string {
	var b bytes.Buffer
	if err := parsedPage().ExecuteTemplate(&b, name, nil); err != nil {
		panic(err) // the text is ours
	}
	text := b.Bytes()
	text = text[bytes.IndexByte(text, '>')+1 : bytes.LastIndexByte(text, '<')]
	sum := sha256.Sum256(text)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// htmlRows makes the rows as the page asks for them.
func htmlRows(images []*Image) iter.Seq[htmlRow] {
	return func(yield func(htmlRow) bool) {
		for _, i := range images {
			if !yield(newHTMLRow(i)) {
				return
			}
		}
	}
}

// choice is something to filter by, and how many rows have it.
type choice struct {
	Key, Word string
	Count     int
}

// choices counts what rows have, in the order of keys, or sorted where there are none. Choices without a row are left
// out.
func choices(counts map[string]int, keys []string, words map[string]string) (out []choice) {
	if keys == nil {
		for k := range counts {
			keys = append(keys, k)
		}
		slices.Sort(keys)
	}
	for _, k := range keys {
		word := words[k]
		if word == "" {
			word = k
		}
		if counts[k] > 0 {
			out = append(out, choice{k, word, counts[k]})
		}
	}
	return out
}
