package cli

import (
	"cmp"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/trueup/trueup/internal/report"
)

// textWidth is the width of text without a terminal, and its maximum, in characters.
const textWidth = 100

// Width returns that of the terminal, within bounds that can be read.
func Width(w io.Writer) int {
	if n := columns(w); n > 0 {
		return min(max(n, 40), textWidth)
	}
	return textWidth
}

// columns returns the width of the terminal, 0 if w is not one.
func columns(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil {
			return n
		}
	}
	return 0
}

// blockCharacters reports whether w is a terminal that shows them: one whose locale is UTF-8. Spec: POSIX, "Environment
// Variables", 8.2: LC_ALL before LC_CTYPE before LANG.
func blockCharacters(w io.Writer) bool {
	if !Terminal(w) {
		return false
	}
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
}

// Layout returns how text is printed: for the terminal, or for the file of --out.
func (c *Base) Layout(stdout io.Writer) *report.Text {
	if c.Out != "" {
		return &report.Text{Verbose: c.Verbose, Width: textWidth}
	}
	return &report.Text{
		Verbose: c.Verbose, Width: Width(stdout), Color: c.color(stdout), Columns: columns(stdout),
		Unicode: blockCharacters(stdout),
	}
}

// color reports whether w gets colours: as the user says, or where it is a terminal whose user wants them. Spec:
// no-color.org.
func (c *Base) color(w io.Writer) bool {
	if c.NoColor || c.Color != "auto" {
		return !c.NoColor && c.Color == "always"
	}
	return os.Getenv("NO_COLOR") == "" && Terminal(w)
}

// Terminal reports whether w is one that can do more than print lines.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}
