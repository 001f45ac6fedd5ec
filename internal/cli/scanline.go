package cli

import (
	"fmt"
	"strconv"
	"strings"
)

// Widths of the bar in characters, with its ends. One that is shorter tells less than the numbers beside it.
const (
	longestBar  = 32
	shortestBar = 8
)

// line shows the counts in at most width characters. Where there is little room the least of them goes first: words, how many are
// aligned, the rate.
func (c scanCounts) line(width int) string {
	more := ""
	if c.Walking {
		more = "+" // there may be more
	}
	left := fmt.Sprintf("scan %d/%d%s ", c.Done, c.Found, more)
	forms := c.forms()
	for _, right := range forms {
		if room := width - len(left) - len(right); room >= shortestBar {
			return left + drawBar(int64(c.Done), int64(c.Found), min(room, longestBar)) + right
		}
	}
	if line := left + forms[len(forms)-1][1:]; len(line) <= width {
		return line
	}
	return left[:max(min(len(left), width), 0)]
}

// forms say the same at different lengths, the longest first.
func (c scanCounts) forms() []string {
	rate, left := c.rate()+"/s", ""
	if c.Left != nil {
		left = " " + clock(*c.Left)
	}
	bad := words(counted{c.Below, "below"}, counted{c.Misaligned, "off"}, counted{c.Failed, "errors"})
	all := words(counted{c.Aligned, "aligned"}, counted{c.Below, "below"}, counted{c.Misaligned, "off"}, counted{c.Failed, "errors"}, counted{c.Orphans, orphans})
	long := left
	if long != "" {
		long += " left"
	}
	return []string{
		" " + rate + long + ": " + all,
		" " + rate + left + " " + bad,
		left + " " + bad,
		" " + words(counted{c.Misaligned, "off"}, counted{c.Failed, "err"}),
	}
}

const orphans = "orphans"

// counted is a number, and what it counts in the plural.
type counted struct {
	n    int
	what string
}

// words are counts with a comma between. Orphans are only told when there are some.
func words(cs ...counted) string {
	var out []string
	for _, c := range cs {
		if c.n > 0 || c.what != orphans {
			if c.n == 1 {
				c.what = strings.TrimSuffix(c.what, "s")
			}
			out = append(out, strconv.Itoa(c.n)+" "+c.what)
		}
	}
	return strings.Join(out, ", ")
}

// rate is in images a second; a slow datastore does less than one.
func (c scanCounts) rate() string {
	if c.Rate >= 10 {
		return strconv.FormatFloat(c.Rate, 'f', 0, 64)
	}
	return strconv.FormatFloat(c.Rate, 'f', 1, 64)
}

// clock is a time as 02:05 or 1:02:05.
func clock(seconds int64) string {
	if seconds < 3600 {
		return fmt.Sprintf("%02d:%02d", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
}

// drawBar shows how much of a total is done, in so many characters.
func drawBar(done, total int64, width int) string {
	inside := width - 2
	full := 0
	if total > 0 {
		full = int(float64(inside) * min(float64(done)/float64(total), 1))
	}
	tip := ""
	if full > 0 && full < inside {
		full, tip = full-1, ">"
	}
	return "[" + strings.Repeat("=", full) + tip + strings.Repeat("-", inside-full-len(tip)) + "]"
}
