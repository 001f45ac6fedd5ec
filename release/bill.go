package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
)

// module is one that is linked into a program of the release.
type module struct {
	path, version, sum string
	in                 []string // names of programs
	licences           []licence
}

// licence is a file of a module.
type licence struct {
	name string
	text []byte
	ids  []string // SPDX identifiers of what is in it
}

// core is the module that all programs share.
const core = "github.com/trueup/trueup"

// modules lists what is linked into any program, sorted, with its licences.
func (r *release) modules() ([]module, error) {
	seen := map[string]module{}
	for _, p := range products {
		for _, t := range r.built {
			info, err := buildinfo.ReadFile(t.file(p.name))
			if err != nil {
				return nil, err
			}
			std := &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}
			for _, d := range append(info.Deps, std) {
				if d.Path == core {
					continue // the fleet requires it
				}
				m := module{path: d.Path, version: d.Version, sum: d.Sum, in: seen[d.Path].in}
				if !slices.Contains(m.in, p.name) {
					m.in = append(m.in, p.name)
				}
				seen[d.Path] = m
			}
		}
	}
	folders, err := r.folders()
	if err != nil {
		return nil, err
	}
	var out []module
	for _, m := range seen {
		if m.licences, err = licencesIn(folders[m.path]); err != nil {
			return nil, err
		}
		if len(m.licences) == 0 {
			return nil, fmt.Errorf("%s %s has no file with a licence that is known", m.path, m.version)
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b module) int { return strings.Compare(a.path, b.path) })
	return out, nil
}

// folders has where the sources of each module lie.
func (r *release) folders() (map[string]string, error) {
	cmd := exec.Command("go", "list", "-m", "-json", "all")
	cmd.Dir, cmd.Stderr, cmd.Env = r.root, os.Stderr, append(os.Environ(), "GOFLAGS=",
		"GOWORK="+filepath.Join(r.root, "go.work"))
	text, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return nil, err
	}
	out := map[string]string{"std": strings.TrimSpace(string(root))}
	for d := json.NewDecoder(strings.NewReader(string(text))); ; {
		var m struct{ Path, Dir string }
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		out[m.Path] = m.Dir
	}
}

var licenceName = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|notice|patents|copyright)([-.].*)?$`)

// licencesIn reads the files at the top of a module that say how it may be used.
func licencesIn(folder string) (out []licence, err error) {
	if folder == "" {
		return nil, nil
	}
	list, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	known := false
	for _, e := range list {
		if !e.Type().IsRegular() || !licenceName.MatchString(e.Name()) {
			continue
		}
		l := licence{name: e.Name()}
		if l.text, err = os.ReadFile(filepath.Join(folder, e.Name())); err != nil {
			return nil, err
		}
		for _, m := range licensecheck.Scan(l.text).Match {
			if !slices.Contains(l.ids, m.ID) {
				l.ids = append(l.ids, m.ID)
			}
		}
		known = known || len(l.ids) > 0
		out = append(out, l)
	}
	if !known {
		return nil, nil
	}
	return out, nil
}

// licences writes the texts of the licences of all that is linked.
func (r *release) licences() error {
	list, err := r.modules()
	if err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString("The programs are linked with these libraries, each under its own licence.\n")
	for _, m := range list {
		for _, l := range m.licences {
			fmt.Fprintf(&text, "\n%s\n%s %s, %s, in %s\n%[1]s\n\n%[6]s\n", strings.Repeat("=", 80), m.path, m.version,
				l.name, strings.Join(m.in, " and "), strings.TrimSpace(string(l.text)))
		}
	}
	return os.WriteFile(filepath.Join(r.shared, "THIRD-PARTY.txt"), []byte(text.String()), 0o644)
}

// choices lists the licences of a module. A text that SPDX does not know stands as a name.
func (m module) choices() *cyclonedx.Licenses {
	var out cyclonedx.Licenses
	seen := map[string]bool{}
	for _, l := range m.licences {
		for _, id := range l.ids {
			if seen[id] {
				continue
			}
			seen[id] = true
			known := &cyclonedx.License{ID: id}
			if id == "GooglePatentsFile" {
				known = &cyclonedx.License{Name: "Additional IP Rights Grant (Patents)"}
			}
			out = append(out, cyclonedx.LicenseChoice{License: known})
		}
	}
	return &out
}

// bill writes the bill of materials, CycloneDX 1.6: the programs and all that each is linked with.
func (r *release) bill() error {
	list, err := r.modules()
	if err != nil {
		return err
	}
	b := cyclonedx.NewBOM()
	self := "pkg:golang/github.com/trueup/trueup@" + r.version
	b.Metadata = &cyclonedx.Metadata{
		Timestamp: r.time.Format("2006-01-02T15:04:05Z"),
		Component: &cyclonedx.Component{
			BOMRef: self, Type: cyclonedx.ComponentTypeApplication, Name: "trueup", Version: r.version,
			PackageURL: self, Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
		},
	}
	var all []cyclonedx.Component
	var programs []string
	linked := map[string][]string{}
	for _, p := range products {
		ref := self + "#cmd/" + p.name
		programs = append(programs, ref)
		all = append(all, cyclonedx.Component{
			BOMRef: ref, Type: cyclonedx.ComponentTypeApplication, Name: p.name, Version: r.version, PackageURL: ref,
			Licenses: b.Metadata.Component.Licenses,
		})
	}
	for _, m := range list {
		c := m.component()
		all = append(all, c)
		for _, name := range m.in {
			linked[name] = append(linked[name], c.BOMRef)
		}
	}
	needs := []cyclonedx.Dependency{{Ref: self, Dependencies: &programs}}
	for i, p := range products {
		refs := linked[p.name]
		needs = append(needs, cyclonedx.Dependency{Ref: programs[i], Dependencies: &refs})
	}
	b.Components, b.Dependencies = &all, &needs
	return r.write("trueup-"+r.number()+".cdx.json", func(w io.Writer) error {
		return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(b)
	})
}

// component returns the module as a part of the bill.
func (m module) component() cyclonedx.Component {
	ref := "pkg:golang/" + m.path + "@" + m.version
	c := cyclonedx.Component{
		BOMRef: ref, Type: cyclonedx.ComponentTypeLibrary, Name: m.path, Version: m.version, PackageURL: ref,
		Licenses: m.choices(),
	}
	if m.sum != "" {
		c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: m.sum}}
	}
	return c
}
