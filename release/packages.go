package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk" // the formats register themselves
	_ "github.com/goreleaser/nfpm/v2/deb"
	nfpmfiles "github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"

	"github.com/trueup/trueup/internal/cli"
)

const maintainer = "The trueup authors <trueup@users.noreply.github.com>"

// overrides are what lintian is to accept, of each NAME.
const overrides = `# A Go program without cgo needs no library of the system.
NAME: statically-linked-binary [usr/bin/NAME]
# It is no package of Debian, and no wish for one is open there.
NAME: initial-upload-closes-no-bugs [usr/share/doc/NAME/changelog.Debian.gz:1]
`

// stops is a script that ends what is removed, with what lintian is to accept of it.
const (
	stops     = "release/stop.sh"
	ofScripts = `# The script serves other systems, too.
NAME: maintainer-script-calls-systemctl *
`
)

// kinds are the kinds of packages, with what of their lines differs.
var kinds = []struct {
	name       string
	recommends []string // programs that some options of trueup call
	license    string   // empty: it stands in a file
	needs      string   // how the same version of another package is named
}{
	{"deb", []string{"qemu-utils"}, "", "%s (= %s-1)"},
	{"rpm", []string{"qemu-img"}, "Apache-2.0", "%s = %s-1"},
	{"apk", nil, "Apache-2.0", "%s=%s-r1"},
}

// packages makes a package of each kind of each product for each processor of Linux.
func (r *release) packages() error {
	for _, t := range r.built {
		if t.system != "linux" {
			continue
		}
		for _, p := range products {
			for i := range kinds {
				if err := r.pack(t, p, i); err != nil {
					return fmt.Errorf("%s, %s: %w", p.name, kinds[i].name, err)
				}
			}
		}
	}
	return nil
}

func (r *release) pack(t target, p product, kind int) error {
	k := kinds[kind]
	contents, err := r.installed(t, p, k.name)
	if err != nil {
		return err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: p.name, Arch: t.arch, Platform: "linux", Version: r.number(), Release: "1",
		VersionSchema: "none", Section: "admin", Priority: "optional", Maintainer: maintainer,
		Description: p.summary + "\n" + p.long, Vendor: "trueup", Homepage: cli.Homepage, License: k.license,
		MTime: r.time, DisableGlobbing: true,
		Overridables: nfpm.Overridables{Contents: contents, Umask: 0o022},
	})
	info.RPM.Summary, info.RPM.BuildHost = p.summary, "localhost"
	if p.needs == "" {
		info.Recommends = k.recommends
	} else {
		info.Depends = []string{fmt.Sprintf(k.needs, p.needs, r.number())}
		if k.name != "apk" { // there is no systemd
			info.Scripts.PreRemove = filepath.Join(r.root, stops)
		}
	}
	if err := nfpm.PrepareForPackager(info, k.name); err != nil {
		return err
	}
	packager, err := nfpm.Get(k.name)
	if err != nil {
		return err
	}
	info.Target = packager.ConventionalFileName(info)
	return r.write(info.Target, func(w io.Writer) error { return packager.Package(info, w) })
}

// installed lists the files of a package.
func (r *release) installed(t target, p product, kind string) (out nfpmfiles.Contents, err error) {
	add := func(source, dest string, mode os.FileMode) {
		out = append(out, &nfpmfiles.Content{
			Source: source, Destination: dest, FileInfo: &nfpmfiles.ContentFileInfo{Mode: mode, MTime: r.time},
		})
	}
	add(t.file(p.name), "/usr/bin/"+p.name, 0o755)
	names, err := files(r.shared)
	if err != nil {
		return nil, err
	}
	texts := "/usr/share/doc/" + p.name + "/"
	for _, name := range names {
		source, dest := filepath.Join(r.shared, filepath.FromSlash(name)), "/usr/"+name
		switch {
		case !p.owns(name):
			continue
		case strings.HasPrefix(name, cli.ManFolder):
			if source, err = r.gzipped(source); err != nil {
				return nil, err
			}
			dest += ".gz"
		case name == cli.Zsh+p.name && kind == "deb":
			dest = "/usr/share/zsh/vendor-completions/_" + p.name
		case !strings.HasPrefix(name, "share/"):
			dest = texts + name
		}
		add(source, dest, 0o644)
	}
	if p.name == "trueup-fleet" {
		if err := r.units(texts+"examples/", add); err != nil {
			return nil, err
		}
	}
	if kind == "deb" {
		return out, r.ofDebian(p, texts, add)
	}
	add(filepath.Join(r.root, "LICENSE"), "/usr/share/licenses/"+p.name+"/LICENSE", 0o644)
	return out, nil
}

// units adds what starts trueup-fleet: units of systemd, and examples for others.
func (r *release) units(examples string, add func(source, dest string, mode os.FileMode)) error {
	folder := filepath.Join(r.root, launchers)
	names, err := files(folder)
	if err != nil {
		return err
	}
	for _, name := range names {
		dest := examples
		if strings.HasSuffix(name, ".service") {
			dest = "/usr/lib/systemd/system/"
		}
		add(filepath.Join(folder, name), dest+name, 0o644)
	}
	return nil
}

// ofDebian adds what only packages of Debian have.
func (r *release) ofDebian(p product, texts string, add func(source, dest string, mode os.FileMode)) error {
	changes, err := r.gzipped(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	debian, err := r.debianChanges(p.name)
	if err != nil {
		return err
	}
	rights, err := r.copyright()
	if err != nil {
		return err
	}
	accepted := overrides
	if p.needs != "" {
		accepted += ofScripts
	}
	excuse := filepath.Join(filepath.Dir(r.shared), "overrides")
	if err := os.WriteFile(excuse, []byte(strings.ReplaceAll(accepted, "NAME", p.name)), 0o644); err != nil {
		return err
	}
	add(excuse, "/usr/share/lintian/overrides/"+p.name, 0o644)
	add(changes, texts+"changelog.gz", 0o644)
	add(debian, texts+"changelog.Debian.gz", 0o644)
	add(rights, texts+"copyright", 0o644)
	return nil
}

// gzipped returns a packed copy of a file, without name and time.
func (r *release) gzipped(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return r.gzip(filepath.Base(path), text)
}

func (r *release) gzip(name string, text []byte) (path string, err error) {
	path = filepath.Join(filepath.Dir(r.shared), name+".gz")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	gz, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	_, err = gz.Write(text)
	return path, errors.Join(err, gz.Close())
}

// debianChanges makes the change log of the package itself (Debian policy 4.4).
func (r *release) debianChanges(name string) (string, error) {
	text := fmt.Sprintf("%s (%s-1) unstable; urgency=medium\n\n  * Release %s; see changelog.gz.\n\n -- %s  %s\n",
		name, r.number(), r.version, maintainer, r.time.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	return r.gzip("changelog.Debian", []byte(text))
}

// copyright makes the file of that name (Debian policy 12.5).
func (r *release) copyright() (string, error) {
	text := []string{
		"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
		"Upstream-Name: trueup", "Source: " + cli.Homepage,
		"Comment: THIRD-PARTY.txt beside this file has the licences of the libraries that are linked.", "",
		"Files: *", "Copyright: " + r.time.Format("2006") + " The trueup authors", "License: Apache-2.0",
		" On Debian systems the Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0.", "",
	}
	path := filepath.Join(filepath.Dir(r.shared), "copyright")
	return path, os.WriteFile(path, []byte(strings.Join(text, "\n")), 0o644)
}

func sortEntries(list []entry) {
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.name, b.name) })
}
