package ext

import (
	"fmt"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Replayed has the files of a volume as the replay of its journal leaves them. None of them can be rewritten. With a
// journal that is not understood they are as on the disk.
type Replayed struct {
	guestfile.FS
	Before guestfile.FS // the files as they are on the disk
	Log    *Log         // nil if Unread is set
	Unread error        // why it is not known what a replay writes
}

// replayed opens the volume as it is after the replay of its journal.
func (f *fileSystem) replayed(b *guestfile.Budget) (*Replayed, error) {
	src, err := f.journal()
	if err != nil {
		return nil, err
	}
	metered := &ondisk.Metered{Source: src, Budget: b.Journals}
	log, err := Read(metered, Volume{Block: f.block, Blocks: f.blocks})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Path, err)
	}
	after, err := openAsIs(b, log.Overlay(f.volume, src))
	if err != nil {
		return nil, fmt.Errorf("after the replay of the journal: %w", err)
	}
	return &Replayed{FS: after, Before: f, Log: log}, nil
}

// journal returns the file that holds the journal.
func (f *fileSystem) journal() (*guestfile.File, error) {
	if s := f.super; s.JournalDevice != 0 || s.JournalInode == 0 {
		return nil, fmt.Errorf("the journal of the ext file system is on another device: %w", ondisk.ErrUnsupported)
	}
	n, err := f.inode(int64(f.super.JournalInode))
	if err != nil {
		return nil, err
	}
	if n.kind() != modeRegular {
		return nil, ondisk.Field(n.what(), "mode of the journal", n.at, fmt.Sprintf("%#x", n.kind()),
			"that of a regular file")
	}
	return f.file(n, n.what())
}
