package results

import (
	"strings"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/text"
)

// A terminal has cells: most characters take one, those of Chinese two, those that join the one before none.

const ellipsis = "…"

// cells returns how many of them a text takes, without escape sequences.
func cells(s string) int { return text.StringWidthWithoutEscSequences(s) }

// tail returns the longest end of s that fits into n cells.
func tail(s string, n int) string {
	for over := cells(s) - n; over > 0 && s != ""; {
		r, size := utf8.DecodeRuneInString(s)
		over -= text.RuneWidth(r)
		s = s[size:]
	}
	return s
}

// shorten makes a path fit into n cells; 0 is no limit. It drops the middle: the name of the file stays as long as it
// fits, and of a name that does not, beginning and end.
func shorten(path string, n int) string {
	if n <= 0 || cells(path) <= n {
		return path
	}
	slash := strings.LastIndexByte(path, '/')
	name, mark := path[slash+1:], ellipsis+"/"
	if room := n - cells(mark) - cells(name); slash > 0 && room >= 0 {
		return text.Trim(path[:slash], room) + mark + name
	}
	room := max(n-cells(ellipsis), 0)
	end := tail(name, room-room/2)
	return text.Trim(name, room-cells(end)) + ellipsis + end
}

// pad fills s with blanks up to n cells, in front or behind.
func pad(s string, n int, right bool) string {
	blanks := strings.Repeat(" ", max(n-cells(s), 0))
	if right {
		return blanks + s
	}
	return s + blanks
}
