// Package pages is the frame of reports that are pages: one file with its style, which asks no server for anything, but
// its own where it says so.
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

// Source holds the templates of one kind of page. All of it are templates, so that no value has to be declared safe.
type Source struct {
	Body   string // defines "title" and "body", and may define "head"; "facts" is there for it
	Style  string // beside that of all pages
	Script string // empty: none
	Asks   bool   // the server that it is from, by a script or a form
	// Functions are those of Body, beside the usual ones.
	Functions template.FuncMap
}

// Kind is one kind of page.
type Kind struct{ parse func() page }

// New returns a kind of page that is parsed when it is first used. A template that is wrong panics then: it is ours.
func New(s Source) *Kind {
	return &Kind{sync.OnceValue(func() page { return parse(s) })}
}

// page is a kind of page that is parsed.
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
	if s.Asks {
		k.policy += "connect-src 'self'; "
		forms = "'self'"
	}
	k.policy += "base-uri 'none'; form-action " + forms
	return k
}

// Policy returns what the page may do, for the header of an answer.
func (k *Kind) Policy() string { return k.parse().policy }

// Part writes one template of the body alone.
func (k *Kind) Part(w io.Writer, name string, body any) error {
	return k.parse().frame.ExecuteTemplate(w, name, body)
}

// inlineHash returns the hash of the text between the tags of an element. The policy allows style and script by it and
// nothing else, so that a value that got out of its place would still not run. It hashes what the browser sees:
// html/template drops comments.
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

// Write writes the page of a version of the program. All texts of body are safe to print. What body iterates over is
// made as the page asks for it.
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
