package trial

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/ondisk"
)

// line is one line of a screen or of the serial port.
type line struct {
	at    int    // screen row, or line number in the serial text, from 0
	shown string // as shown
	norm  string // without variable parts
}

// maxSerialLine limits a line of the serial port, in bytes.
const maxSerialLine = 1024

// variable lists parts of a line that differ between two runs of one guest. The surrounding words stay.
var variable = []struct {
	find func() *regexp.Regexp
	put  string
}{
	{ondisk.LazyPattern(`\[[ \d]{1,8}\.\d{3,9}\]`), "[time]"}, // of the kernel log
	{ondisk.LazyPattern(`\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?\b`), "date"},
	{ondisk.LazyPattern(`\b([A-Z][a-z]{2},? )?[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d\b`), "date"},
	{ondisk.LazyPattern(`\b\d{1,2}:\d\d:\d\d([.,]\d+)?\b`), "time"},
	{ondisk.LazyPattern(`\b\d{1,2}:\d\d ?([ap]m?|[AP]M)\b`), "time"},
	// Countdowns of menus and durations.
	{ondisk.LazyPattern(`\b\d+(\.\d+)? ?([num]?s|[mu]?secs?|seconds?|min|minutes?)\b`), "duration"},
	{ondisk.LazyPattern(`automatically: *\d+`), "automatically: duration"},
	{ondisk.LazyPattern(`\b\d+(\.\d+)? ?(MHz|GHz|BogoMIPS)\b|\(lpj=\d+\)|\b\d+(\.\d+)? [KMG]?i?B/s`), "speed"},
	{ondisk.LazyPattern(`\b\d{1,3}(\.\d+)? ?%`), "share"},
	// Process numbers, addresses and identifiers that are random.
	{ondisk.LazyPattern(`\[\d{1,7}\]:`), "[pid]:"},
	{ondisk.LazyPattern(`\b0x[0-9a-f]{8,16}\b|\b[0-9a-f]{16,128}\b|\bSHA256:\S+`), "id"},
	// An aligned copy can be larger than its source.
	{ondisk.LazyPattern(`\b\d+ (512|4096)-byte (logical|physical) blocks.*`), "blocks"},
	{ondisk.LazyPattern(`\b\d+ sectors\b|capacity change from \d+ to \d+`), "sectors"},
	// Spinners and rows of dots.
	{ondisk.LazyPattern(`(^| )[|/\\-]$`), ""},
	{ondisk.LazyPattern(`\[[ *]{3,8}\]`), "[busy]"},
	{ondisk.LazyPattern(`\.{4,}`), "..."},
}

// chatter matches lines of a kernel log that may appear anywhere in it, or be missing.
var chatter = ondisk.LazyPattern(`^\[time\] (random: |clocksource: |tsc: |TSC found unstable |rcu: |hrtimer: |perf: ` +
	`interrupt took|sched_clock: |input: |kworker|audit: |systemd\[pid\]: |Freeing |e1000|usb \S+ ` +
	`(new|New|Product|Manufacturer|SerialNumber)|` +
	// Timers of a slow machine. Source: Linux arch/x86/kernel/apic/io_apic.c, check_timer; apic.c.
	`\.\.MP-BIOS bug: |\.\.\.(trying to set up timer| \(found apic | works\.$)|APIC (calibration|delta) )`)

// trouble matches systemd messages of failures. Kernel messages about timers may contain the same words.
var trouble = ondisk.LazyPattern(`(?i)^\[time\] systemd\[pid\]: .*\b(fail(ed|ure)?|cannot|timed out|dependency ` +
	`failed|not found)\b`)

// mayMiss reports whether a line may appear anywhere in a log, or be missing.
func mayMiss(norm string) bool { return chatter().MatchString(norm) && !trouble().MatchString(norm) }

// normal returns a line without its variable parts.
func normal(s string) string {
	s = strings.TrimSpace(s)
	if !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsDigit(r) || strings.ContainsRune(`|/\-.*`, r) }) {
		return s
	}
	for _, v := range variable {
		s = v.find().ReplaceAllString(s, v.put)
	}
	return strings.Join(strings.Fields(s), " ")
}

// whole joins wrapped rows of a text screen: a full row continues in the next one. The joined text is in the first row,
// and its continuation rows become empty. A row of a kernel log always begins a line.
func whole(rows []string) []string {
	width := 80
	if slices.ContainsFunc(rows, func(row string) bool { return utf8.RuneCountInString(row) > width }) {
		width = maxColumns
	}
	return joined(rows, width)
}

// joined is whole for rows of a given width. The last column of a row of a kernel log can hold the blank between two
// words.
func joined(rows []string, width int) []string {
	out := slices.Clone(rows)
	for n, first := 1, 0; n < len(rows); n++ {
		missing := width - utf8.RuneCountInString(rows[n-1])
		full := missing <= 0 || missing == 1 && rows[n] != "" && logTime().MatchString(rows[first])
		if !full || logTime().MatchString(rows[n]) {
			first = n
			continue
		}
		out[first] += strings.Repeat(" ", max(missing, 0)) + rows[n]
		out[n] = ""
	}
	return out
}

