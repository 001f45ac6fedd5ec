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
	return &Bench{Head: report.Head{Origin: report.Origin{Schema: report.Schema, Command: "bench"}}, Result: *r}
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

func TestTextOfABench(t *testing.T) {
	t.Parallel()
	golden(t, "full.txt", shown(sample()))
	golden(t, "jobfile.txt", shown(jobFile()))
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

// Texts that a terminal or a reader of JSON would obey.
var hostile = []string{
	`<script>alert(1)</script>`, `"><svg onload=alert(1)>`, "\x1b[2J\x1b]0;x\a", "\xff\xfe", "exe.\u202egnp",
	"{{.Policy}}", "\u2028",
}

func TestHostileNames(t *testing.T) {
	t.Parallel()
	for _, text := range hostile {
		b := jobFile()
		b.Kernel, b.Tool, b.Notes, b.Loads[0].Name = text, text, []string{text}, text
		b.Storage = measured.Storage{Path: text, FileSystem: text, Source: text, Device: text, Model: text}
		require.True(t, utf8.ValidString(shown(b)))
		require.Equal(t, -1, strings.IndexFunc(shown(b), func(r rune) bool {
			return r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028')
		}), "%q", text)
	}
}
