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
)

const (
	maintainer = "The trueup authors <trueup@users.noreply.github.com>"
	homepage   = "https://github.com/trueup/trueup"
	summary    = "offline inspector and realigner for virtual-disk images"
	long       = `trueup finds virtual disks whose partitions do not start on a block
boundary of the storage below, and writes an aligned copy with the file
systems moved and the guest still able to boot. It opens VMDK, VHD, VHDX,
qcow2, raw and OVA images.`
)

// overrides are what lintian is to accept.
const overrides = `# A Go program without cgo needs no library of the system.
trueup: statically-linked-binary [usr/bin/trueup]
# It is no package of Debian, and no wish for one is open there.
trueup: initial-upload-closes-no-bugs [usr/share/doc/trueup/changelog.Debian.gz:1]
`

// kinds are the kinds of packages, with what of their lines differs.
var kinds = []struct {
	name       string
	recommends []string // programs that some options call
	license    string   // empty: it stands in a file
}{
	{"deb", []string{"qemu-utils"}, ""},
	{"rpm", []string{"qemu-img"}, "Apache-2.0"},
	{"apk", nil, "Apache-2.0"},
}

// packages makes a package of each kind for each processor of Linux.
func (r *release) packages() error {
	for _, p := range r.built {
		if p.system != "linux" {
			continue
		}
		for _, k := range kinds {
			contents, err := r.installed(p, k.name)
			if err != nil {
				return err
			}
			info := nfpm.WithDefaults(&nfpm.Info{
				Name: "trueup", Arch: p.arch, Platform: "linux", Version: r.number(), Release: "1",
				VersionSchema: "none", Section: "admin", Priority: "optional", Maintainer: maintainer,
				Description: summary + "\n" + long, Vendor: "trueup", Homepage: homepage, License: k.license,
				MTime: r.time, DisableGlobbing: true,
				Overridables: nfpm.Overridables{Contents: contents, Recommends: k.recommends, Umask: 0o022},
			})
			info.RPM.Summary, info.RPM.BuildHost = summary, "localhost"
			if err := nfpm.PrepareForPackager(info, k.name); err != nil {
				return err
			}
			packager, err := nfpm.Get(k.name)
			if err != nil {
				return err
			}
			info.Target = packager.ConventionalFileName(info)
			err = r.write(info.Target, func(w io.Writer) error { return packager.Package(info, w) })
			if err != nil {
				return fmt.Errorf("%s: %w", info.Target, err)
			}
		}
	}
	return nil
}

// installed lists the files of a package.
func (r *release) installed(p program, kind string) (out nfpmfiles.Contents, err error) {
	add := func(source, dest string, mode os.FileMode) {
		out = append(out, &nfpmfiles.Content{
			Source: source, Destination: dest, FileInfo: &nfpmfiles.ContentFileInfo{Mode: mode, MTime: r.time},
		})
	}
	add(p.path, "/usr/bin/trueup", 0o755)
	names, err := files(r.shared)
	if err != nil {
		return nil, err
	}
	const texts = "/usr/share/doc/trueup/"
	for _, name := range names {
		source, dest := filepath.Join(r.shared, filepath.FromSlash(name)), "/usr/"+name
		switch {
		case strings.HasPrefix(name, manFolder):
			if source, err = r.gzipped(source); err != nil {
				return nil, err
			}
			dest += ".gz"
		case name == zsh && kind == "deb":
			dest = "/usr/share/zsh/vendor-completions/_trueup"
		case !strings.HasPrefix(name, "share/"):
			dest = texts + name
		}
		add(source, dest, 0o644)
	}
	if kind != "deb" {
		add(filepath.Join(r.root, "LICENSE"), "/usr/share/licenses/trueup/LICENSE", 0o644)
		return out, nil
	}
	changes, err := r.gzipped(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	debian, err := r.debianChanges()
	if err != nil {
		return nil, err
	}
	rights, err := r.copyright()
	if err != nil {
		return nil, err
	}
	excuse := filepath.Join(filepath.Dir(r.shared), "overrides")
	if err := os.WriteFile(excuse, []byte(overrides), 0o644); err != nil {
		return nil, err
	}
	add(excuse, "/usr/share/lintian/overrides/trueup", 0o644)
	add(changes, texts+"changelog.gz", 0o644)
	add(debian, texts+"changelog.Debian.gz", 0o644)
	add(rights, texts+"copyright", 0o644)
	return out, nil
}

// gzipped returns a packed copy of a file, without name and time.
func (r *release) gzipped(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return r.pack(filepath.Base(path), text)
}

func (r *release) pack(name string, text []byte) (path string, err error) {
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
func (r *release) debianChanges() (string, error) {
	text := fmt.Sprintf("trueup (%s-1) unstable; urgency=medium\n\n  * Release %s; see changelog.gz.\n\n -- %s  %s\n",
		r.number(), r.version, maintainer, r.time.Format("Mon, 02 Jan 2006 15:04:05 -0700"))
	return r.pack("changelog.Debian", []byte(text))
}

// copyright makes the file of that name (Debian policy 12.5).
func (r *release) copyright() (string, error) {
	text := []string{
		"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
		"Upstream-Name: trueup", "Source: " + homepage,
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
