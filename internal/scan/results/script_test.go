package results

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
)

// stub replaces trueup: it records its arguments, each followed by NUL and one more at the end, and runs the test's
// commands.
const stub = "#!/usr/bin/env bash\nset -eu\nprintf '%s\\0' \"$@\" >>\"$LOG\"\nprintf '\\0' >>\"$LOG\"\n"

// ran is the result of a script.
type ran struct {
	out, errs string
	code      int
	calls     [][]string // arguments of each call of trueup
}

// run runs a script in a new folder. act is what the stub does after recording.
func run(t *testing.T, dir, script, act string, env ...string) (r ran) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	cmd := exec.Command(disktest.Tool(t, "bash"), saved(t, "fix.sh", script))
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "LOG="+log, "TRUEUP="+saved(t, "trueup stub", stub+act)), env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	r.out, r.errs, r.code = out.String(), errs.String(), cmd.ProcessState.ExitCode()
	calls, err := os.ReadFile(log)
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	for call := range strings.SplitSeq(strings.TrimSuffix(string(calls), "\x00\x00"), "\x00\x00") {
		if call != "" {
			r.calls = append(r.calls, strings.Split(call, "\x00"))
		}
	}
	return r
}

func scriptOf(t *testing.T, s *Summary, images []*Image) string {
	t.Helper()
	return written(t, func(w io.Writer) error { return Script(w, s, slices.Values(images)) })
}

// argument returns the expected argument of trueup for a name.
func argument(name string) string {
	if strings.HasPrefix(name, "-") {
		return "./" + name
	}
	return name
}

func TestScriptMakesTheCopiesInOrder(t *testing.T) {
	s, images := smallLibrary()
	r := run(t, t.TempDir(), scriptOf(t, s, images), "")
	require.Equal(t, [][]string{
		{"align", "/t/data.vmdk", "/t/data-aligned.vmdk"},
		{"align", "/t/my boot.vmdk", "/t/my boot-aligned.vmdk"},
		{"align", "/t/two.ova", "/t/two-aligned.ova"},
	}, r.calls)
	require.Equal(t, ran{out: "3 made, 0 passed over, 0 failed\n", calls: r.calls}, r)
}

func TestScriptKeepsFlags(t *testing.T) {
	s, _ := smallLibrary()
	i := judged("x.img", "raw", diskOf(align.DataDisk, part(1, 63, "ntfs")))
	i.Assess([]string{"--sector-size", "512"})
	Rank([]*Image{i})
	r := run(t, t.TempDir(), scriptOf(t, s, []*Image{i}), "")
	require.Equal(t, [][]string{{"align", "--sector-size", "512", "x.img", "x-aligned.img"}}, r.calls)
}

// A failing image does not stop the others, and is counted.
func TestScriptGoesOnAfterAFailure(t *testing.T) {
	s, images := smallLibrary()
	r := run(t, t.TempDir(), scriptOf(t, s, images), `case $2 in *boot*) exit 4 ;; esac`)
	require.Len(t, r.calls, 3)
	require.Equal(t, 1, r.code)
	require.Equal(t, "2 made, 0 passed over, 1 failed\n", r.out)
	require.Equal(t, "failed: number 3\n", r.errs)
}

// A stopped script is run again: existing files stay, even a dangling link.
func TestScriptCanBeRunAgain(t *testing.T) {
	s, _ := smallLibrary()
	dir := t.TempDir()
	var images []*Image
	for _, name := range []string{"a.vmdk", "b.vmdk", "-c.vmdk"} {
		images = append(images, judged(name, "vmdk", diskOf(align.DataDisk, part(1, 63, "ntfs"))))
	}
	Rank(images)
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "b-aligned.vmdk")))
	script, act := scriptOf(t, s, images), `: >"$3"`
	require.Contains(t, script, "Names are relative")
	r := run(t, dir, script, act)
	require.Equal(t, [][]string{{"align", "./-c.vmdk", "./-c-aligned.vmdk"}, {"align", "a.vmdk", "a-aligned.vmdk"}},
		r.calls)
	require.Equal(t, "3: passed over, it exists: b-aligned.vmdk\n2 made, 1 passed over, 0 failed\n", r.out)
	r = run(t, dir, script, act)
	require.Empty(t, r.calls)
	require.Zero(t, r.code)
	require.Contains(t, r.out, "0 made, 3 passed over, 0 failed\n")
}

// Ctrl-C reaches trueup, which cleans up and ends by itself; the script must not continue with the next.
func TestScriptCanBeInterrupted(t *testing.T) {
	disktest.DefaultSignals()
	s, images := smallLibrary()
	for signal, code := range map[string]int{"INT": 130, "TERM": 143} {
		r := run(t, t.TempDir(), scriptOf(t, s, images), `kill -`+signal+` $PPID; exit 1`)
		require.Len(t, r.calls, 1)
		require.Equal(t, code, r.code)
	}
}