// lines returns the nonempty lines of a text without lines of firmware.
func lines(text []string) []line {
	out := make([]line, 0, len(text))
	for n, s := range text {
		shown := strings.TrimRight(s, " \x00")
		if norm := normal(shown); norm != "" && !firmware().MatchString(norm) {
			out = append(out, line{n, shown, norm})
		}
	}
	return out
}

// control matches terminal control sequences. A cursor movement begins a line.
var control = ondisk.LazyPattern(`\x1b\[[0-9;?=]*([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78cM]`)

// serialLines splits serial output into lines as shown on a terminal.
func serialLines(s string) []string {
	s = control().ReplaceAllStringFunc(s, func(c string) string {
		if strings.ContainsAny(c[len(c)-1:], "HfJ") {
			return "\n"
		}
		return ""
	})
	var out []string
	for l := range strings.SplitSeq(s, "\n") {
		l = strings.TrimRight(l, "\r")
		l = l[strings.LastIndexByte(l, '\r')+1:] // the line was overwritten
		if len(l) > maxSerialLine {
			l = l[:maxSerialLine]
		}
		l = strings.Map(func(r rune) rune {
			if r == utf8.RuneError || unicode.IsControl(r) {
				return ' '
			}
			return r
		}, l)
		if l = strings.TrimRight(l, " "); l != "" {
			out = append(out, l)
		}
	}
	return out
}

// pool is the set of all lines of a run.
type pool map[string]bool

func (p pool) add(all []line) {
	for _, l := range all {
		p[l.norm] = true
	}
}

// unknown returns the lines that are not in the pool, without chatter.
func (p pool) unknown(all []line) []line {
	return slices.DeleteFunc(slices.Clone(all), func(l line) bool { return p[l.norm] || mayMiss(l.norm) })
}

// last returns the last line that is not chatter.
func last(all []line) (line, bool) {
	for _, l := range slices.Backward(all) {
		if !mayMiss(l.norm) {
			return l, true
		}
	}
	return line{}, false
}

// has reports whether all contains a line with this text.
func has(all []line, norm string) bool {
	return slices.ContainsFunc(all, func(l line) bool { return l.norm == norm })
}

// differing returns the differences between the final lines of two runs. Each line must have appeared in the other run
// at any time, because screens scroll at different moments. The last line, at the cursor, must be among the final lines
// of the other run.
func differing(where Place, before, after []line, seenBefore, seenAfter pool) []Difference {
	gone, come := seenAfter.unknown(before), seenBefore.unknown(after)
	if len(gone)+len(come) == 0 {
		b, hasB := last(before)
		a, hasA := last(after)
		if hasB && !has(after, b.norm) {
			gone = append(gone, b)
		}
		if hasA && !has(before, a.norm) {
			come = append(come, a)
		}
	}
	var out []Difference
	for len(gone)+len(come) > 0 {
		switch {
		case len(come) == 0 || len(gone) > 0 && gone[0].at < come[0].at:
			out, gone = append(out, newDifference(where, gone[0], line{at: gone[0].at})), gone[1:]
		case len(gone) == 0 || come[0].at < gone[0].at:
			out, come = append(out, newDifference(where, line{at: come[0].at}, come[0])), come[1:]
		default:
			out, gone, come = append(out, newDifference(where, gone[0], come[0])), gone[1:], come[1:]
		}
	}
	return out
}

// logTime matches the timestamp at the start of a kernel log line.
var logTime = ondisk.LazyPattern(`^\[[ \d]+\.\d+\]`)

// newDifference returns the difference between two lines at one place.
func newDifference(where Place, before, after line) Difference {
	return Difference{Where: where, Line: max(after.at, before.at) + 1, Before: before.shown, After: after.shown}
}

// firmware matches lines that firmware shows on every machine, regardless of its disk. They prove nothing about a
// guest. Source: SeaBIOS src/bootsplash.c, src/boot.c; iPXE src/usr/autoboot.c; EDK2 BdsDxe, PlatformBootManagerLib.
var firmware = ondisk.LazyPattern(`^(SeaBIOS \(version |Machine UUID |iPXE |Press (F12|ESC) for boot menu|Booting ` +
	`from (Hard Disk|DVD/CD|Floppy|ROM)\.\.\.$|BdsDxe: (loading|starting|failed to load) Boot|Press any key to enter ` +
	`the Boot Manager Menu|Plex86/Bochs VGABios|UEFI firmware \(version |Start boot option)`)

// message is a row of failures.json: texts of a program that stopped. Guest marks a loader or system; the others are
// firmware and boot code in sector 0, which found nothing to start.
type message struct {
	About string
	Guest bool
	Texts []string
}

var messages = sync.OnceValue(func() []message { return ondisk.Embedded[[]message](messagesText) })

//go:embed failures.json
var messagesText []byte

