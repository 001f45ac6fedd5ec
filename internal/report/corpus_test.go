package report_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/table"
)

// `go test ./internal/report -update` writes the reports of the corpus again; read the diff before you commit it.
var update = flag.Bool("update", false, "rewrite testdata/corpus/*.json")

// inspect returns the report of a disk without a container.
func inspect(t *testing.T, name string, d disk.Disk) *report.Inspect {
	t.Helper()
	l, err := layout.Read(d, table.Geometry{})
	require.NoError(t, err)
	goal := align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary}
	r := &report.Inspect{
		Head: report.Head{Origin: report.Origin{Schema: report.Schema, Command: "inspect"}},
		Image: report.Image{
			Path: name, Format: "raw", Size: d.Size(), SectorSize: d.SectorSize(), Files: []image.FileInfo{},
			Chain: []image.Link{},
		},
		Disk:     report.NewDisk(l, goal.Must, align.Check(l, goal)),
		Refusals: []align.Finding{},
	}
	require.NoError(t, l.ReadGaps(d))
	p, err := plan.New(l, align.GoalFor(l, align.Boundary{}))
	require.NoError(t, err)
	r.Refusals = append(r.Refusals, p.Refusals(false)...)
	r.Advice = align.For(l, align.Case{Boundary: goal.Must, Storage: align.Generic(), Refusals: r.Refusals})
	r.ExitCode = r.Verdict.ExitCode()
	return r
}

// The report of each disk of the corpus equals the one beside it.
func TestCorpus(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			require.NoError(t, report.JSON(&got, inspect(t, name+".disk", disktest.Fixture(t, path))))
			golden := strings.TrimSuffix(path, ".disk") + ".json"
			if *update {
				require.NoError(t, os.WriteFile(golden, got.Bytes(), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err, "go test ./internal/report -update makes it")
			require.Equal(t, string(want), got.String())
		})
	}
}

// All of them are valid disks, though some cannot be moved. The hostile cases cover invalid disks.
func TestCorpusHasNoErrors(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		for _, f := range inspect(t, name, disktest.Fixture(t, path)).Findings {
			if name == "dynamic-disk" && f.Code == "ldm" {
				continue
			}
			require.NotEqual(t, align.Error, f.Severity, "%s: %s", name, f.Text)
		}
	}
}

// sfdiskTable is the output of `sfdisk --json`.
type sfdiskTable struct {
	PartitionTable struct {
		Label      string `json:"label"`
		ID         string `json:"id"`
		SectorSize int64  `json:"sectorsize"`
		Partitions []struct {
			Node     string `json:"node"`
			Start    int64  `json:"start"`
			Size     int64  `json:"size"`
			Type     string `json:"type"`
			Bootable bool   `json:"bootable"`
			Name     string `json:"name"`
		} `json:"partitions"`
	} `json:"partitiontable"`
}

// The golden files could preserve a mistake of ours. sfdisk reads the same disks.
func TestCorpusAgreesWithSfdisk(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			d := disktest.Fixture(t, path)
			raw := disktest.Materialize(t, d)
			var other sfdiskTable
			out := disktest.Output(t, "sfdisk", "--json", raw)
			require.NoError(t, json.Unmarshal([]byte(out), &other))
			r, want := inspect(t, name, d), other.PartitionTable
			require.Equal(t, map[string]string{"dos": "mbr", "gpt": "gpt"}[want.Label], r.Table.Scheme)
			require.Equal(t, strings.ToLower(want.ID), r.Table.Signature+r.Table.GUID)
			require.Len(t, r.Partitions, len(want.Partitions))
			for i, w := range want.Partitions {
				got := r.Partitions[i]
				require.Equal(t, strings.TrimPrefix(w.Node, raw), strconv.Itoa(got.Number))
				require.Equal(t, w.Start, got.StartLBA, "start of %d", got.Number)
				require.Equal(t, w.Start*want.SectorSize, got.Start, "start of %d", got.Number)
				require.Equal(t, w.Size*want.SectorSize, got.Size, "size of %d", got.Number)
				require.Equal(t, w.Bootable, got.Active, "flag of %d", got.Number)
				require.Equal(t, w.Name, got.Name, "name of %d", got.Number)
				if want.Label == "dos" {
					require.Equal(t, w.Type, strings.TrimLeft(strings.TrimPrefix(got.Type, "0x"), "0"), "type of %d",
						got.Number)
				} else {
					require.Equal(t, strings.ToLower(w.Type), got.Type, "type of %d", got.Number)
				}
			}
		})
	}
}

// blkid names the volumes of the same disks, from the same bytes.
func TestCorpusAgreesWithBlkid(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			d := disktest.Fixture(t, path)
			raw := disktest.Materialize(t, d)
			for _, p := range inspect(t, name, d).Partitions {
				// It does not read tables inside partitions; the tests of package layout use partx.
				if p.Volume == nil || slices.Contains([]string{"unknown", "disklabel", "ldm"}, p.Volume.Kind) {
					continue
				}
				out := disktest.Output(t, "blkid", "--probe", "--output", "export", "--offset", fmt.Sprint(p.Start),
					"--size", fmt.Sprint(p.Size), raw)
				want := map[string]string{}
				for line := range strings.Lines(out) {
					key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
					want[key] = strings.ReplaceAll(value, `\ `, " ")
				}
				kind := p.Volume.Kind
				if strings.HasPrefix(kind, "fat") {
					require.Equal(t, strings.ToUpper(kind), want["VERSION"], "partition %d", p.Number)
					kind = "vfat"
				}
				require.Equal(t, kind, want["TYPE"], "partition %d", p.Number)
				require.Equal(t, want["LABEL"], p.Volume.Label, "partition %d", p.Number)
				require.Equal(t, want["UUID"], p.Volume.UUID, "partition %d", p.Number)
			}
		})
	}
}

