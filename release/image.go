package main

import (
	"archive/tar"
	"bytes"
	"io"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/trueup/trueup/internal/cli"
)

// user runs the program in a container. It has no name, since there is no /etc/passwd.
const user = "65532:65532"

// images makes the images of all products.
func (r *release) images() error {
	for _, p := range products {
		if err := r.image(p); err != nil {
			return err
		}
	}
	return nil
}

// image makes an image for containers as an OCI layout in one archive: the program with what it needs, licences and a
// folder for temporary files, for each processor of Linux. "skopeo copy oci-archive:FILE …" and "podman load" take it.
func (r *release) image(p product) (err error) {
	folder := filepath.Join(filepath.Dir(r.shared), "oci", p.name)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, t := range r.built {
		if t.system != "linux" {
			continue
		}
		img, err := r.imageOf(t, p)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: t.arch},
		}})
	}
	tag := strings.NewReplacer("~", "-", "+", "-").Replace(r.number()) // what a tag can have
	named := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: index, Descriptor: v1.Descriptor{
			Annotations: map[string]string{"org.opencontainers.image.ref.name": p.name + ":" + tag},
		},
	})
	if _, err := layout.Write(folder, named); err != nil {
		return err
	}
	names, err := files(folder)
	if err != nil {
		return err
	}
	var entries []entry
	for _, name := range names {
		entries = append(entries, entry{name, filepath.Join(folder, filepath.FromSlash(name)), 0o644})
	}
	return r.write(p.name+"-"+r.number()+"-oci.tar", func(w io.Writer) error { return r.tar(w, "", entries) })
}

func (r *release) imageOf(t target, p product) (v1.Image, error) {
	var b bytes.Buffer
	if err := r.layer(&b, t, p); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON), mutate.Addendum{Layer: layer, History: v1.History{
		Created: v1.Time{Time: r.time}, CreatedBy: "make release",
	}})
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Created = t.system, t.arch, v1.Time{Time: r.time}
	c.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/" + p.name}, User: user, WorkingDir: "/images",
		Labels: map[string]string{
			"org.opencontainers.image.title": p.name, "org.opencontainers.image.description": p.summary,
			"org.opencontainers.image.version": r.number(), "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source": cli.Homepage,
		},
	}
	return mutate.ConfigFile(img, c)
}

// layer writes the file system of the image.
func (r *release) layer(w io.Writer, t target, p product) error {
	folders := tar.NewWriter(w)
	for _, d := range []struct {
		name string
		mode int64
	}{
		{"images/", 0o755},
		{"tmp/", 0o1777},
		{"usr/", 0o755},
		{"usr/bin/", 0o755},
		{"usr/share/", 0o755},
		{"usr/share/doc/", 0o755},
		{"usr/share/doc/trueup/", 0o755},
		{"var/", 0o755},
		{"var/tmp/", 0o1777},
	} {
		h := &tar.Header{
			Typeflag: tar.TypeDir, Name: d.name, Mode: d.mode, ModTime: r.time, Format: tar.FormatUSTAR,
		}
		if err := folders.WriteHeader(h); err != nil {
			return err
		}
	}
	if err := folders.Flush(); err != nil { // without the end of the archive
		return err
	}
	var entries []entry
	for _, name := range p.programs() {
		entries = append(entries, entry{"usr/bin/" + name, t.file(name), 0o755})
	}
	return r.tar(w, "", append(entries,
		entry{"usr/share/doc/trueup/LICENSE", filepath.Join(r.root, "LICENSE"), 0o644},
		entry{"usr/share/doc/trueup/THIRD-PARTY.txt", filepath.Join(r.shared, "THIRD-PARTY.txt"), 0o644},
	))
}
