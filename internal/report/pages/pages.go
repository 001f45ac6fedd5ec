// Package pages is the frame of reports in HTML. A page is one file with its style. It sends no requests to servers,
// except to its own server if its Source allows that.
package pages

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	_ "embed" // frame and style of all pages
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"sync"
)

//go:embed frame.html.tmpl
var frame string

//go:embed frame.css
var frameStyle string

// Source holds the templates of one kind of page. All parts are templates, so no value must be declared safe.
type Source struct {
	Body          string // defines "title" and "body", may define "head", can use "facts"
	Style         string // in addition to the style of all pages
	Script        string // optional
	AllowRequests bool   // to its own server, by a script or a form
	// Functions holds the functions of Body, in addition to the usual ones.
	Functions template.FuncMap
}

// Kind is one kind of page.
type Kind struct{ parse func() page }

// New returns a kind of page. It is parsed on first use, and panics then on an invalid template: templates are ours.
func New(s Source) *Kind {
	return &Kind{sync.OnceValue(func() page { return parse(s) })}
}

// page is a parsed kind of page.
type page struct {
	frame  *template.Template
	policy string
}

func parse(s Source) page {
	t := template.Must(template.New("frame").Funcs(s.Functions).Parse(frame))
	for name, text := range map[string]string{"page": s.Body, "style": frameStyle + s.Style, "script": s.Script} {
		template.Must(t.New(name).Parse(text))
	}
	k := page{frame: t, policy: "default-src 'none'; "}
	k.policy += "style-src '" + k.inlineHash("inline-style") + "'; "
	if s.Script != "" {
		k.policy += "script-src '" + k.inlineHash("inline-script") + "'; "
	}
	forms := "'none'"
	if s.AllowRequests {
		k.policy += "connect-src 'self'; "
		forms = "'self'"
	}
	k.policy += "base-uri 'none'; form-action " + forms
	return k
}

// Policy returns the content security policy of the page, for the header of a response.
func (k *Kind) Policy() string { return k.parse().policy }

// Part writes a single template of the body.
func (k *Kind) Part(w io.Writer, name string, body any) error {
	return k.parse().frame.ExecuteTemplate(w, name, body)
}

// inlineHash returns the hash of the text between the tags of an element. The policy allows styles and scripts only by
// their hashes, so that an injected script would not run. It hashes the output, not the template: html/template drops
// comments.
func (k page) inlineHash(name string) string {
	var b bytes.Buffer
	if err := k.frame.ExecuteTemplate(&b, name, nil); err != nil {
		panic(err) // the text is ours
	}
	text := b.Bytes()
	text = text[bytes.IndexByte(text, '>')+1 : bytes.LastIndexByte(text, '<')]
	sum := sha256.Sum256(text)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// Write writes the page of a version of the program. All texts of body must be safe to print. Iterators in body are
// evaluated while the page is written.
func (k *Kind) Write(w io.Writer, version string, body any) error {
	out := bufio.NewWriterSize(w, 64<<10)
	p := k.parse()
	err := p.frame.ExecuteTemplate(out, "frame", struct {
		Policy, Version string
		Body            any
	}{p.policy, version, body})
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("html report: %w", err)
	}
	return nil
}