// TestJSONEqualsEncodingJSON compares the writer with encoding/json for every object, with all fields set and with
// none.
func TestJSONEqualsEncodingJSON(t *testing.T) {
	for _, v := range []any{
		&report.Inspect{}, &report.Plan{}, &report.Align{}, &report.Verify{}, &report.Failure{},
		&report.PackageInspect{},
	} {
		t.Run(reflect.TypeOf(v).Elem().Name(), func(t *testing.T) {
			requireLibrary(t, v)
			n := 0
			set(reflect.ValueOf(v).Elem(), &n)
			requireLibrary(t, v)
			require.Greater(t, n, 3)
		})
	}
	for _, v := range []any{
		nil, 1, "<a&b>",
		[]string{},
		[]string(nil),
		map[string]string{},
		map[string]any{"a": []int{1}},
		struct{}{},
		[]byte("x"),
		[2]int{1, 2},
	} {
		requireLibrary(t, v)
	}
}

func requireLibrary(t *testing.T, v any) {
	t.Helper()
	var got, want bytes.Buffer
	require.NoError(t, report.JSON(&got, v))
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(v))
	require.Equal(t, want.String(), got.String())
}

// set fills v with distinct values; n counts them.
func set(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type().Field(i).Tag.Get("json") != "-" {
				set(v.Field(i), n)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		set(v.Index(0), n)
		set(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"b": fmt.Sprint(*n), "a": "<&>"}))
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d \"<é>", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.25)
	case reflect.Uint32:
		v.SetUint(uint64(*n))
	default:
		panic(v.Type().String())
	}
}

// However much the encoder writes at once, no character is split, so that none evades the escapes; and it writes early.
func TestJSONOfManyDangerousCharacters(t *testing.T) {
	var texts []string
	for n := range 3000 {
		texts = append(texts, strings.Repeat("x", n%7)+strings.Repeat("\u202e\U000e0001\u009b", 1+n%50))
	}
	w := &largestWrite{}
	require.NoError(t, report.JSON(w, texts))
	require.NotContains(t, w.String(), "\u202e")
	require.NotContains(t, w.String(), "\U000e0001")
	require.NotContains(t, w.String(), "\u009b")
	var back []string
	require.NoError(t, json.Unmarshal(w.Bytes(), &back))
	require.Equal(t, texts, back)
	require.Less(t, w.largest, w.Len()/100)
}

type largestWrite struct {
	bytes.Buffer
	largest int
}

func (l *largestWrite) Write(p []byte) (int, error) {
	l.largest = max(l.largest, len(p))
	return l.Buffer.Write(p)
}

// hostile are texts that a terminal would interpret.
var hostile = []string{
	"\x1b]0;title\a", "\x1b[2J", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\x1b]52;c;Y2F0\a", "a\rb", "a\nb",
	"\x9b31m",
	"\u009b31m",
	"\u202eevil", "\xff\xfe", "\x00", "\x7f", "\u2028\u2029", "\u200b", strings.Repeat("x", 1<<16), "é" +
		strings.Repeat("\u202e", 5000), "\ufffe\uffff", "\U0001fffe",
}

func TestSafeTexts(t *testing.T) {
	for _, s := range hostile {
		for name, got := range map[string]string{"Safe": report.Safe(s), "SafeMessage": report.SafeMessage(s)} {
			require.True(t, utf8.ValidString(got), "%s of %.40q", name, s)
			for _, r := range got {
				require.False(t, unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' ||
					r&0xfffe == 0xfffe, "%s of %.40q has %#x", name, s, r)
			}
		}
		require.LessOrEqual(t, utf8.RuneCountInString(report.Safe(s)), 256*6+1)
		require.Less(t, len(report.SafeMessage(s)), 32<<10)
	}
}

// Normal text stays readable.
func TestSafeKeepsText(t *testing.T) {
	for _, s := range []string{"", "XP System", "Grüße", "日本語", "it's 100 % <b>", `C:\path`, "\ufffd"} {
		require.Equal(t, s, report.Safe(s))
		require.Equal(t, s, report.SafeMessage(s))
	}
	require.Equal(t, strings.Repeat("x", 256)+"…", report.Safe(strings.Repeat("x", 300)))
	require.Equal(t, strings.Repeat("x", 300), report.SafeMessage(strings.Repeat("x", 300)),
		"a message is longer than a name")
	require.Equal(t, strings.Repeat("日", 500), report.SafeMessage(strings.Repeat("日", 500)),
		"a character is not cut in two")
}

// JSON is exact, and still contains no terminal controls.
func TestJSONIsExact(t *testing.T) {
	for _, s := range append(hostile, "Grüße", "<script>", "&") {
		var out bytes.Buffer
		require.NoError(t, report.JSON(&out, map[string]string{"label": s}))
		for _, r := range out.String() {
			require.False(t, r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)),
				"%#x in the output for %.40q", r, s)
		}
		var back map[string]string
		require.NoError(t, json.Unmarshal(out.Bytes(), &back))
		require.Equal(t, string([]rune(s)), back["label"], "each byte that is no UTF-8 becomes U+FFFD")
		require.Equal(t, byte('\n'), out.Bytes()[out.Len()-1])
	}
}
