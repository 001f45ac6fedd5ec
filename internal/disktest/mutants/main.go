// Command mutants deletes each check, flush and patch of the pipe in turn, and runs the tests that reach it: one must
// fail. docs/dev/mutations.md describes how to run it.
package main

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// room is a package of the pipe. Its own tests run first, then others while a mutant survives.
type room struct {
	path  string // below internal
	logic bool   // include every condition, and every operand of && and ||
	files string // pattern of its file names; empty: all
	pure  bool   // it writes nothing: no call has an effect other than its result
	also  []suite
}

// Tests that run after those of a package. Tests of the program as a process cover files and publication.
var (
	planTests    = suite{"internal/plan", ""}
	imageTests   = suite{"internal/image", ""}
	storeTests   = suite{"internal/image/store", ""}
	pipeTests    = suite{"internal/realign", ""}
	processTests = suite{
		"cmd/trueup",
		"^Test(CallsOfAnAlignFail|DestOn|Force|Partial|Places|Scripts|TwoRuns)",
	}
	diskTests = []suite{{"internal/layout", ""}, planTests, pipeTests}
	bootTests = []suite{
		{"internal/boot/firmware", ""},
		{"internal/boot/linux", ""},
		{"internal/boot/windows", ""},
		{"internal/layout", ""},
		planTests,
	}
	fileTests = []suite{imageTests, storeTests, pipeTests, processTests}
	// Tests of the program that change a disk in place, with those that kill it.
	placeTests = suite{
		"cmd/trueup", "^Test(DiskBrought|InPlace|Journal|KeepNone|Killed|Move|Replace|Scripts)",
	}
	spaceTests = suite{"cmd/trueup", "^TestSkipFree"}
)

// writers are the writing files of a format. The hostile images cover its reader.
const writers = "*write*.go"

// rooms are the packages of the pipe, except those that write nothing, such as nbd and opinion.
var rooms = []room{
	{path: "realign", also: []suite{processTests}},
	{path: "verify", logic: true, pure: true, also: diskTests},
	{path: "plan", logic: true, pure: true, also: diskTests},
	{path: "diskcopy", also: diskTests},
	{path: "disk", pure: true, also: diskTests},
	{path: "table", pure: true, also: diskTests},
	{path: "layout", pure: true, also: []suite{planTests, pipeTests}},
	{path: "boot", pure: true, also: bootTests},
	{path: "boot/firmware", pure: true, also: bootTests},
	{path: "boot/linux", pure: true, also: bootTests},
	{path: "boot/windows", pure: true, also: bootTests},
	{path: "sys", also: []suite{{"internal/image/gate", ""}, storeTests, pipeTests, processTests}},
	{path: "image", also: []suite{storeTests, pipeTests, processTests}},
	{path: "image/gate", also: fileTests},
	{path: "image/store", also: []suite{pipeTests, processTests, {"cmd/trueup", "Device"}}},
	{path: "image/ova", also: []suite{{"internal/exchange", ""}, pipeTests, processTests}},
	{path: "image/driver", also: []suite{imageTests, storeTests, pipeTests}},
	{path: "image/qcow2", files: writers, also: []suite{imageTests, storeTests, pipeTests}},
	{path: "image/vdi", files: writers, also: []suite{imageTests, storeTests, pipeTests}},
	{path: "image/vhd", files: writers, also: []suite{imageTests, storeTests, pipeTests}},
	{path: "image/vhdx", files: writers, also: []suite{imageTests, storeTests, pipeTests}},
	{path: "image/vmdk", files: writers, also: []suite{imageTests, storeTests, pipeTests}},
	{path: "journal", also: []suite{{"internal/inplace", ""}, {"internal/exchange", ""}, pipeTests, placeTests}},
	{path: "exchange", also: []suite{pipeTests, placeTests}},
	{path: "inplace", also: []suite{pipeTests, placeTests}},
	{path: "freespace", logic: true, pure: true, also: []suite{pipeTests, spaceTests}},
}

//go:embed testdata/accepted.txt
var acceptedText string

// accepted lists mutants that nothing can notice, with the reasons.
func accepted() map[string]string {
	out := map[string]string{}
	reason := ""
	for line := range strings.Lines(acceptedText) {
		line = strings.TrimSpace(line)
		if why, ok := strings.CutPrefix(line, "# "); ok {
			reason = why
		} else if line != "" {
			out[line] = reason
		}
	}
	return out
}

type options struct {
	cache, packages, share, only, run string
	own, fresh, list, figures         bool
}

