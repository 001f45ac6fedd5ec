package realign

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
)

// Judged is a copy for the judgement of other programs.
type Judged struct {
	Source *Source
	View   disk.Disk    // the planned disk
	Copy   *image.Image // what was written, read again
	Path   string       // of the file that users name
	// Files has the paths of all files by the names that they will have; nil if they have their names.
	Files map[string]string
}

// judged returns a result that has no name yet.
func judged(s *Source, view disk.Disk, got *image.Image, o target) Judged {
	path, files := o.Unpublished()
	return Judged{Source: s, View: view, Copy: got, Path: path, Files: files}
}
