package scan

import (
	"context"
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
)

// clonezilla collects names of a folder that Clonezilla may have written: the partition table of each disk (sda-pt.sf,
// sda-pt.parted) lies beside the contents of partitions and volumes (sda1.ntfs-ptcl-img.gz.aa,
// vg-root.ext4-ptcl-img.zst.aa).
type clonezilla struct {
	disks  []string
	pieces bool
}

var (
	cloneTable = regexp.MustCompile(`^([a-z]+[a-z0-9]*)-pt\.(sf|parted)$`)
	clonePiece = regexp.MustCompile(`\.[a-z0-9_+-]+-(ptcl-)?img(\.|$)`)
)

// maxCloneDisks bounds the disks that are named.
const maxCloneDisks = 8

// add notes a name of the folder.
func (z *clonezilla) add(name string) {
	z.pieces = z.pieces || clonePiece.MatchString(name)
	m := cloneTable.FindStringSubmatch(name)
	if m == nil || len(z.disks) == maxCloneDisks || slices.Contains(z.disks, m[1]) {
		return
	}
	z.disks = append(z.disks, m[1])
	slices.Sort(z.disks)
}

// what returns a description of the folder, empty unless it is an image of Clonezilla.
func (z *clonezilla) what() string {
	if len(z.disks) == 0 || !z.pieces {
		return ""
	}
	return "Clonezilla image of disk " + strings.Join(z.disks, ", ")
}

// restoreClone is the remedy for such an image.
const restoreClone = "restore it with Clonezilla to a disk first, and look at that"

var errEnough = errors.New("enough was read")

// clonezillaFolder returns what of a folder by its first names.
func clonezillaFolder(ctx context.Context, path string) string {
	const most = 1000
	var z clonezilla
	n := 0
	err := eachEntry(ctx, path, func(d fs.DirEntry) error {
		if z.add(d.Name()); n == most {
			return errEnough
		}
		n++
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return ""
	}
	return z.what()
}

// joinPieces makes one image of the pieces in a folder of Clonezilla. The first that may have a row has that of all.
func (c *contents) joinPieces(files []*found) {
	what := c.clone.what()
	if what == "" {
		return
	}
	var first *found
	for _, x := range files {
		if !clonePiece.MatchString(x.Name) || x.failed != nil ||
			(x.id.Kind != image.Packed && x.id.Kind != image.Unsupported) {
			continue
		}
		x.clone = what
		switch {
		case first == nil && x.wanted:
			first = x
		case first != nil:
			c.owners[x.Name] = append(c.owners[x.Name], first)
		}
	}
}