func main() {
	var o options
	flag.StringVar(&o.cache, "cache", "",
		"folder for builds and results (default: trueup-mutants in the cache of the user)")
	flag.StringVar(&o.packages, "packages", "",
		"packages below internal, with commas between them (default: all of the pipe)")
	flag.StringVar(&o.share, "share", "1/1", "which part of the mutants is tried")
	flag.StringVar(&o.only, "only", "", "try only the mutants at FILE:LINE")
	flag.StringVar(&o.run, "run", "", "of the package of a mutant, run only the tests that match (default: all)")
	flag.BoolVar(&o.own, "own", false, "run only the tests of the package of a mutant")
	flag.BoolVar(&o.fresh, "fresh", false, "forget the results of earlier runs")
	flag.BoolVar(&o.figures, "figures", false, "print the figures of earlier runs and try none")
	flag.BoolVar(&o.list, "list", false, "list the mutants and try none")
	flag.Parse()
	if err := run(os.Stdout, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out io.Writer, o options) error {
	b, err := o.bench()
	if err != nil {
		return err
	}
	chosen, err := o.choose(b.mutants)
	if err != nil {
		return err
	}
	if o.list {
		for _, m := range chosen {
			fmt.Fprintf(out, "%s %s\n", b.place(m), m.key())
		}
		return nil
	}
	r, err := openResults(filepath.Join(b.cache, "results"), o.fresh)
	if err != nil {
		return err
	}
	defer r.file.Close()
	left := 0
	if !o.figures {
		if left, err = b.all(out, chosen, r); err != nil {
			return err
		}
	}
	table(out, b, r)
	for key := range accepted() {
		if !slices.ContainsFunc(b.mutants, func(m mutant) bool { return m.key() == key }) {
			fmt.Fprintf(out, "accepted, but there is no such mutant: %s\n", key)
			left++
		}
	}
	if left > 0 {
		return fmt.Errorf("%d mutants survive", left)
	}
	return nil
}

// bench builds the mutants of the module in the current folder.
func (o options) bench() (*bench, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	cache := o.cache
	if cache == "" {
		if cache, err = os.UserCacheDir(); err != nil {
			return nil, err
		}
		cache = filepath.Join(cache, "trueup-mutants")
	}
	for _, dir := range []string{"bin", "tmp", "traces"} {
		if err := os.MkdirAll(filepath.Join(cache, dir), 0o700); err != nil {
			return nil, err
		}
	}
	for i := range rooms {
		if o.own {
			rooms[i].also = nil
		}
	}
	b, err := newBench(root, cache)
	if err == nil {
		b.own = o.run
	}
	return b, err
}

// choose returns the mutants selected by the options.
func (o options) choose(all []mutant) ([]mutant, error) {
	var part, parts int
	if _, err := fmt.Sscanf(o.share, "%d/%d", &part, &parts); err != nil || part < 1 || parts < part {
		return nil, errors.New("-share wants N/M")
	}
	var out []mutant
	for i, m := range all {
		named := o.packages == "" || slices.Contains(strings.Split(o.packages, ","), m.room)
		file, line, _ := strings.Cut(o.only, ":")
		there := o.only == "" || strings.HasSuffix(m.path, file) && (line == "" || line == fmt.Sprint(m.from))
		if named && there && i%parts == part-1 {
			out = append(out, m)
		}
	}
	return out, nil
}

// all tries mutants and returns the number of survivors that are not accepted.
func (b *bench) all(out io.Writer, chosen []mutant, r *results) (left int, err error) {
	fine := accepted()
	suites := map[suite]*loaded{}
	for _, m := range chosen {
		if was, known := r.of(m); !known || was.By == "" {
			if err := b.try(m, suites, r); err != nil {
				return left, err
			}
		}
		now, _ := r.of(m)
		why, ok := fine[m.key()]
		switch {
		case now.By == "" && !ok:
			fmt.Fprintf(out, "%s survives %d tests: %s\n", b.place(m), now.Reached, m.key())
			left++
		case now.By != "" && ok:
			fmt.Fprintf(out, "accepted (%s), but %s of %s notices it: %s\n", why, now.By, now.Suite, m.key())
			left++
		}
	}
	return left, nil
}

// place formats the position of a mutant.
func (b *bench) place(m mutant) string {
	return fmt.Sprintf("%s:%d", strings.TrimPrefix(m.path, b.root+"/"), m.from)
}

// try runs the suites of a mutant until a test fails.
func (b *bench) try(m mutant, suites map[suite]*loaded, r *results) error {
	x := result{Key: m.key(), Code: m.code}
	i := slices.IndexFunc(rooms, func(r room) bool { return r.path == m.room })
	own := suite{"internal/" + m.room, b.own}
	for n, s := range append([]suite{own}, rooms[i].also...) {
		if s == own && n > 0 {
			continue
		}
		l, ok := suites[s]
		if !ok {
			var err error
			if l, err = b.load(s); err != nil {
				return err
			}
			suites[s] = l
		}
		x.Sum += s.run + "/" + l.sum
		if was, _ := r.of(m); strings.HasPrefix(was.Sum, x.Sum) {
			x.Reached = was.Reached
			continue // these tests were tried
		}
		by, reached, err := b.kill(m, l)
		if err != nil {
			return err
		}
		x.Reached += reached
		if by != "" {
			x.By, x.Suite = by, s.path
			break
		}
	}
	return r.put(x)
}

// table prints the figures of each package.
func table(out io.Writer, b *bench, r *results) {
	fine := accepted()
	fmt.Fprintf(out, "| package | mutants | killed | of these by other packages | accepted | survive | not tried |\n"+
		"|---|--:|--:|--:|--:|--:|--:|\n")
	var sum figures
	for _, room := range rooms {
		var f figures
		for _, m := range b.mutants {
			if m.room != room.path {
				continue
			}
			f.mutants++
			switch x, tried := r.of(m); {
			case x.By != "":
				f.killed++
				if x.Suite != "internal/"+m.room {
					f.others++
				}
			case fine[m.key()] != "":
				f.accepted++
			case tried:
				f.left++
			default:
				f.untried++
			}
		}
		fmt.Fprintf(out, "| %s %s\n", room.path, f)
		sum = figures{
			sum.mutants + f.mutants, sum.killed + f.killed, sum.others + f.others, sum.accepted + f.accepted,
			sum.left + f.left, sum.untried + f.untried,
		}
	}
	fmt.Fprintf(out, "| sum %s\n", sum)
}

// figures counts mutants by outcome.
type figures struct{ mutants, killed, others, accepted, left, untried int }

func (f figures) String() string {
	return fmt.Sprintf("| %d | %d | %d | %d | %d | %d |", f.mutants, f.killed, f.others, f.accepted, f.left, f.untried)
}
