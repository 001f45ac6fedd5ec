package boot

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// Result is what a disk boots with.
type Result struct {
	Found // Chain is in the order of a boot
	Code  *Code
	State State // as Signs show it; empty: not looked for

	unseen map[int]bool // partitions whose files could not be looked into
	boots  bool         // something on the disk looks like the start of a boot
}

// Read identifies the boot code as one of codes, and returns what the finders find.
func Read(g *Guest, codes []*Code, finders []Finder) (*Result, error) {
	g.Code, g.Codes = Identify(codes, g.Sector0), codes
	r := &Result{Code: g.Code}
	for _, f := range finders {
		found, err := f.Find(g)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		r.Add(found)
	}
	r.unseen, r.boots, r.State = g.unseen, r.bootable(g.Partitions), Overall(r.Signs)
	if r.Add(g.missed); !r.boots {
		r.Unseen = nil // the searches are for what a boot needs
	}
	var clash *ondisk.Issue
	if r.Refs, clash = distinct(r.Refs); clash != nil {
		r.Issues = append(r.Issues, *clash)
	}
	return r, r.outlast(g)
}

// Boots reports whether a partition takes part in the boot.
func (r *Result) Boots(partition int) bool {
	return slices.ContainsFunc(r.Chain, func(l Link) bool { return l.Partition == partition })
}
