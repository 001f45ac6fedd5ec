// Outcome runs a command of `go test -json` and prints its result: a line for each package, the whole output of failing
// tests, and at the end the number of skipped ones with their reasons. With -later FILE it writes the tests for `make
// test-all` to FILE: a package and a pattern for `go test -run` per line.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disktest"
)

func main() {
	later := flag.String("later", "", "write the tests that run in make test-all to `FILE`")
	flag.Parse()
	code, err := run(*later, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "outcome:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(later string, command []string) (code int, err error) {
	if len(command) == 0 {
		return 2, errors.New("usage: outcome [-later FILE] go test -json …")
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	c := newCollector(os.Stdout)
	err = c.read(out)
	ended := cmd.Wait()
	if exit, failed := errors.AsType[*exec.ExitError](ended); failed {
		code, ended = exit.ExitCode(), nil
	}
	c.summarize()
	if later != "" {
		err = errors.Join(err, os.WriteFile(later, []byte(c.later()), 0o644))
	}
	return code, errors.Join(err, ended)
}

// event is a line of `go test -json`: see `go doc test2json`, and `go help buildjson` for errors of the compiler.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string
}

type test struct{ pkg, name string }

// top returns the top-level test of a subtest.
func (t test) top() test {
	t.name, _, _ = strings.Cut(t.name, "/")
	return t
}

type collector struct {
	out     io.Writer
	output  map[test][]string // of running and failed tests
	skipped map[string][]test // by reason
	ran     int
}

func newCollector(out io.Writer) *collector {
	return &collector{out: out, output: map[test][]string{}, skipped: map[string][]test{}}
}

// read reads events until the end; it prints other lines.
func (c *collector) read(r io.Reader) error {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) == nil {
			c.take(e)
		} else {
			fmt.Fprintf(c.out, "%s", line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (c *collector) take(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "output":
		c.output[t] = append(c.output[t], e.Output)
	case "build-output":
		fmt.Fprint(c.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			c.endPackage(t, e)
			return
		}
		c.ran++
		if e.Action == "skip" {
			reason := reasonOf(c.output[t])
			c.skipped[reason] = append(c.skipped[reason], t)
		}
		if e.Action != "fail" {
			delete(c.output, t)
		}
	}
}

// endPackage prints the output of tests of a package that failed or did not end, and that of the package: `ok`, `FAIL`
// or the panic that ended it.
func (c *collector) endPackage(pkg test, e event) {
	var tests []test
	for t := range c.output {
		if t.pkg == pkg.pkg && t.name != "" {
			tests = append(tests, t)
		}
	}
	slices.SortFunc(tests, func(a, b test) int { return strings.Compare(a.name, b.name) })
	for _, t := range tests {
		if e.Action == "fail" {
			fmt.Fprint(c.out, strings.Join(c.output[t], ""))
		}
		delete(c.output, t)
	}
	if e.Action != "skip" { // without tests
		fmt.Fprint(c.out, strings.TrimPrefix(strings.Join(c.output[pkg], ""), "PASS\n"))
	}
	if e.FailedBuild != "" {
		fmt.Fprintf(c.out, "FAIL\t%s [build failed]\n", pkg.pkg)
	}
	delete(c.output, pkg)
}

// position matches the file and line before a message of a test.
var position = regexp.MustCompile(`^\s+[\w.-]+\.go:\d+: `)

// reasonOf returns the reason of disktest for a skipped test, or its first message that is not the log of a script.
func reasonOf(output []string) string {
	first := "no reason given"
	for _, line := range slices.Backward(output) {
		if !position.MatchString(line) || strings.Contains(line, "testscript.go:") {
			continue
		}
		first = strings.TrimSpace(position.ReplaceAllString(line, ""))
		if strings.HasSuffix(first, disktest.Missing) || strings.HasSuffix(first, disktest.Later) {
			return first
		}
	}
	return first
}

// summarize prints the number of tests that ran, and the reasons of the others.
func (c *collector) summarize() {
	missing, all := 0, 0
	for reason, tests := range c.skipped {
		all += len(tests)
		if strings.HasSuffix(reason, disktest.Missing) {
			missing += len(tests)
		}
	}
	fmt.Fprintf(c.out, "%d tests and parts of tests, %d of them skipped\n", c.ran, all)
	for _, reason := range slices.Sorted(maps.Keys(c.skipped)) {
		fmt.Fprintf(c.out, "%6d  %s\n", len(c.skipped[reason]), reason)
	}
	if missing > 0 {
		fmt.Fprintln(c.out, "To install what is missing (Debian, as root): make tools")
	}
}

// later lists the tests of the last tier, sorted: IMPORT PATH, a space and ^(TestA|TestB)$.
func (c *collector) later() string {
	names := map[string][]string{}
	for reason, tests := range c.skipped {
		if !strings.HasSuffix(reason, disktest.Later) {
			continue
		}
		for _, t := range tests {
			names[t.pkg] = append(names[t.pkg], t.top().name)
		}
	}
	var b strings.Builder
	for _, pkg := range slices.Sorted(maps.Keys(names)) {
		slices.Sort(names[pkg])
		fmt.Fprintf(&b, "%s ^(%s)$\n", pkg, strings.Join(slices.Compact(names[pkg]), "|"))
	}
	return b.String()
}
