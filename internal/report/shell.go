package report

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/shell"
)

// AlignCommand returns the command line that makes an aligned copy of the image or package at path. It names the format
// if the suffix of path belongs to another one.
func AlignCommand(path, format string, fs []string) string {
	if named := image.SuffixFormat(AlignedName(path)); named != "" && named != format &&
		image.SuffixFormat("."+format) == format {
		fs = append(slices.Clone(fs), "--to", format)
	}
	return "trueup align" + flags(fs) + " " + shell.Quote(path) + " " + shell.Quote(AlignedName(path))
}

// AlignPackageCommand returns the same for a package of any name; the name of the copy shows that it is a package.
func AlignPackageCommand(path string, fs []string) string {
	return "trueup align" + flags(fs) + " " + shell.Quote(path) + " " + shell.Quote(AlignedPackage(path))
}

// ReplaceCommand returns the command line that exchanges the image at path for its aligned copy.
func ReplaceCommand(path string, fs []string) string {
	return "trueup align --replace" + flags(fs) + " " + shell.Quote(path)
}

// AlignedPackage suggests a name for the copy of a package. It is an archive, also that of an OVF with loose files:
// beside their originals these could not keep their names, which the OVF has.
func AlignedPackage(path string) string {
	path = AlignedName(path)
	if dot := strings.LastIndexByte(path, '.'); dot > strings.LastIndexByte(path, '/') {
		path = path[:dot]
	}
	return strings.TrimSuffix(path, AlignedMark) + AlignedMark + ".ova"
}

// AlignedMark follows the name of the source in the name of a copy.
const AlignedMark = "-aligned"

// AlignedName suggests a name for the copy. A disk inside of a package gets one beside the package, a block device one
// in the current folder.
func AlignedName(path string) string {
	if strings.HasPrefix(path, "/dev/") && !strings.HasPrefix(path, "/dev/shm/") {
		return path[strings.LastIndexByte(path, '/')+1:] + AlignedMark + ".img"
	}
	if i := strings.LastIndexByte(path, '!'); i >= 0 {
		inside := path[i+1:]
		path = path[:strings.LastIndexByte(path[:i], '/')+1] + inside[strings.LastIndexByte(inside, '/')+1:]
	}
	dot := strings.LastIndexByte(path, '.')
	if dot <= strings.LastIndexByte(path, '/') {
		return path + AlignedMark
	}
	if strings.EqualFold(path[dot:], ".ovf") {
		return path[:dot] + AlignedMark + ".ova" // see AlignedPackage
	}
	return path[:dot] + AlignedMark + path[dot:]
}

// powerShellQuote quotes a path for PowerShell, in which all kinds of single quotes end a text; "" where one line of
// harmless characters cannot hold it.
func powerShellQuote(s string) string {
	if strings.ContainsFunc(s, shell.Dangerous) || !utf8.ValidString(s) {
		return ""
	}
	if strings.HasPrefix(s, "-") {
		s = "./" + s
	}
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(`-_./\:`, r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	double := strings.NewReplacer("'", "''", "\u2018", "\u2018\u2018", "\u2019", "\u2019\u2019", "\u201a", "\u201a\u201a",
		"\u201b", "\u201b\u201b")
	return "'" + double.Replace(s) + "'"
}
