package report

import (
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// Package is a packaged virtual machine and its files.
type Package struct {
	Path       string        `json:"path"`
	Kind       string        `json:"kind"` // ova, ovf
	Algorithms []string      `json:"manifest_algorithms"`
	Members    []*ova.Member `json:"members"`
}

// PackageDisk is a disk of a package: its entry in the package, and its inspection or error.
type PackageDisk struct {
	Member   string   `json:"member"`
	IDs      []string `json:"disk_ids"`
	Capacity *int64   `json:"capacity_bytes,omitempty"`
	URI      string   `json:"format_uri"`
	Inspect  *Inspect `json:"inspect,omitempty"`
	Error    *Error   `json:"error,omitempty"`
}

// PackageInspect is the result of inspect of a package.
type PackageInspect struct {
	Head
	Package  Package         `json:"package"`
	Disks    []PackageDisk   `json:"disks"`
	Findings []align.Finding `json:"findings"`
	Verdict  align.Verdict   `json:"verdict"`           // the worst of all disks
	Content  align.Content   `json:"content,omitempty"` // if there is nothing to judge
	Flags    []string        `json:"-"`                 // of the command line, for the next commands
	Error    *Error          `json:"error,omitempty"`   // of the first disk with an error
	ExitCode int             `json:"exit_code"`
}

// newPackage describes an opened package.
func newPackage(p *ova.Package) *Package {
	return &Package{Path: p.Path, Kind: p.Kind, Algorithms: p.Algorithms(), Members: orEmpty(p.Members)}
}

// newPackageDisk describes a disk of a package by its entry in the package.
func newPackageDisk(d ova.Disk) PackageDisk {
	out := PackageDisk{Member: d.Member, IDs: []string{}}
	for _, x := range d.Disks {
		out.IDs = append(out.IDs, x.ID)
	}
	if len(d.Disks) == 0 {
		return out
	}
	out.URI = d.Disks[0].Format
	if n := d.Disks[0].Capacity; n >= 0 {
		out.Capacity = &n
	}
	return out
}

// PackageFindings returns findings about a package as a whole.
func PackageFindings(issues []ondisk.Issue) []align.Finding { return findingsOf("package", issues) }

func findingsOf(subject string, issues []ondisk.Issue) []align.Finding {
	out := []align.Finding{}
	for _, i := range issues {
		f := align.FromIssue(i)
		f.Subject = subject
		out = append(out, f)
	}
	return out
}

// PackageInspect prints a package, and each disk like Inspect.
func (t *Text) PackageInspect(r *PackageInspect) {
	if !t.List {
		t.Say("package", r.Package)
		t.findings(r.Findings)
		if len(r.Disks) == 0 {
			t.printf("Nothing to judge: no disk of the package has a file.\n")
		}
	}
	misaligned, possible := false, true
	for i, d := range r.Disks {
		if !t.List || i > 0 {
			t.printf("\n")
		}
		if d.Inspect != nil {
			t.Inspect(d.Inspect)
			misaligned = misaligned || d.Inspect.Verdict.Off() && d.Inspect.Advice.Gainful()
			possible = possible && len(d.Inspect.Refusals) == 0 && d.Inspect.Advice.Action != align.Repair
		} else {
			possible = false
			t.Para(4, "%s %s", t.Paint(Red, "error:"), SafeMessage(d.Error.Message)) // the message names the disk
		}
	}
	if misaligned && possible && !t.List { // one refused disk prevents the copy of the package
		t.next("To write an aligned package: ", AlignPackageCommand(r.Package.Path, r.Flags))
	}
}

// alignPackage prints the result of the copy of a package.
func (t *Text) alignPackage(r *Align) {
	t.findings(r.Findings)
	for _, d := range r.Disks {
		t.findings(d.Findings)
		if len(d.Findings) > 0 {
			t.printf("  (of %s)\n", Safe(d.Source))
		}
	}
	if len(r.Findings) > 0 {
		t.printf("\n")
	}
	if t.Say("aligned package", r); !r.Written {
		return
	}
	for _, d := range r.Disks {
		t.Say("disk of a package", struct {
			Member string
			Disk   *AlignedDisk
		}{r.member(d), d})
		t.moved(d, "    ")
		if t.Verbose {
			t.patches(d.Patches)
		}
	}
	t.Say("files", r)
	if r.Replaced == nil {
		t.next("To use it with vSphere:   ",
			"govc import"+strings.ToLower(path.Ext(r.Dest))+" -ds DATASTORE "+shell.Quote(r.Dest))
	}
	// The files of an OVF have other names.
	if r.Replaced == nil || r.Replaced.Original != "" && r.Package.Kind == "ova" {
		t.next("To prove it again later:   ", shell.Command("verify", r.Flags, r.Source, r.Dest))
	}
}

// leaves reports whether a plan does not move a partition that is off the boundary.
func leaves(disks []*AlignedDisk) bool {
	return slices.ContainsFunc(disks, func(d *AlignedDisk) bool { return finds(d.Findings, "left-alone", "stays") })
}

// acting returns a number, its noun and its verb.
func acting(n int, noun, verb string) string {
	if n == 1 {
		verb += "s"
	}
	return units.Counted(n, noun) + " " + verb
}
