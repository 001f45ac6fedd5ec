package report

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
)

// AlignCommand returns the command line that makes an aligned copy of the image or package at path. It names the format
// if the suffix of path belongs to another format.
func AlignCommand(path, format string, fs []string) string {
	return alignTo(path, CopyName(path), format, fs)
}

// alignUnpackedCommand is like AlignCommand, for an image in a compressed file or an archive. The copy is named after
// that image.
func alignUnpackedCommand(path string, from image.Unpacked, format string, fs []string) string {
	name := cmp.Or(from.Member, strings.TrimSuffix(from.File, filepath.Ext(from.File)))
	folder, _ := filepath.Split(strings.TrimSuffix(path, "!"+from.Member))
	return alignTo(path, CopyName(folder+name[nameAt(name):]), format, fs)
}

func alignTo(path, name, format string, fs []string) string {
	if named := image.SuffixFormat(name); named != "" && named != format &&
		image.SuffixFormat("."+format) == format {
		fs = append(slices.Clone(fs), "--to", format)
	}
	return shell.Command("align", fs, path, name)
}

// AlignPackageCommand is like AlignCommand, for a package of any name. The suffix of the copy marks it as a package.
func AlignPackageCommand(path string, fs []string) string {
	return shell.Command("align", fs, path, PackageCopyName(path))
}

// PackageCopyName suggests a name for the copy of a package. The copy is always an archive, even for an OVF with loose
// files: next to their originals, the files could not keep the names that the OVF references.
func PackageCopyName(path string) string {
	path = CopyName(path)
	if dot := strings.LastIndexByte(path, '.'); dot >= nameAt(path) {
		path = path[:dot]
	}
	return strings.TrimSuffix(path, CopyMark) + CopyMark + ".ova"
}

// CopyMark follows the name of the source in the name of a copy.
const CopyMark = "-aligned"

// CopyName suggests a name for the copy. The copy of a disk in a package goes next to the package; copies of a block
// device or a remote image go to the working directory.
func CopyName(path string) string {
	if _, at, ok := strings.Cut(path, "://"); ok {
		at, _, _ = strings.Cut(at, "?")
		at, _, _ = strings.Cut(at, "#")
		_, export, _ := strings.Cut(at, "/")
		return cmp.Or(export[strings.LastIndexByte(export, '/')+1:], "disk") + CopyMark + ".img"
	}
	if strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/") {
		return path[nameAt(path):] + CopyMark + ".img"
	}
	if volume := filepath.VolumeName(path); volume != "" && len(volume) == len(path) {
		return path[strings.LastIndexAny(path, `\/`)+1:] + CopyMark + ".img" // a device of Windows
	}
	if i := strings.LastIndexByte(path, '!'); i >= 0 {
		inside := path[i+1:]
		path = path[:nameAt(path[:i])] + inside[nameAt(inside):]
	}
	dot := strings.LastIndexByte(path, '.')
	if dot < nameAt(path) {
		return path + CopyMark
	}
	if strings.EqualFold(path[dot:], ".ovf") {
		return path[:dot] + CopyMark + ".ova" // see PackageCopyName
	}
	return path[:dot] + CopyMark + path[dot:]
}

// nameAt returns the offset of the last name in a path.
func nameAt(path string) int {
	folder, _ := filepath.Split(path)
	return len(folder)
}

// next prints a command to paste, after the words or on its own line if it does not fit. The command is never wrapped.
func (t *Text) next(words, command string) {
	if words != "" && t.Width > 0 && Cells(words+command) > t.Width {
		words = strings.TrimRight(words, " ") + "\n  "
	}
	t.printf("%s%s\n", words, command)
}

// align returns the command line that makes an aligned copy of the image.
func (i Image) align(flags []string) string {
	if i.Unpacked != nil {
		return alignUnpackedCommand(i.Path, *i.Unpacked, i.Format, flags)
	}
	return AlignCommand(i.Path, i.Format, flags)
}

// command prints the next commands. It does not propose a copy that would be refused.
func (t *Text) command(r *Inspect) {
	next := slices.Clone(r.Flags)
	if b := cmp.Or(r.Advice.Boundary, r.Boundary); b != align.DefaultBoundary {
		next = append(next, "--boundary", b.String())
	}
	if len(r.Refusals) > 0 {
		t.Say("next", r)
		t.next("To see all of it:           ", shell.Command("plan", next, r.Image.Path))
		return
	}
	t.next("To see what would change:   ", shell.Command("plan", next, r.Image.Path))
	t.next("To write an aligned copy:   ", r.Image.align(next))
}

// Serve holds the address of a served disk, and its changes.
type Serve struct {
	Head
	Image Image `json:"image"`
	Changes
	AsIs     bool            `json:"as_is"` // the disk of the image, with nothing moved
	URI      string          `json:"uri"`
	Findings []align.Finding `json:"findings"`
}

// NewServe reports on a plan whose disk is served.
func NewServe(h Head, s *realign.Source, p *realign.Plan, uri string) *Serve {
	return &Serve{
		Head: h, Image: NewImage(s.Image), Changes: NewChanges(p), AsIs: p.Converts, URI: uri,
		Findings: orEmpty(p.Notes),
	}
}

// Serve prints the address of a served disk, and how to read it.
func (t *Text) Serve(r *Serve) { t.Say("serve", r) }

// Unfinished is the result of undo, resume or finish on an unfinished run.
type Unfinished struct {
	Head
	Path     string          `json:"path"` // as given by the user
	Kind     string          `json:"kind,omitempty"`
	Text     string          `json:"text"`
	Files    []string        `json:"files"` // of the disk at the path
	Removed  []string        `json:"removed"`
	Findings []align.Finding `json:"findings"`
	ExitCode int             `json:"exit_code"`
}

// NewUnfinished reports on the work of undo, resume or finish.
func NewUnfinished(h Head, w journal.Work, d journal.Done) *Unfinished {
	return &Unfinished{
		Head: h, Path: w.Path, Kind: w.Kind, Text: d.Text, Files: realign.Beside(w.Path, d.Files),
		Removed: realign.Beside(w.Path, d.Removed), Findings: findingsOf("disk", d.Notes),
	}
}

// Unfinished prints the result of undo, resume or finish.
func (t *Text) Unfinished(r *Unfinished) { t.Say("unfinished", r) }
