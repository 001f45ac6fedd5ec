package report

import "strings"

// AlignCommand is the command line that makes an aligned copy of the image or package at path.
func AlignCommand(path string, fs []string) string {
	return "trueup align" + flags(fs) + " " + shellQuote(path) + " " + shellQuote(AlignedName(path))
}

// AlignedName suggests a name for the copy. A disk inside of a package gets one beside the package.
func AlignedName(path string) string {
	if i := strings.LastIndexByte(path, '!'); i >= 0 {
		inside := path[i+1:]
		path = path[:strings.LastIndexByte(path[:i], '/')+1] + inside[strings.LastIndexByte(inside, '/')+1:]
	}
	dot := strings.LastIndexByte(path, '.')
	if dot <= strings.LastIndexByte(path, '/') {
		return path + "-aligned"
	}
	return path[:dot] + "-aligned" + path[dot:]
}

// shellQuote makes a path that can be pasted into a shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./+=:,@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 && s[0] != '-' {
		return s
	}
	if s != "" && s[0] == '-' {
		s = "./" + s
	}
	return "'" + strings.ReplaceAll(Safe(s), "'", `'\''`) + "'"
}
