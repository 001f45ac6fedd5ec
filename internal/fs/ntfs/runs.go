package ntfs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// extent is a decoded element of a run list, in clusters.
type extent struct {
	length int64
	start  int64 // -1: a hole
}

const extentHole = -1

var errRunList = errors.New("broken run list")

// runList decodes the runs of an attribute, and calls add for each. A byte has the sizes of length (low half) and start
// (high half). A start counts from the one before, and a zero byte ends the list. Spec: Linux-NTFS documentation, "Data
// Runs".
func runList(b []byte, clusters int64, add func(extent) error) error {
	last := int64(0)
	for len(b) > 0 && b[0] != 0 {
		n, m := int(b[0]&15), int(b[0]>>4)
		if n == 0 || n > 8 || m > 8 || 1+n+m > len(b) {
			return fmt.Errorf("%w: header %#02x, with %d bytes behind it", errRunList, b[0], len(b)-1)
		}
		e := extent{length: signed(b[1 : 1+n]), start: extentHole}
		if e.length <= 0 {
			return fmt.Errorf("%w: %d clusters", errRunList, e.length)
		}
		if m > 0 {
			delta := signed(b[1+n : 1+n+m])
			if delta < -last || delta >= clusters-last || e.length > clusters-last-delta {
				return fmt.Errorf("%w: %d clusters from cluster %d%+d of %d", errRunList, e.length, last, delta,
					clusters)
			}
			last += delta
			e.start = last
		}
		if err := add(e); err != nil {
			return err
		}
		b = b[1+n+m:]
	}
	return nil
}

// signed decodes a little-endian number of 1 to 8 bytes.
func signed(b []byte) int64 {
	n := int64(int8(b[len(b)-1])) //nolint:gosec // the byte with the sign
	for _, c := range slices.Backward(b[:len(b)-1]) {
		n = n<<8 | int64(c)
	}
	return n
}

// value is the value of an attribute, assembled from its parts.
type value struct {
	fs      *fileSystem
	growing bool // the value is the MFT: the known part of it leads to the rest

	found       bool
	at          int64 // of its last part in the volume, for errors
	resident    bool
	flags       uint16
	size        int64
	initialised int64
	clusters    int64           // known so far, and the first one of the next part
	runs        []guestfile.Run // by Off, holes left out; they may go on behind size
}

// add adds the next part of the value, an attribute of rec.
func (v *value) add(rec *record, a *attr) error {
	switch {
	case v.found && (v.resident || a.NonResident == 0):
		return rec.broken(a.at, "attribute", fmt.Sprintf("%#x again", a.Type), "one value")
	case a.LowestVCN != v.clusters:
		return rec.broken(a.at+0x10, "lowest cluster", a.LowestVCN, fmt.Sprintf("%d, which comes next", v.clusters))
	}
	v.flags |= a.Flags
	v.at = rec.places[0].Off + a.at
	if a.NonResident == 0 {
		v.found, v.resident, v.size = true, true, int64(a.residentHead.Size)
		v.initialised = v.size
		v.runs = rec.where(a.at+int64(a.Offset), v.size)
		return nil
	}
	if !v.found {
		v.found, v.size, v.initialised = true, a.nonResidentHead.Size, a.Initialised
	}
	if err := runList(a.runs, v.fs.clusters, v.extend); err != nil {
		if errors.Is(err, errRunList) {
			return rec.broken(a.at+int64(a.RunOffset), "runs", err.Error(), "a run list")
		}
		return err
	}
	if v.clusters != a.HighestVCN+1 && (v.clusters != 0 || a.HighestVCN != 0) {
		return rec.broken(a.at+0x18, "highest cluster", a.HighestVCN,
			fmt.Sprintf("%d, as there are runs", v.clusters-1))
	}
	if !v.growing {
		return nil
	}
	var err error
	v.fs.mft, err = v.partial()
	return err
}

// extend appends a run.
func (v *value) extend(e extent) error {
	if e.length > v.fs.vcnLimit()-v.clusters {
		return fmt.Errorf("%w: %d clusters behind %d", errRunList, e.length, v.clusters)
	}
	if e.start != extentHole {
		if len(v.runs) == guestfile.MaxRuns {
			return fmt.Errorf("ntfs file: %w of %d runs", ondisk.ErrLimit, guestfile.MaxRuns)
		}
		v.runs = append(v.runs, guestfile.Run{
			Off: v.clusters * v.fs.cluster, Len: e.length * v.fs.cluster,
			At: e.start * v.fs.cluster,
		})
	}
	v.clusters += e.length
	return nil
}

// partial returns the MFT as far as its runs are known.
func (v *value) partial() (*guestfile.File, error) {
	if err := v.fs.budget.Work.Spend(guestfile.RunCost * int64(len(v.runs))); err != nil {
		return nil, err
	}
	return guestfile.NewFile(v.fs.volume, "$MFT", min(v.initialised, v.clusters*v.fs.cluster), v.runs)
}

// plain refuses values whose stored bytes are not those of the file.
func (v *value) plain(path string) error {
	switch {
	case !v.found:
		return fmt.Errorf("file %.256q: %w: it has no unnamed data", path, ondisk.ErrUnsupported)
	case v.flags&attrEncrypted != 0:
		return fmt.Errorf("file %.256q: %w: it is encrypted", path, ondisk.ErrUnsupported)
	case v.flags&attrCompressed != 0 && !v.resident:
		return fmt.Errorf("file %.256q: %w: it is compressed", path, ondisk.ErrUnsupported)
	}
	return nil
}

// file returns the value as a file, after checking its sizes and runs.
func (v *value) file(path string) (*guestfile.File, error) {
	broken := func(field string, got, want any) error {
		return ondisk.Field(fmt.Sprintf("ntfs file %.256q", path), field, v.at, got, want)
	}
	switch {
	case !v.found:
		return nil, broken("attributes", "none", "one with the value")
	case !v.resident && v.size > v.clusters*v.fs.cluster:
		return nil, broken("size", v.size, fmt.Sprintf("at most the %d clusters of its runs", v.clusters))
	}
	if err := v.fs.budget.Work.Spend(guestfile.RunCost * int64(len(v.runs))); err != nil {
		return nil, err
	}
	byPlace := slices.SortedFunc(slices.Values(v.runs), func(a, b guestfile.Run) int { return cmp.Compare(a.At, b.At) })
	for i := 1; i < len(byPlace); i++ {
		if a, b := byPlace[i-1], byPlace[i]; a.At+a.Len > b.At {
			return nil, broken("runs", fmt.Sprintf("bytes %d and %d both at %#x", a.Off+b.At-a.At, b.Off, b.At),
				"a place of its own for each byte")
		}
	}
	var runs []guestfile.Run
	for _, r := range v.runs {
		if r.Len = min(r.Len, v.initialised-r.Off); r.Len > 0 {
			runs = append(runs, r)
		}
	}
	return guestfile.NewFile(v.fs.volume, path, v.size, runs)
}
