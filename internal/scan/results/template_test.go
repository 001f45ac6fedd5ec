package results

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/report"
)

// laidOut prints the small library by a template.
func laidOut(t *testing.T, name, text string) string {
	t.Helper()
	f, err := ParseTemplate(name, text)
	require.NoError(t, err)
	s, images := smallLibrary()
	var b strings.Builder
	require.NoError(t, f.Write(&b, &Report{Summary: s, Images: slices.Values(images), Fail: Off4K}))
	return b.String()
}

func TestTemplateOfAUser(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"x.tmpl", `{{range .images}}{{with .priority}}{{if .rank}}{{.rank}} {{end}}{{end}}{{end}}`, "1 2 3 4 5 6 "},
		{"x.tmpl", `{{.summary.misaligned}} of {{len .summary.paths}}`, "5 of 1"},
		{"x.tmpl", `{{range .images}}{{if eq .path "/t/data.vmdk"}}{{.exit_code}}{{.copied_to}}{{end}}{{end}}`, "3"},
		{"x.tmpl", `{{range .images}}{{if .error}}{{.error.code}}{{end}}{{end}}`, "format"},
		{
			"x.tmpl", `{{bytes 1536}} {{csv "=a,b"}} {{json .summary.paths}} {{xml "<&"}}`,
			`1.5 KiB "'=a,b" ["/t"] &lt;&amp;`,
		},
		{"x.tmpl", `{{range .images}}{{range .disks}}{{.table.scheme}}{{break}}{{end}}{{break}}{{end}}`, "mbr"},
		{"x.html", `<b title="{{"<i>"}}">{{"<i>"}}</b>`, `<b title="&lt;i&gt;">&lt;i&gt;</b>`},
		{"x.html.tmpl", `<b>{{"<i>"}}</b>`, `<b>&lt;i&gt;</b>`},
		{"x.html.txt", `<b>{{"<i>"}}</b>`, `<b><i></b>`},
	} {
		require.Equal(t, c.want, laidOut(t, c.name, c.text), c.text)
	}
}

// An error has the place, and comes before a scan where it can.
func TestErrorsOfTemplates(t *testing.T) {
	for text, want := range map[string]string{
		"a\n{{if}}":                      "--template dir/x.html:2: missing value for if",
		"{{nothing 1}}":                  `--template dir/x.html:1: function "nothing" not defined`,
		"\n<b title={{if 1}}\"x{{end}}>": "--template dir/x.html:2:",
	} {
		_, err := ParseTemplate("dir/x.html", text)
		require.ErrorContains(t, err, want)
	}
	s, images := smallLibrary()
	for text, want := range map[string]string{
		"{{range .images}}\n{{.verdcit}}{{end}}":       `--template x:2:2: executing "x" at <.verdcit>`,
		"{{range .images}}{{.error.code}}{{end}}":      "nil pointer evaluating",
		"{{range .images}}{{.Assess}}{{end}}":          "map has no entry",
		"{{range .images}}{{.disks.Trim 1}}{{end}}":    "--template x:1:",
		"{{range .images}}{{index .disks 99}}{{end}}":  "index out of range: 99",
		"{{range .images}}{{call .path \"x\"}}{{end}}": "--template x:1:",
	} {
		f, err := ParseTemplate("x", text)
		require.NoError(t, err)
		require.ErrorContains(t, f.Write(&strings.Builder{}, &Report{Summary: s, Images: slices.Values(images)}), want)
	}
}

// A template sees the very objects of the JSON, with the fields that those leave out, and with texts that are safe.
func TestTemplatesSeeTheJSON(t *testing.T) {
	s, images := smallLibrary()
	_, more := sampleLibrary()
	images = append(images, more...)
	for _, text := range hostile {
		var i Image
		fill(reflect.ValueOf(&i).Elem(), text, 7)
		images = append(images, &i)
	}
	values := []any{s}
	for _, i := range images {
		values = append(values, i)
	}
	for _, v := range values {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		var want any
		require.NoError(t, json.Unmarshal(b, &want))
		holds(t, "", want, jsonValue(reflect.ValueOf(v)))
	}
}

// holds compares what the JSON of a value has with what a template sees.
func holds(t *testing.T, at string, want, got any) {
	t.Helper()
	switch w := want.(type) {
	case map[string]any:
		require.IsType(t, w, got, at)
		for key, value := range w {
			require.Contains(t, got, key, at)
			holds(t, at+"."+key, value, got.(map[string]any)[key])
		}
	case []any:
		require.Len(t, got, len(w), at)
		for n := range w {
			holds(t, fmt.Sprintf("%s[%d]", at, n), w[n], got.([]any)[n])
		}
	case float64:
		require.InEpsilon(t, w+1, reflect.ValueOf(got).Convert(reflect.TypeFor[float64]()).Float()+1, 1e-9, at)
	case string:
		require.Equal(t, report.Escape(got.(string)), got, at)
		if report.Escape(w) == w && !strings.Contains(w, "\ufffd") { // which stands for bytes that are not UTF-8
			require.Equal(t, w, got, at)
		}
	case nil:
		require.Empty(t, got, at)
	default:
		require.Equal(t, want, got, at)
	}
}
