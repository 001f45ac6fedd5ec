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
	"golang.org/x/net/html"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/pagetest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

var (
	update   = flag.Bool("update", false, "write the golden files again")
	shots    = flag.String("shots", "", "write screenshots of the pages to this folder")
	resultOf = flag.String("result", "", "show this result of trueup bench --json, too")
)

// sample is a full result of a storage that reads and writes blocks of 4 KiB.
func sample() *Bench {
	random := rand.New(rand.NewPCG(1, 2))
	r := &measured.Result{
		Date: time.Date(2026, 11, 23, 4, 5, 6, 0, time.UTC), Kernel: "Linux 6.1.0", Tool: "fio-3.33", Scratch: true,
		Direct: true,
		Size:   2 * units.GiB, Seconds: 5, Starts: []int64{65536, 65024, 66048}, Notes: []string{}, Skipped: []int64{},
		Storage: measured.Storage{
			Path: "/srv/images", FileSystem: "ext4", Source: "/dev/sdb1", Device: "sdb", Model: "Example Disk",
			Rotational: true, Logical: 512, Physical: 4096,
		},
	}
	add := func(access, op string, size int64, jobs int) {
		l := measured.Load{
			Name: measured.LoadName(access, op, size, jobs), Access: access, Op: op, Size: size, Jobs: jobs,
		}
		for n, start := range r.Starts {
			p := measured.Point{Start: start}
			for range 3 {
				x := 400 * float64(jobs) / float64(jobs+12) * 40 / (1 + float64(size)/65536)
				if n > 0 {
					x /= map[string]float64{measured.Read: 1.1, measured.Write: 2.1}[op]
				}
				x *= 1 + random.Float64()/8
				each := 1e9 / x * float64(jobs)
				p.Rounds = append(p.Rounds, measured.Round{
					IOPS: x, Bytes: x * float64(size), Mean: int64(each), P50: int64(each * .9), P95: int64(each * 1.8),
					P99: int64(each * 4), P999: int64(each * 9),
				})
			}
			l.Points = append(l.Points, p)
		}
		r.Loads = append(r.Loads, l)
	}
	for _, op := range []string{measured.Read, measured.Write} {
		for _, jobs := range []int{1, 2, 4, 8, 16, 36} {
			add(measured.Random, op, 8192, jobs)
		}
		for _, size := range []int64{4, 16, 32, 64, 128} {
			add(measured.Random, op, size*units.KiB, 1)
			add(measured.Sequential, op, size*units.KiB, 1)
		}
	}
	r.Settle()
	return New(report.Head{Origin: report.Origin{Schema: report.Schema, Command: "bench"}}, r)
}

