package report

import "strings"

// alignedName suggests a name for the copy.
func alignedName(path string) string {
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
