package ovf

import (
	"encoding/xml"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// A virtual system names its disks by resources of its hardware. Spec: DSP0243 8.3, "HostResource element":
// ovf:/disk/ID.
const (
	systemElement   = "VirtualSystem"
	resourceElement = "HostResource"
	diskResource    = "disk/"
)

// openSystem notes the start of a virtual system.
func (p *parser) openSystem() error {
	if p.path[len(p.path)-1] != systemElement || slices.Contains(p.path[:len(p.path)-1], systemElement) {
		return nil
	}
	if len(p.env.Systems) == maxItems {
		return p.bad(ondisk.ErrLimit, "more than %d virtual systems", maxItems)
	}
	p.env.Systems = append(p.env.Systems, nil)
	return nil
}

// text takes the text of an element, which matters where a virtual system names a disk.
func (p *parser) text(content xml.CharData) error {
	if len(p.env.Systems) == 0 || len(p.path) == 0 || p.path[len(p.path)-1] != resourceElement ||
		!slices.Contains(p.path, systemElement) {
		return nil
	}
	name := strings.TrimSpace(string(content))
	id, ok := strings.CutPrefix(strings.TrimPrefix(strings.TrimPrefix(name, "ovf:"), "/"), diskResource)
	if !ok {
		return nil
	}
	if p.resources++; p.resources > maxItems {
		return p.bad(ondisk.ErrLimit, "more than %d disks of virtual systems", maxItems)
	}
	last := len(p.env.Systems) - 1
	p.env.Systems[last] = append(p.env.Systems[last], id)
	return nil
}

// System returns the number of the first virtual system that has a disk; ok is false when none names it. An envelope
// of one system, or of none, has all its disks there.
func (e *Envelope) System(disk string) (n int, ok bool) {
	if len(e.Systems) < 2 {
		return 0, true
	}
	n = slices.IndexFunc(e.Systems, func(ids []string) bool { return slices.Contains(ids, disk) })
	return n, n >= 0
}