// jobFile is the result of a job file, with notes, through the page cache, with one round.
func jobFile() *Bench {
	b := sample()
	b.Direct, b.Notes, b.Skipped = false, []string{"loop0 is a loop device"}, []int64{512}
	b.Scratch, b.Loads = false, []measured.Load{{
		Name: "job file db.fio", Access: measured.JobFile, Op: measured.Mixed,
		Points: b.Loads[0].Points,
	}}
	for n := range b.Loads[0].Points {
		b.Loads[0].Points[n].Rounds = b.Loads[0].Points[n].Rounds[:1]
	}
	b.Settle()
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

func page1(t testing.TB, b *Bench) string {
	t.Helper()
	var s strings.Builder
	require.NoError(t, b.HTML(&s, "1.0"))
	return s.String()
}

func TestTextAndPage(t *testing.T) {
	t.Parallel()
	golden(t, "full.txt", shown(sample()))
	golden(t, "jobfile.txt", shown(jobFile()))
	golden(t, "full.html", page1(t, sample()))
}

// The page shows every point, and each bar reaches from the line at the bottom to its value on the scale.
func TestPlots(t *testing.T) {
	t.Parallel()
	b := sample()
	doc, err := html.Parse(strings.NewReader(page1(t, b)))
	require.NoError(t, err)
	count := map[string]int{}
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode {
			count[n.Data]++
		}
	}
	require.Equal(t, 12, count["figure"], "two directions, three kinds, rates and latencies")
	points := 3 * 2 * (6 + 6 + 5) // starts, directions; jobs, sizes, sequential sizes
	require.Equal(t, points, count["circle"])
	require.Equal(t, points+3, count["rect"], "and the key")

	loads := b.Loads[:1]
	p := rates("x", perSecond, loads, func(measured.Load) string { return "g" })
	perUnit := (p.Ticks[0].Y - p.Ticks[1].Y) / niceStep(p.Groups[0].Marks[0].max(loads[0]))
	for n, m := range p.Groups[0].Marks {
		require.InDelta(t, loads[0].Points[n].IOPS.Median*perUnit, m.Height, .2)
		require.InDelta(t, p.Base, m.Y+m.Height, .1)
		require.InDelta(t, loads[0].Points[n].IOPS.Max*perUnit, p.Base-m.High, .2)
		require.InDelta(t, loads[0].Points[n].IOPS.Min*perUnit, p.Base-m.Low, .2)
	}
	for most, want := range map[float64]float64{1: .2, 9: 2, 10: 2, 11: 5, 420: 100, 0: .0001, 1e6: 2e5, 2.4e6: 5e5} {
		require.InEpsilon(t, want, niceStep(most), 1e-9, "%v", most)
	}
}

// max returns the most of all rounds of a load.
func (mark) max(l measured.Load) (most float64) {
	for _, p := range l.Points {
		most = max(most, p.IOPS.Max)
	}
	return most
}

func TestSchemaOfABench(t *testing.T) {
	t.Parallel()
	schema, err := jsonschema.NewCompiler().Compile("../../docs/schema/bench.json")
	require.NoError(t, err)
	for _, b := range []*Bench{sample(), jobFile()} {
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

// Texts that a page or a terminal would obey.
var hostile = []string{
	`<script>alert(1)</script>`, `"><svg onload=alert(1)>`, "\x1b[2J\x1b]0;x\a", "\xff\xfe", "exe.\u202egnp",
	"{{.Policy}}", "\u2028",
}

func TestHostileNames(t *testing.T) {
	t.Parallel()
	count := func(s, what string) int { return strings.Count(s, "<"+what) }
	plain := page1(t, jobFile())
	for _, text := range hostile {
		b := jobFile()
		b.Kernel, b.Tool, b.Notes, b.Loads[0].Name = text, text, []string{text}, text
		b.Storage = measured.Storage{Path: text, FileSystem: text, Source: text, Device: text, Model: text}
		out := page1(t, b)
		for _, name := range []string{"script", "style", "svg", "meta", "title"} {
			require.Equal(t, count(plain, name), count(out, name), "%q", text)
		}
		for _, s := range []string{out, shown(b)} {
			require.True(t, utf8.ValidString(s))
			require.Equal(t, -1, strings.IndexFunc(s, func(r rune) bool {
				return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028')
			}), "%q", text)
		}
	}
}

func TestPageInChromium(t *testing.T) {
	process := pagetest.Browser(t)
	type look struct {
		name, scheme string
		width        int64
		bench        *Bench
	}
	looks := []look{
		{"bench", "light", 1360, sample()},
		{"bench", "dark", 360, sample()},
		{"jobfile", "dark", 1360, jobFile()},
	}
	if *resultOf != "" {
		text := disktest.ReadFile(t, *resultOf)
		r, err := measured.Decode(text)
		require.NoError(t, err)
		b := New(report.Head{}, r)
		looks = append(looks, look{"measured", "light", 1360, b}, look{"measured", "dark", 1360, b})
	}
	for _, c := range looks {
		path := filepath.Join(t.TempDir(), c.name+".html")
		require.NoError(t, os.WriteFile(path, []byte(page1(t, c.bench)), 0o600))
		pagetest.Look(process, t, path, c.scheme, c.width, *shots)
	}
}
