package pagetest

import (
	"strings"

	"golang.org/x/net/html"
)

// Elements are those of a name, in the order of the document.
func Elements(n *html.Node, name string) (out []*html.Node) {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == name {
			out = append(out, d)
		}
	}
	return out
}

// Attribute returns that of an element, empty if absent.
func Attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// TextOf returns all text in an element.
func TextOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}
