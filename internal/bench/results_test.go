package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

var update = flag.Bool("update", false, "write the golden files again")

// sample is a full result of a storage that reads and writes blocks of 4 KiB.
func sample() *Bench {
	random := rand.New(rand.NewPCG(1, 2))
	r := &measured.Result{
		Date: time.Date(2026, 11, 23, 4, 5, 6, 0, time.UTC), Kernel: "Linux 6.1.0", Tool: "fio-3.33", Direct: true,
		Size: 2 * units.GiB, Seconds: 5, Starts: []int64{65536, 65024, 66048}, Notes: []string{}, Skipped: []int64{},
		Storage: measured.Storage{
			Path: "/srv/images", FileSystem: "ext4", Source: "/dev/sdb1",
		},
	}
	for _, l := range measured.Loads() {
		for n, start := range r.Starts {
			p := measured.Point{Start: start}
			for range 3 {
				x := 400 * float64(l.Jobs) / float64(l.Jobs+12) * 40 / (1 + float64(l.Size)/65536)
				if n > 0 {
					x /= map[string]float64{measured.Read: 1.1, measured.Write: 2.1}[l.Op]
				}
				x *= 1 + random.Float64()/8
				each := 1e9 / x * float64(l.Jobs)
				p.Rounds = append(p.Rounds, measured.Round{
					IOPS: x, Bytes: x * float64(l.Size), Mean: int64(each), P50: int64(each * .9),
					P95: int64(each * 1.8), P99: int64(each * 4), P999: int64(each * 9),
				})
			}
			l.Points = append(l.Points, p)
		}
		r.Loads = append(r.Loads, l)
	}
	r.Summarize()
	return &Bench{Head: report.Head{Origin: report.Origin{Schema: report.Schema, Command: "bench"}}, Result: *r}
}

// brief is a result of one round, through the page cache, with notes.
func brief() *Bench {
	b := sample()
	b.Direct, b.Notes, b.Skipped = false, []string{"nfs is a network file system"}, []int64{512}
	b.Loads = b.Loads[1:2]
	for n := range b.Loads[0].Points {
		b.Loads[0].Points[n].Rounds = b.Loads[0].Points[n].Rounds[:1]
	}
	b.Summarize()
	return b
}

func shown(b *Bench) string {
	var s strings.Builder
	b.Text(&report.Text{W: &s, Width: 100})
	return s.String()
}

// golden compares a text with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want := disktest.ReadFile(t, path)
	require.Equal(t, string(want), got)
}

func TestTextOfABench(t *testing.T) {
	t.Parallel()
	golden(t, "full.txt", shown(sample()))
	golden(t, "brief.txt", shown(brief()))
}

func TestSchemaOfABench(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile("../../docs/schema/bench.json")
	require.NoError(t, err)
	for _, b := range []*Bench{sample(), brief()} {
		var out bytes.Buffer
		require.NoError(t, report.JSON(&out, b))
		back, err := measured.Decode(out.Bytes())
		require.NoError(t, err)
		require.Equal(t, &b.Result, back, "what is written can be read")
		object, err := jsonschema.UnmarshalJSON(&out)
		require.NoError(t, err)
		require.NoError(t, schema.Validate(object))
		object.(map[string]any)["exit_code"] = json.Number("2")
		require.Error(t, schema.Validate(object))
	}
}

// Texts that a terminal or a reader of JSON would obey.
var hostile = []string{
	`<script>alert(1)</script>`, `"><svg onload=alert(1)>`, "\x1b[2J\x1b]0;x\a", "\xff\xfe", "exe.\u202egnp",
	"{{.Policy}}", "\u2028",
}

func TestHostileNames(t *testing.T) {
	t.Parallel()
	for _, text := range hostile {
		b := brief()
		b.Kernel, b.Tool, b.Notes, b.Loads[0].Name = text, text, []string{text}, text
		b.Storage = measured.Storage{Path: text, FileSystem: text, Source: text}
		require.True(t, utf8.ValidString(shown(b)))
		require.Equal(t, -1, strings.IndexFunc(shown(b), func(r rune) bool {
			return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028')
		}), "%q", text)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(answer))
	f.Fuzz(func(t *testing.T, out []byte) {
		if r, err := parse(out, minRuntime); err == nil {
			require.NoError(t, r.Check())
			require.Positive(t, r.IOPS)
		}
	})
}