// tooSlow is a Linux panic on an overloaded emulation host: the kernel counts timer ticks during a fixed CPU time.
// Source: Linux arch/x86/kernel/apic/io_apic.c, check_timer.
const tooSlow = "IO-APIC + timer doesn't work"

// failedLine matches failures by the whole line, because their words also appear in other texts.
var failedLine = ondisk.LazyPattern(`^(GRUB )?(loading[ ,.a-z0-9]*)?Error \d+\b|^L( ` +
	`[0-9A-F]{2}){2,}|^L(I[?-]?)?$|^grub>|^Read error$|^(GRUB|GRUB loading) *(error:|Read Error|Geom Error)`)

// onTheWay matches last lines of an unfinished boot: a run that ends at one has shown nothing of its guest yet.
var onTheWay = ondisk.LazyPattern(`^(Loading initial ramdisk|Loading Linux|Loading (/|vmlinuz|initrd|kernel)|LILO ` +
	`\S* *Loading|Uncompressing Linux|Decompressing Linux|Booting the kernel|Booting '|Starting up|GRUB loading|` +
	`Welcome to GRUB|GRUB Loading stage|Starting Windows|Starting MS-DOS|Loading Windows|Loading operating system|` +
	`Probing EDD|Booting a command list|early console in|EFI stub:|SYSLINUX |EXTLINUX |ISOLINUX |Loading ` +
	`stage2)|^GRUB *$|^\.+$`)

// stays reports whether the last line belongs to an unfinished boot. A prompt below it is an end.
func stays(last string) bool { return onTheWay().MatchString(last) }

// failure returns the known failure in a line, or "". system reports whether a loader or system failed.
func failure(line string) (text string, system bool) {
	for _, m := range messages() {
		for _, known := range m.Texts {
			if strings.Contains(line, known) {
				return known, m.Guest
			}
		}
	}
	if text = failedLine().FindString(line); text != "" {
		return text, true
	}
	return "", false
}

// Move is a partition that moves from source to aligned view. A guest may print its place, such as FreeDOS: "C: HD1,
// Pri[ 1], CHS= 0-1-1, start= 0 MB".
type Move struct{ Before, After Start }

// Moves lists the moved partitions.
type Moves []Move

// Start is the start of a partition: its sector, and the geometry of the machine or zeros.
type Start struct{ LBA, Heads, Sectors int64 }

// forms returns the spellings of a start in guest output. An index always means the same form. Source: FreeDOS kernel
// 2043, kernel/initdisk.c, printCHS, StartSector / 2048.
func (s Start) forms() []string {
	out := []string{
		decimal(s.LBA), fmt.Sprintf("%#x", s.LBA), fmt.Sprintf("%x", s.LBA), decimal(s.LBA * 512),
		decimal(s.LBA / 2), decimal(s.LBA / 2048),
	}
	if s.Heads > 0 && s.Sectors > 0 {
		c, h, sec := s.LBA/s.Sectors/s.Heads, s.LBA/s.Sectors%s.Heads, s.LBA%s.Sectors+1
		for _, between := range []string{"-", "/", ":", ","} {
			out = append(out, decimal(c)+between+decimal(h)+between+decimal(sec))
		}
	}
	return out
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// places matches numbers in a line that may be the place of a partition.
var places = ondisk.LazyPattern(`\b(0x[0-9a-f]+|\d[0-9a-f]*([-/:,]\d+[-/:,]\d+)?)\b`)

// maxPlaces limits the compared places of a line.
const maxPlaces = 8

// around returns the text of a line around its places.
func around(norm string) string { return strings.Join(places().Split(norm, -1), "\x00") }

// undo returns a function that turns lines of the aligned view into lines of the source. A line unknown to the source
// becomes the first source line, in alphabetical order, that differs only in the places of moved partitions.
func (m Moves) undo(source pool) func(all []line) []line {
	if len(m) == 0 {
		return func(all []line) []line { return all }
	}
	known := map[string][]string{}
	for _, norm := range slices.Sorted(maps.Keys(source)) {
		known[around(norm)] = append(known[around(norm)], norm)
	}
	return func(all []line) []line {
		for i, l := range all {
			like := known[around(l.norm)]
			n := slices.IndexFunc(like, func(norm string) bool { return m.lead(norm, l.norm) })
			if n >= 0 && !source[l.norm] {
				all[i].norm = like[n]
			}
		}
		return all
	}
}

// lead reports whether two lines have the same places, or the places before and after the move of a partition, in the
// same form.
func (m Moves) lead(before, after string) bool {
	was, is := places().FindAllString(before, maxPlaces+1), places().FindAllString(after, maxPlaces+1)
	if len(was) != len(is) || len(was) > maxPlaces {
		return false
	}
	for i := range was {
		moved := func(x Move) bool {
			from, to := x.Before.forms(), x.After.forms()
			for f := range min(len(from), len(to)) {
				if from[f] == was[i] && to[f] == is[i] {
					return true
				}
			}
			return false
		}
		if was[i] != is[i] && !slices.ContainsFunc(m, moved) {
			return false
		}
	}
	return true
}
