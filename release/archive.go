package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// launchers has what starts trueup-fleet, below the sources and in archives: docs/fleet.md leads there.
const launchers = "release/fleet"

// entry is a file of an archive.
type entry struct {
	name string // below the archive's own folder
	path string
	mode os.FileMode
}

// contents lists what the archive of a system has.
func (r *release) contents(t target) (out []entry, err error) {
	for _, p := range products {
		path := t.file(p.name)
		out = append(out, entry{filepath.Base(path), path, 0o755})
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md"} {
		out = append(out, entry{name, filepath.Join(r.root, name), 0o644})
	}
	for folder, below := range map[string]string{
		filepath.Join(r.root, "docs"): "docs/", filepath.Join(r.root, launchers): launchers + "/", r.shared: "",
	} {
		names, err := files(folder)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			out = append(out, entry{below + name, filepath.Join(folder, filepath.FromSlash(name)), 0o644})
		}
	}
	sortEntries(out)
	return out, nil
}

// archives packs the programs of each system with their documentation: zip for Windows, tar.gz for all others.
func (r *release) archives() error {
	for _, t := range r.built {
		entries, err := r.contents(t)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("trueup-%s-%s-%s", r.number(), t.system, t.arch)
		pack, end := r.tarGz, ".tar.gz"
		if t.system == "windows" {
			pack, end = r.zip, ".zip"
		}
		if err := r.write(name+end, func(w io.Writer) error { return pack(w, name+"/", entries) }); err != nil {
			return err
		}
	}
	return nil
}

// write makes a file of the release.
func (r *release) write(name string, use func(w io.Writer) error) error {
	f, err := os.OpenFile(filepath.Join(r.out, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(use(f), f.Close())
}

func (r *release) tarGz(w io.Writer, folder string, entries []entry) error {
	gz, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(r.tar(gz, folder, entries), gz.Close())
}

// tar writes entries as root's, with the time of the release.
func (r *release) tar(w io.Writer, folder string, entries []entry) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		st, err := os.Stat(e.path)
		if err != nil {
			return err
		}
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: folder + e.name, Size: st.Size(), Mode: int64(e.mode), ModTime: r.time,
			Format: tar.FormatUSTAR,
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if err := copyInto(t, e.path); err != nil {
			return err
		}
	}
	return t.Close()
}

func (r *release) zip(w io.Writer, folder string, entries []entry) error {
	z := zip.NewWriter(w)
	for _, e := range entries {
		h := &zip.FileHeader{Name: folder + e.name, Method: zip.Deflate, Modified: r.time}
		h.SetMode(e.mode)
		out, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if err := copyInto(out, e.path); err != nil {
			return err
		}
	}
	return z.Close()
}

func copyInto(w io.Writer, path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return errors.Join(err, in.Close())
}

// sums writes the checksums of all files of the release, as sha256sum does.
func (r *release) sums() error {
	names, err := files(r.out)
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range names {
		h := sha256.New()
		if err := copyInto(h, filepath.Join(r.out, name)); err != nil {
			return err
		}
		fmt.Fprintf(&text, "%x  %s\n", h.Sum(nil), name)
	}
	return r.write("SHA256SUMS", func(w io.Writer) error {
		_, err := io.WriteString(w, text.String())
		return err
	})
}
