package boot

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// ShutDownFirst is the remedy for a journal that is to be replayed.
const ShutDownFirst = "shut the guest down cleanly first"

// Replays reports whether the next mount of a file system writes what its journal holds.
func Replays(v *volume.Volume) bool {
	return slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Code == "ext-journal" })
}

// Reverts reports whether such a journal can bring an old boot sector back. A journal holds whole blocks, and a block
// larger than what ext leaves to boot code holds boot sector and superblock. Spec: Linux, fs/ext4/super.c,
// ext4_commit_super; jbd2, "descriptor block".
func (g *Guest) Reverts(number int) bool {
	p := g.Numbered(number)
	return p.Number != 0 && p.Volume.BlockSize > AreaLen && Replays(p.Volume)
}

// OldSector returns why a boot sector under such a journal is not rewritten.
func OldSector(number int) string {
	return fmt.Sprintf("the journal of partition %d is to be replayed, which can bring its old boot sector back", number)
}
