package disktest

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// clockCalls lists calls that watch the clock. WaitFor and Spent replace them.
var clockCalls = []string{
	"time.Sleep", "time.Since", "time.Tick", "require.Eventually", "require.Never",
	"assert.Eventually", "assert.Never",
}

// limitCalls lists calls whose last argument is a time limit. It must be Patience.
var limitCalls = []string{"context.WithTimeout", "context.WithDeadline", "time.After"}

// timeFlags lists flags that end a program after a time. Less than ten minutes needs a reason.
var timeFlags = regexp.MustCompile(`^--?(timeout|runtime|seconds)(?:=(.+))?$`)

// clockAllowed lists calls that synchronize and assert nothing, each with its reason.
var clockAllowed = map[string]string{
	"cmd/trueup/scan_test.go time.Sleep":     "a writer that is not to fill the disk",
	"cmd/trueup/bench_test.go --runtime":     "the length of a measurement of which no number is judged",
	"cmd/trueup/trial_test.go --seconds":     "processor time of an emulated guest, on the clock ten times as much",
	"cmd/trueup/handover_test.go time.Sleep": "a pause between two faults",
	"cmd/trueup/handover_test.go time.Since": "two bounds of a time that the program measured meanwhile",
	"cmd/trueup/kill_test.go time.Since": "what is usual, to spread kills over it; a kill that misses " +
		"is repeated",
	"fleet/fleetcmd/chaos_test.go context.WithTimeout":     "a list that is asked for again",
	"fleet/fleetcmd/chaos_test.go time.After":              "a pause between two faults",
	"fleet/fleetcmd/figures_test.go time.Since":            "figures for the manual",
	"fleet/queue/outage_test.go context.WithTimeout":       "the silence after which a server gives a job away",
	"fleet/queue/queue_test.go context.WithTimeout":        "a server that is away does not answer",
	"internal/nbd/client_test.go time.Since":               "the clock of a synctest bubble; no machine delays it",
	"internal/nbd/client_test.go time.Sleep":               "the same",
	"internal/nbd/clients_test.go time.Since":              "the same",
	"internal/nbd/clients_test.go time.Sleep":              "the same",
	"internal/trial/fake_test.go time.Sleep":               "a machine under load, whose answers take long",
	"internal/scan/sandbox/confine_test.go time.Since":     "a figure for a benchmark",
	"internal/scan/sandbox/worker_main_test.go time.Sleep": "a worker that never answers",
}

// clocksIn lists the calls of a file that watch the clock.
func clocksIn(t *testing.T, path string, src any) (found []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, src, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		if name := nameOf(n); slices.Contains(clockCalls, name) {
			found = append(found, name)
		}
		call, ok := n.(*ast.CallExpr)
		if ok && slices.Contains(limitCalls, nameOf(call.Fun)) &&
			!slices.Contains([]string{"disktest.Patience", "Patience"}, nameOf(call.Args[len(call.Args)-1])) {
			found = append(found, nameOf(call.Fun))
		}
		var words []ast.Expr
		if list, isList := n.(*ast.CompositeLit); isList {
			words = list.Elts
		} else if ok {
			words = call.Args
		}
		for i := range words {
			if flag := shortFlag(words[i:]); flag != "" {
				found = append(found, flag)
			}
		}
		return true
	})
	return found
}

// shortFlag returns the flag of the first of some words if it ends a program in less than ten minutes.
func shortFlag(words []ast.Expr) string {
	texts := [2]string{}
	for i, word := range words[:min(2, len(words))] {
		if literal, ok := word.(*ast.BasicLit); ok {
			texts[i] = strings.Trim(literal.Value, "\"`")
		}
	}
	m := timeFlags.FindStringSubmatch(texts[0])
	if m == nil {
		return ""
	}
	limit, err := time.ParseDuration(cmp.Or(m[2], texts[1]))
	if err != nil {
		limit, err = time.ParseDuration(cmp.Or(m[2], texts[1]) + "s")
	}
	if err == nil && limit >= 10*time.Minute {
		return ""
	}
	return "--" + m[1]
}

// nameOf returns a name with its package, or an empty string for another expression.
func nameOf(n ast.Node) string {
	switch n := n.(type) {
	case *ast.Ident:
		return n.Name
	case *ast.SelectorExpr:
		if x, ok := n.X.(*ast.Ident); ok {
			return x.Name + "." + n.Sel.Name
		}
	}
	return ""
}

// Tests wait for events, however busy the machine is, and limit work by counts.
func TestTestsDoNotWatchTheClock(t *testing.T) {
	root := moduleRoot(t)
	seen := map[string]bool{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		rel, err := filepath.Rel(root, path)
		for _, call := range clocksIn(t, path, nil) {
			key := filepath.ToSlash(rel) + " " + call
			seen[key] = true
			require.Contains(t, clockAllowed, key,
				"wait for the event (disktest.WaitFor), or count processor time (disktest.Spent)")
		}
		return err
	}))
	for key := range clockAllowed {
		require.True(t, seen[key], "the list of exceptions names %s, which is gone", key)
	}
}

func TestClocksAreFound(t *testing.T) {
	const src = "package x\nfunc f() { time.Sleep(1); g(time.Since(start)); require.Eventually(t, h, 1, 1); " +
		"time.Now(); context.WithTimeout(ctx, disktest.Patience); <-time.After(time.Minute); " +
		"run(\"--runtime\", \"100ms\", \"-timeout=60m\", \"--seconds=9\") }\n"
	const found = "time.Sleep time.Since require.Eventually time.After --runtime --seconds"
	require.Equal(t, strings.Fields(found), clocksIn(t, "x.go", src))
}
