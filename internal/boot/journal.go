package boot

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// ShutDownFirst is the remedy for a journal that is to be replayed.
const ShutDownFirst = "shut the guest down cleanly first"

// Replays tells that a file system writes once more, at the next mount, what its journal holds.
func Replays(v *volume.Volume) bool {
	return slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Code == "ext-journal" })
}

// Reverts tells that such a journal can bring an old boot sector back: in blocks larger than what ext leaves to boot code, boot sector and
// superblock are one block, and a journal holds whole blocks. Spec: Linux, fs/ext4/super.c, ext4_commit_super; jbd2, "descriptor block".
func (g *Guest) Reverts(number int) bool {
	p := g.Numbered(number)
	return p.Number != 0 && p.Volume.BlockSize > AreaLen && Replays(p.Volume)
}

// OldSector returns why a boot sector under such a journal is not rewritten.
func OldSector(number int) string {
	return fmt.Sprintf("the journal of partition %d is to be replayed, which can bring its old boot sector back", number)
}
