package results

import (
	"bufio"
	"embed"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/template"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// layouts has the templates of the formats that are no pages. They lay values out; verdicts and sums are those of rows.
//
//go:embed templates/*.tmpl
var layouts embed.FS

// builtIn returns a function that executes one of layouts. The template is parsed when it is first used.
func builtIn(name string) func(w io.Writer, data any) error {
	parsed := sync.OnceValue(func() *template.Template {
		return template.Must(template.New(name).Funcs(functions).Funcs(layoutFunctions).
			ParseFS(layouts, "templates/"+name))
	})
	return func(w io.Writer, data any) error {
		b := bufio.NewWriterSize(w, 64<<10)
		err := parsed().Execute(b, data)
		if err == nil {
			err = b.Flush()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
}

// layoutFunctions are those that only layouts have.
var layoutFunctions = template.FuncMap{
	"cdata":  func(s string) string { return strings.ReplaceAll(s, "]]>", "]]]]><![CDATA[>") },
	"escape": report.Escape,
	"minus":  func(a, b int64) int64 { return a - b },
	"short":  units.Short,
}