// If the script is passed to bash on standard input, trueup does not read the rest of it.
func TestScriptOnStandardInput(t *testing.T) {
	s, images := smallLibrary()
	act, script := saved(t, "trueup", stub+"cat"), scriptOf(t, s, images)
	t.Setenv("TRUEUP", act)
	t.Setenv("LOG", os.DevNull)
	require.Equal(t, "3 made, 0 passed over, 0 failed\n", disktest.RunInput(t, script, "bash"))
}

// A dry run prints commands that can be run.
func TestScriptDryRun(t *testing.T) {
	s, images := hostiles()
	script := scriptOf(t, s, images)
	dry := run(t, t.TempDir(), script, "", "DRY_RUN=1")
	require.Empty(t, dry.calls)
	require.Zero(t, dry.code)
	for _, r := range dry.out {
		require.True(t, r == '\n' || r >= ' ' && r < 0x7f, "%q", r)
	}
	wet := run(t, t.TempDir(), script, "")
	lines := strings.Split(strings.TrimSpace(dry.out), "\n")
	again := run(t, t.TempDir(), strings.Join(lines[:len(lines)-1], "\n"), "")
	require.NotEmpty(t, wet.calls)
	require.Equal(t, wet.calls, again.calls)
}

// Any image names reach trueup unchanged, and nothing else is run.
func TestScriptOfHostileNames(t *testing.T) {
	s, images := hostiles()
	script := scriptOf(t, s, images)
	var want [][]string
	seen := map[string]bool{}
	for _, i := range images {
		dest := report.CopyName(i.ExactPath())
		if i.Priority == nil || i.Accepted != nil || len(i.Refusals()) > 0 || seen[dest] {
			continue
		}
		seen[dest] = true
		want = append(want, []string{"align", argument(i.ExactPath()), argument(dest)})
	}
	require.Len(t, want, 2*len(hostile))
	dir := t.TempDir()
	r := run(t, dir, script, "")
	require.Empty(t, r.errs)
	require.Equal(t, want, r.calls)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// Two images whose copies have the same name must not count as done.
func TestScriptWithTwoCopiesOfOneName(t *testing.T) {
	s, _ := smallLibrary()
	images := []*Image{labelled("/t/a!x.vmdk"), labelled("/t/b!x.vmdk")}
	Rank(images)
	script := scriptOf(t, s, images)
	require.Equal(t, [][]string{{"align", "--to", "raw", "/t/a!x.vmdk", "/t/x-aligned.vmdk"}},
		run(t, t.TempDir(), script, "").calls)
	require.Contains(t, script, "# 2. /t/b!x.vmdk\n")
	require.Contains(t, script, "not realigned: the copy would have the name of that of number 1.")
}

// shellcheck reports nothing.
func TestScriptIsClean(t *testing.T) {
	for name, library := range map[string]func() (*Summary, []*Image){
		"small": smallLibrary, "hostile": hostiles, "empty": func() (*Summary, []*Image) { return NewSummary(), nil },
	} {
		s, images := library()
		path := saved(t, "fix.sh", scriptOf(t, s, images))
		require.Empty(t, disktest.Run(t, "bash", "-n", path), name)
		require.Empty(t, disktest.Run(t, "shellcheck", path), name)
	}
}

// An interrupted scan writes an incomplete script, which states it, and its totals are those of its images.
func TestHeaderOfTheScript(t *testing.T) {
	s, images := smallLibrary()
	s.Complete = false
	states := []boot.State{boot.Hibernated, boot.NotKnown}
	for _, i := range images {
		if i.Priority != nil && i.Accepted == nil && len(i.Disks) > 0 && len(states) > 0 {
			i.Disks[0].Guest = &report.Guest{State: states[0]}
			states = states[1:]
		}
	}
	script := scriptOf(t, s, images)
	require.Contains(t, script, "# The scan was interrupted, so it has not seen all images.\n")
	require.Contains(t, script, "# It writes 3 aligned copies, the most urgent first")
	require.Contains(t, script, "# No copy can be made of 3 images as they are; 1 image was accepted.")
	require.Contains(t, script, "#   guest hibernated\n")
	require.Contains(t, script, "#   guest unknown\n")
	require.NotContains(t, script, "Names are relative")
	require.NotContains(t, scriptOf(t, s, nil), "\ncopy ")
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
		f, err := ParseTemplate(c.name, c.text)
		require.NoError(t, err)
		s, images := smallLibrary()
		var b strings.Builder
		require.NoError(t, f.Write(&b, &Report{Summary: s, Images: slices.Values(images), Fail: Off4K}))
		require.Equal(t, c.want, b.String(), c.text)
	}
}

// An error has its position, and comes before the scan if possible.
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

// A template gets the objects of the JSON, with omitted fields, and with safe texts.
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

// holds compares the JSON of a value with the data of a template.
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
