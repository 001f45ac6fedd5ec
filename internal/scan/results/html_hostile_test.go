package results

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest/pagetest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Texts that a page would obey.
var htmlHostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`,
	`</style><style>*{display:none}</style>`, `</title></details>`, "a\u2028b", "\xed\xa0\x80", "\xff\xfe",
	"\x1b]0;x\a\x1b[2J", "exe.\u202egnp.vmdk", "{{.Policy}}", "-->", "]]>", "`${1}`", "'; DROP", "&lt;b&gt;",
}

// fill puts a text into every string of a value, and numbers of a hostile disk into every number.
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
		require.GreaterOrEqual(t, strings.Count(pagetest.TextOf(doc), shown), 40,
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

// Numbers of a broken table must not break pictures: negative, beyond the end, the largest.
func TestHTMLOfHostileNumbers(t *testing.T) {
	for _, number := range []int64{0, -1, -1 << 63, 1<<63 - 1, 512} {
		var i Image
		fill(reflect.ValueOf(&i).Elem(), "x", number)
		i.State = Judged
		for _, v := range []align.Verdict{align.Misaligned, align.BelowBoundary, align.Aligned, ""} {
			for d := range i.Disks {
				for p := range i.Disks[d].Partitions {
					i.Disks[d].Partitions[p].Verdict = v
				}
			}
			out, doc := rendered(t, NewSummary(), []*Image{&i})
			require.Len(t, pageRows(t, doc), 1)
			require.NotContains(t, out, "NaN")
			for _, r := range pagetest.Elements(doc, "rect") {
				require.NotContains(t, pagetest.Attribute(r, "x")+pagetest.Attribute(r, "width"), "-",
					"outside of the picture")
			}
		}
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
	s.Unreadable = slices.Repeat([]Unreadable{{Path: "p"}}, 1_000_000)
	out, doc := rendered(t, s, []*Image{i})
	require.Less(t, len(out), 2<<20)
	text := pagetest.TextOf(pageRows(t, doc)[0])
	require.Contains(t, text, "Of 3000 partitions 64 are shown, those off the boundary first")
	require.Contains(t, text, "Partition 3000 starts at LBA 6144001")
	require.Contains(t, text, "And 236 more disks.")
	require.Contains(t, text, "And 484 more findings.")
	require.Contains(t, pagetest.TextOf(doc), "and 999000 more")
}
