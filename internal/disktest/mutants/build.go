package main

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

const (
	module     = "github.com/trueup/trueup/"
	switchPath = module + "internal/mutant"
)

//go:embed testdata/mutant.go
var switchText string

// bench has every mutant of the rooms in one build: an environment variable switches one on.
type bench struct {
	root    string // of the module
	cache   string
	overlay string // a file for the option -overlay
	sum     string // of the sources of the mutants
	own     string // pattern of the tests of a mutant's package
	program string // a command with its mutants, if it has been built
	mutants []mutant
	failed  []string // keys of mutants that do not compile
}

// newBench writes the sources of all mutants, and omits those that do not compile.
func newBench(root, cache string) (*bench, error) {
	b := &bench{root: root, cache: cache, overlay: filepath.Join(cache, "overlay.json")}
	skip := map[string]bool{}
	for range 5 {
		if err := b.write(skip); err != nil {
			return nil, err
		}
		build := b.command("go", "build", "-overlay", b.overlay, "-gcflags=-e", "./...")
		out, err := build.CombinedOutput()
		if err == nil {
			return b, nil
		}
		if !b.blame(out, skip) {
			return nil, fmt.Errorf("%q: %w\n%s", build.Args, err, out)
		}
	}
	return nil, fmt.Errorf("mutants do not compile")
}

// copyOf is where the mutants of a source file are.
func (b *bench) copyOf(path string) string {
	return filepath.Join(b.cache, "source", strings.ReplaceAll(strings.TrimPrefix(path, b.root+"/"), "/", "_"))
}

// write finds the mutants and writes the overlay.
func (b *bench) write(skip map[string]bool) error {
	b.mutants = nil
	replace := map[string]string{}
	sum := sha256.New()
	put := func(path, text string) error {
		name := b.copyOf(path)
		replace[path] = name
		fmt.Fprintf(sum, "%s\n%s\n", path, text)
		if was, err := os.ReadFile(name); err == nil && string(was) == text {
			return nil
		}
		return os.WriteFile(name, []byte(text), 0o600)
	}
	if err := os.MkdirAll(filepath.Join(b.cache, "source"), 0o700); err != nil {
		return err
	}
	for i, r := range rooms {
		files, err := find(b.root, i, r, skip, &b.mutants)
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := put(f.path, f.mutated()); err != nil {
				return err
			}
		}
	}
	if err := put(filepath.Join(b.root, "internal/mutant/mutant.go"), switchText); err != nil {
		return err
	}
	b.sum = hex.EncodeToString(sum.Sum(nil))
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(b.overlay, text, 0o600)
}

var errorPlace = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: `)

// blame adds the mutants on the lines of compile errors to skip, and reports whether there are any.
func (b *bench) blame(out []byte, skip map[string]bool) bool {
	found := false
	for _, place := range errorPlace.FindAllSubmatch(out, -1) {
		line, _ := strconv.Atoi(string(place[2]))
		for _, m := range b.mutants {
			if b.copyOf(m.path) == string(place[1]) && m.from <= line && line <= m.to && !skip[m.key()] {
				skip[m.key()], found = true, true
				b.failed = append(b.failed, m.key())
			}
		}
	}
	return found
}

// command makes a command that runs in the module, with the overlay for those that build.
func (b *bench) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = b.root
	c.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false -overlay="+b.overlay, "TRUEUP_SHARES=all",
		"TMPDIR="+filepath.Join(b.cache, "tmp"))
	return c
}
