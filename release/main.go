// Command release makes what a release of trueup consists of: archives for all systems, packages, images for
// containers, a bill of materials, the licences of what is linked, and checksums. The same sources make the same bytes.
//
// It is a module of its own, so that the program itself depends on none of its libraries.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// release is what is made, and of what.
type release struct {
	root    string    // of the sources
	out     string    // a folder that is new
	version string    // as git describe has it, or 0.0.0-COMMIT
	time    time.Time // of all files
	built   []target
	shared  string   // a folder with what all archives have
	flags   []string // more of go build
	systems string   // those that are wanted, with commas between; empty: all
}

func main() {
	r := &release{}
	var pages string
	flag.StringVar(&r.root, "root", "..", "the sources, `FOLDER`")
	flag.StringVar(&r.out, "out", "", "write a release to `FOLDER`, which must not exist")
	flag.StringVar(&pages, "pages", "", "write only manual pages and completions of trueup-fleet to `FOLDER`, in share")
	flag.StringVar(&r.systems, "systems", "", "only for these `SYSTEMS`, such as linux/amd64,windows/amd64")
	flag.StringVar(&r.version, "version", "", "`VERSION` of the release")
	flag.Parse()
	err := r.settle()
	if err == nil {
		if pages != "" {
			err = r.pages(pages, products[1:]...) // trueup writes its own
		} else {
			err = r.make()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// settle finds out version and time.
func (r *release) settle() (err error) {
	if r.version == "" {
		return errors.New("-version is missing, as v1.2.3")
	}
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH, the time of the sources as scripts/version.sh --time prints it: %w", err)
	}
	r.time = time.Unix(seconds, 0).UTC()
	return nil
}

// make makes all parts. The folder appears only when it is complete.
func (r *release) make() (err error) {
	if r.out == "" {
		return errors.New("-out is missing")
	}
	final, err := filepath.Abs(r.out) // programs are built in the folder of the sources
	if err != nil {
		return err
	}
	if _, err := os.Lstat(final); err == nil {
		return fmt.Errorf("%s is there already; remove it, or name another folder", final)
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(final), ".release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stop)
	go func() {
		<-stop
		_ = os.RemoveAll(work)
		fmt.Fprintln(os.Stderr, "release: interrupted; nothing is left of it")
		os.Exit(130)
	}()
	r.out, r.shared = filepath.Join(work, "out"), filepath.Join(work, "shared")
	for _, folder := range []string{r.out, r.shared} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"programs", func() error { return r.build(filepath.Join(work, "bin")) }},
		{"manual pages and completions", func() error { return r.pages(r.shared, products...) }},
		{"licences", r.licences},
		{"bill of materials", r.bill},
		{"archives", r.archives},
		{"packages", r.packages},
		{"images", r.images},
		{"checksums", r.sums},
	} {
		fmt.Fprintln(os.Stdout, step.name)
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return os.Rename(r.out, final)
}

// number is the version without the v of a tag. Packages sort it, so that one without a tag is older than any release.
func (r *release) number() string {
	n := strings.TrimPrefix(r.version, "v")
	if n == "" || n[0] < '0' || n[0] > '9' {
		return "0.0.0~" + n
	}
	return n
}

// files lists the names below a folder, sorted.
func files(folder string) (out []string, err error) {
	err = filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			name, relErr := filepath.Rel(folder, path)
			err = relErr
			out = append(out, filepath.ToSlash(name))
		}
		return err
	})
	slices.Sort(out)
	return out, err
}
