package report

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/shell"
)

// commandLine returns the command line of a command of trueup. Flags stand as they are; paths are quoted.
func commandLine(name string, flags []string, paths ...string) string {
	words := append([]string{"trueup", name}, flags...)
	for _, p := range paths {
		words = append(words, shell.Quote(p))
	}
	return strings.Join(words, " ")
}

// AlignCommand returns the command line that makes an aligned copy of the image or package at path. It names the format
// if the suffix of path belongs to another one.
func AlignCommand(path, format string, fs []string) string {
	return alignTo(path, CopyName(path), format, fs)
}

// alignUnpackedCommand is AlignCommand for an image in a compressed file or in an archive, whose name the copy takes
// from that image.
func alignUnpackedCommand(path string, from image.Unpacked, format string, fs []string) string {
	name := from.Member
	if name == "" {
		name = strings.TrimSuffix(from.File, filepath.Ext(from.File))
	}
	folder, _ := filepath.Split(strings.TrimSuffix(path, "!"+from.Member))
	return alignTo(path, CopyName(folder+name[nameAt(name):]), format, fs)
}

func alignTo(path, name, format string, fs []string) string {
	if named := image.SuffixFormat(name); named != "" && named != format &&
		image.SuffixFormat("."+format) == format {
		fs = append(slices.Clone(fs), "--to", format)
	}
	return commandLine("align", fs, path, name)
}

// AlignPackageCommand returns the same for a package of any name; the name of the copy shows that it is a package.
func AlignPackageCommand(path string, fs []string) string {
	return commandLine("align", fs, path, PackageCopyName(path))
}

// ReplaceCommand returns the command line that exchanges the image at path for its aligned copy.
func ReplaceCommand(path string, fs []string) string {
	return commandLine("replace", fs, path)
}

// PackageCopyName suggests a name for the copy of a package. It is an archive, also that of an OVF with loose files:
// beside their originals these could not keep their names, which the OVF has.
func PackageCopyName(path string) string {
	path = CopyName(path)
	if dot := strings.LastIndexByte(path, '.'); dot >= nameAt(path) {
		path = path[:dot]
	}
	return marked(strings.TrimSuffix(path, CopyMark), ".ova")
}

// CopyMark follows the name of the source in the name of a copy.
const CopyMark = "-aligned"

// CopyName suggests a name for the copy. A disk inside of a package gets one beside the package, a block device and an
// image of a server one in the current folder.
func CopyName(path string) string {
	if _, at, ok := strings.Cut(path, "://"); ok {
		at, _, _ = strings.Cut(at, "?")
		at, _, _ = strings.Cut(at, "#")
		_, export, _ := strings.Cut(at, "/")
		return marked(cmp.Or(export[strings.LastIndexByte(export, '/')+1:], "disk"), ".img")
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
		return marked(path, "")
	}
	if strings.EqualFold(path[dot:], ".ovf") {
		return marked(path[:dot], ".ova") // see PackageCopyName
	}
	return marked(path[:dot], path[dot:])
}

// nameAt returns where the last name of a path begins.
func nameAt(path string) int {
	folder, _ := filepath.Split(path)
	return len(folder)
}

// longest is how many bytes a name may have so that no file of a copy needs more than 255 (NAME_MAX of Linux), also
// while it is written: .NAME-flat.vmdk.partial.
const longest = 240

// marked returns the name of a copy. A stem that leaves no room for the mark is cut.
func marked(stem, ext string) string {
	base := nameAt(stem)
	if end := base + max(1, longest-len(CopyMark)-len(ext)); end < len(stem) {
		for end > base+1 && !utf8.RuneStart(stem[end]) {
			end--
		}
		stem = stem[:end]
	}
	return stem + CopyMark + ext
}

// next prints a command to be pasted, on a line of its own where it does not fit behind the words. It is never broken.
func (t *Text) next(words, command string) {
	if t.Width > 0 && Cells(words+command) > t.Width {
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

// command names the next step. A copy that would be refused is not proposed.
func (t *Text) command(r *Inspect) {
	next := slices.Clone(r.Flags)
	if b := cmp.Or(r.Advice.Boundary, r.Boundary); b != align.DefaultBoundary {
		next = append(next, "--boundary", b.String())
	}
	if len(r.Refusals) > 0 {
		f := r.Refusals[0]
		t.Para(2, "An aligned copy would be refused: %s: %s.", f.Subject, SafeMessage(f.Text))
		t.next("To see all of it:           ", commandLine("plan", next, r.Image.Path))
		return
	}
	t.next("To see what would change:   ", commandLine("plan", next, r.Image.Path))
	t.next("To write an aligned copy:   ", r.Image.align(next))
}
