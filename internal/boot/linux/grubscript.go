package linux

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/boot"
)

// Limits for scripts. No configuration from people or grub-mkconfig comes near them.
const (
	maxValues   = 16      // alternatives of a word
	maxVars     = 1 << 10 // names of variables
	maxRounds   = 4       // a value set after its use needs another round
	maxValueLen = 1 << 10 // bytes
)

// unknown stands in a word for an unknown value.
const unknown = "\x00"

// script is the state of a GRUB script at a line. A device is "hd0", a partition name in GRUB's notation, or "#" with a
// partition number.
type script struct {
	root, prefix []string // possible values of $root and $prefix here
	global       []string // possible values of $root before the menu entries
	blocks       int      // open braces
	conditions   int      // open if, while, until and for
}

// part is a piece of a word: text, or the name of a variable.
type part struct {
	text     string
	variable bool
}

type word []part

// words splits a line like a shell. A # starts a comment.
func words(line string) (out []string) {
	for _, cmd := range commands(line, false) {
		for _, w := range cmd {
			text := ""
			if len(w) > 0 { // a word without variables has only one part
				text = w[0].text
			}
			out = append(out, text)
		}
	}
	return out
}

// splitter collects the commands of a line.
type splitter struct {
	out  [][]word
	cmd  []word // the current command
	w    word   // the current word, and
	text []byte // its last part
	open bool   // the word has begun
}

func (s *splitter) add(b byte) { s.text, s.open = append(s.text, b), true }

func (s *splitter) endText() {
	if len(s.text) > 0 {
		s.w, s.text = append(s.w, part{text: string(s.text)}), nil
	}
}

func (s *splitter) endWord() {
	if s.endText(); s.open && len(s.cmd) < maxConfigWords {
		s.cmd = append(s.cmd, s.w)
	}
	s.w, s.open = nil, false
}

func (s *splitter) end() {
	if s.endWord(); len(s.cmd) > 0 {
		s.out = append(s.out, s.cmd)
	}
	s.cmd = nil
}

// commands splits a line into commands, and these into words. script marks a line of GRUB 2, with variables and
// separators; braces are separate commands. Any other line is one command. Spec: GRUB manual, "Shell-like scripting";
// GRUB 2.06, grub-core/script/yylex.l.
func commands(line string, script bool) [][]word {
	var s splitter
	quote := byte(0)
	for i := 0; i < len(line); i++ {
		switch b := line[i]; {
		case quote != 0 && b == quote:
			quote = 0
		case quote == 0 && (b == '"' || b == '\''):
			quote, s.open = b, true
		case quote != '\'' && b == '\\' && i+1 < len(line):
			i++
			s.add(line[i])
		case script && quote != '\'' && b == '$' && isVariable(line[i+1:]):
			name, n := variable(line[i+1:])
			s.endText()
			s.w, s.open = append(s.w, part{name, true}), true
			i += n
		case quote != 0:
			s.add(b)
		case b == ' ' || b == '\t':
			s.endWord()
		case b == '#' && !s.open:
			s.end()
			return s.out
		case script && strings.IndexByte(";|&<>", b) >= 0:
			s.end()
		case script && (b == '{' || b == '}'):
			s.end()
			s.out = append(s.out, []word{{{text: string(b)}}})
		default:
			s.add(b)
		}
	}
	s.end()
	return s.out
}

// isVariable reports whether a name follows a dollar.
func isVariable(s string) bool {
	_, n := variable(s)
	return n > 0
}

// variable reads the name after a dollar, and returns it with its length in bytes. The length is 0 if there is no name.
func variable(s string) (name string, n int) {
	if rest, ok := strings.CutPrefix(s, "{"); ok {
		if end := strings.IndexByte(rest, '}'); end > 0 {
			return rest[:end], end + 2
		}
		return "", 0
	}
	for n < len(s) && (s[n] == '_' || s[n]|0x20 >= 'a' && s[n]|0x20 <= 'z' || s[n] >= '0' && s[n] <= '9' && n > 0) {
		n++
	}
	if n == 0 && len(s) > 0 && strings.IndexByte("0123456789@*#?", s[0]) >= 0 {
		n = 1
	}
	return s[:n], n
}

// begin sets the state for the first line.
func (c *config) begin() {
	c.script.root, c.script.prefix, c.global = c.source.root, c.source.prefix, c.source.root
	if c.script.prefix == nil && c.loader == nil {
		c.script.prefix = []string{c.here()}
	}
}

// here returns the folder of the file, with its device.
func (c *config) here() string { return fmt.Sprintf("(#%d)%s", c.in.Number, path.Dir(c.path)) }

// expand returns the possible values of a word.
func (c *config) expand(w word) []string {
	out := []string{""}
	for _, p := range w {
		values := []string{p.text}
		if p.variable {
			values = c.values(p.text)
		}
		out = joined(out, values)
	}
	return out
}

// joined returns each beginning with each end, up to the limits.
func joined(begins, ends []string) (out []string) {
	for _, begin := range begins {
		for _, end := range ends {
			v := begin + end
			if len(out) == maxValues-1 || len(v) > maxValueLen {
				v = unknown
			}
			if len(out) < maxValues && !slices.Contains(out, v) {
				out = append(out, v)
			}
		}
	}
	return out
}

// values returns the possible values of a variable. An unset variable is empty.
func (c *config) values(name string) []string {
	switch name {
	case "root":
		if c.script.root == nil {
			return []string{fmt.Sprintf("#%d", c.in.Number)}
		}
		return c.script.root
	case "prefix":
		return orEmpty(c.script.prefix)
	case "config_directory":
		return []string{c.here()}
	case "config_file":
		return []string{fmt.Sprintf("(#%d)%s", c.in.Number, c.path)}
	case "cmdpath":
		if c.loader != nil && len(c.loader.Paths) > 0 {
			return []string{fmt.Sprintf("(#%d)/%s", c.in.Number, path.Dir(c.loader.Paths[0]))}
		}
		return []string{c.here()}
	}
	if strings.IndexByte("0123456789@*#?", name[0]) >= 0 {
		return []string{unknown} // an argument of a function
	}
	return orEmpty(c.vars[name])
}

func orEmpty(values []string) []string {
	if len(values) == 0 {
		return []string{""}
	}
	return values
}

// assign adds values to a variable. For root and prefix it replaces the old values, except inside a condition.
func (c *config) assign(name string, values []string) {
	switch name {
	case "root":
		c.setRoot(values)
		return
	case "prefix":
		c.script.prefix = c.decided(c.script.prefix, values)
		return
	}
	for _, v := range values {
		switch old := c.vars[name]; {
		case slices.Contains(old, v) || slices.Contains(old, unknown) && len(old) >= maxValues:
			continue
		case len(c.vars) >= maxVars && old == nil:
			continue
		case len(old) >= maxValues-1 || len(v) > maxValueLen:
			v = unknown
		}
		if !slices.Contains(c.vars[name], v) {
			c.vars[name], c.wider = append(c.vars[name], v), true
		}
	}
}

// decided returns the values of a variable after an assignment.
func (c *config) decided(old, values []string) []string {
	if c.conditions == 0 {
		return values
	}
	out := slices.Clone(old)
	for _, v := range values {
		if !slices.Contains(out, v) && len(out) < maxValues {
			out = append(out, v)
		}
	}
	return out
}

func (c *config) setRoot(values []string) {
	for i, v := range values {
		values[i] = strings.TrimSuffix(strings.TrimPrefix(v, "("), ")")
	}
	c.script.root = c.decided(c.script.root, values)
	if c.blocks == 0 {
		c.global = c.script.root
	}
}

// onDisk reports whether names without a device count from the start of the disk.
func (c *config) onDisk() bool {
	return slices.ContainsFunc(c.script.root, func(r string) bool { return slices.Contains(firstDisks, r) })
}

// grub2 interprets a line, as far as it affects the location of files and sectors.
func (c *config) grub2(line string) {
	for _, cmd := range commands(line, true) {
		var w [][]string
		for _, x := range cmd {
			w = append(w, c.expand(x))
		}
		for len(w) > 0 && slices.Contains([]string{"if", "elif", "while", "until", "then", "else", "do", "!", "time"},
			w[0][0]) {
			if slices.Contains([]string{"if", "while", "until"}, w[0][0]) {
				c.conditions++
			}
			w = w[1:]
		}
		if len(w) > 0 {
			c.run(w)
		}
	}
}

// run interprets a command. Each of its words has alternatives.
func (c *config) run(w [][]string) {
	name := w[0][0]
	first := make([]string, len(w))
	for i, values := range w {
		first[i] = values[0]
		for _, v := range values {
			c.blockLists(v, i > 0)
		}
	}
	switch variable, value, isSet := strings.Cut(name, "="); {
	case name == "{":
		c.blocks++
	case name == "}":
		c.blocks = max(0, c.blocks-1)
		c.resetRoot()
	case name == "fi" || name == "done":
		c.conditions = max(0, c.conditions-1)
	case name == "menuentry" || name == "submenu" || name == "function":
		c.resetRoot()
	case isSet && value+variable != "":
		c.set(w[0])
	case name == "set" && len(w) > 1:
		c.set(w[1])
	case name == "for" && len(w) > 3:
		c.conditions++
		for _, values := range w[3:] {
			c.assign(w[1][0], values)
		}
	case strings.HasPrefix(name, "search"):
		c.search(first)
	case slices.Contains([]string{"probe", "regexp", "smbios", "getenv", "read", "rdmsr"}, name):
		c.unknownResult(first)
	case name == "load_env":
		c.loadEnv(w)
	case name == "blscfg":
		c.entries()
	case slices.Contains([]string{"chainloader", "loopback", "ntldr"}, name):
		if slices.ContainsFunc(slices.Concat(w[1:]...), isUnknown) {
			c.miss(c.in.Number, c.at(), fmt.Sprintf("it depends on an unknown value: %q", cutText(c.command)))
		}
	case slices.Contains([]string{"linux", "linux16", "linuxefi"}, name) && len(w) > 1 && c.role != "":
		c.kernel(first[1])
	}
	if syntax, ok := includes[name]; ok {
		c.include(w[1:], syntax)
	}
	scanOptions(c, first)
}

// resetRoot restores $root outside of the menu entries.
func (c *config) resetRoot() {
	if c.blocks == 0 {
		c.script.root = c.global
	}
}

func isUnknown(s string) bool { return strings.Contains(s, unknown) }

// at describes the line.
func (c *config) at() string {
	if c.loader != nil {
		return fmt.Sprintf("the configuration of %s, line %d", c.loader.Loader, c.line)
	}
	return fmt.Sprintf("%.256q of partition %d, line %d", c.path, c.in.Number, c.line)
}

func (c *config) set(values []string) {
	for _, v := range values {
		if name, value, ok := strings.Cut(v, "="); ok && name != "" {
			c.assign(name, []string{value})
		}
	}
}

// unknownResult assigns the unknown value to the variables that a command sets.
func (c *config) unknownResult(w []string) {
	for i, x := range w[1:] {
		name, ok := strings.CutPrefix(x, "--set=")
		switch {
		case !ok && (x == "-s" || x == "--set") && i+2 < len(w):
			name = w[i+2]
		case !ok && w[0] == "read" && !strings.HasPrefix(x, "-"):
			name = x
		case !ok:
			continue
		}
		if _, after, numbered := strings.Cut(name, ":"); numbered { // regexp --set=1:name
			name = after
		}
		c.assign(name, []string{unknown})
	}
}

// searchOptions maps the options of search to the commands search.KIND.
var searchOptions = map[string]string{
	"--fs-uuid": "fs_uuid", "-u": "fs_uuid", "--label": "label", "-l": "label", "--fs-label": "label",
	"--file": "file", "-f": "file", "--part-uuid": "part_uuid", "-p": "part_uuid",
	"--part-label": "part_label", "-L": "part_label",
}

// searchKeys maps the kinds of search to the keys of partition names.
var searchKeys = map[string]string{
	"fs_uuid": "uuid", "fs_label": "label", "label": "label", "part_uuid": "partuuid", "part_label": "partlabel",
}

// searchArguments decodes a search command. The order of its arguments depends on its form.
func searchArguments(w []string) (kind, variable, value string) {
	variable = "root"
	if _, kind, _ = strings.Cut(w[0], "."); kind != "" { // search.fs_uuid VALUE [VARIABLE [HINT]]
		if len(w) > 1 {
			value = w[1]
		}
		if len(w) > 2 {
			variable = w[2]
		}
		return kind, variable, value
	}
	for _, x := range w[1:] {
		if name, ok := strings.CutPrefix(x, "--set="); ok {
			variable = name
		} else if option, ok := searchOptions[x]; ok {
			kind = option
		} else if !strings.HasPrefix(x, "-") {
			value = x
		}
	}
	return kind, variable, value
}

// search assigns the device of a file system to a variable. Spec: GRUB manual, "search";
// grub-core/commands/search_wrap.c.
func (c *config) search(w []string) {
	kind, variable, value := searchArguments(w)
	if kind == "file" || kind == "fs_file" {
		c.searchFile(variable, value)
		return
	}
	p, ok := c.named(searchKeys[kind] + "=" + value)
	found := []string{fmt.Sprintf("#%d", p.Number)}
	switch {
	case !ok:
		c.assign(variable, []string{unknown})
	case variable != "root":
		c.assign(variable, found)
	default: // it overrides any hint
		if c.script.root = found; c.blocks == 0 {
			c.global = found
		}
	}
}

// searchFile assigns the first partition with a file to a variable. An unreadable partition can hold the file, too.
func (c *config) searchFile(variable, name string) {
	var found []string
	hidden := false
	for _, p := range c.g.Partitions {
		files, err := c.g.Files(p)
		if err == nil && c.opened < maxOpened {
			c.opened++
			_, err = files.Open(strings.TrimPrefix(name, "/"))
		}
		switch {
		case err == nil:
			found = append(found, fmt.Sprintf("#%d", p.Number))
		case !isAbsent(err):
			if hidden = hidden || c.used(p); tolerable(err) != nil {
				c.fail(err)
			}
		}
	}
	switch {
	case len(found) == 0 && hidden:
		c.conditions++ // GRUB keeps the old value if it finds nothing
		c.assign(variable, []string{unknown})
		c.conditions--
	case len(found) > 0:
		c.assign(variable, found[:1]) // the first one
	}
}

// kernel records the kernel of a menu entry.
func (c *config) kernel(name string) {
	c.link(c.in, "kernel", fmt.Sprintf("has the kernel that GRUB starts: %.80q, by %.256q", name, c.path))
}

// blockLists checks the block lists in a word that count sectors of the whole disk: "(hd0)start+length,…". "(hd0,1)+1"
// counts from a partition, and does not matter. bare allows a list without a device. Spec: GRUB manual, "How to specify
// block lists".
func (c *config) blockLists(s string, bare bool) {
	if bare && c.onDisk() {
		c.blockList("(hd0)", s)
	}
	for {
		_, rest, ok := strings.Cut(s, "(")
		if !ok {
			return
		}
		s = rest
		device, list, ok := strings.Cut(rest, ")")
		if ok && slices.Contains(firstDisks, device) {
			c.blockList("(hd0)", list)
		}
	}
}

func (c *config) blockList(device, list string) {
	if end := strings.IndexAny(list, " \t;&|'\""); end >= 0 {
		list = list[:end]
	}
	var at []int64
	for block := range strings.SplitSeq(list, ",") {
		first, length, ok := strings.Cut(block, "+")
		if first == "" {
			first = "0"
		}
		off, isNumber := sectors(first)
		if _, counted := count(length); !ok || !isNumber || !counted && length != "" {
			return
		}
		at = append(at, off)
	}
	for _, off := range at {
		c.place(device, off, true)
	}
}

// firstDisks are GRUB's names for the first disk, with the drivers of the BIOS and with its own.
var firstDisks = []string{"hd0", "ahci0", "ata0", "usb0"}

// device returns the partition with a GRUB device name; why has the reason if there is none.
func (l *guest) device(name string, legacy bool) (p boot.Partition, why string) {
	if n, ok := strings.CutPrefix(name, "#"); ok {
		number, err := strconv.Atoi(n)
		if p = l.g.Numbered(number); err == nil && p.Number != 0 {
			return p, ""
		}
	}
	if isUnknown(name) {
		return p, "it is in no readable partition of the disk (LVM, RAID, encryption, another disk, or a file " +
			"system that trueup does not read)"
	}
	disk, number, ok := strings.Cut(name, ",")
	if ok && (disk == "" || slices.Contains(firstDisks, disk)) {
		number = strings.TrimLeft(number, "abcdefghijklmnopqrstuvwxyz")
		n, err := strconv.Atoi(number)
		if legacy {
			n++
		}
		if p = l.g.Numbered(n); err == nil && n > 0 && p.Number != 0 {
			return p, ""
		}
	}
	return p, fmt.Sprintf("(%.64s) is not a partition of the disk", name)
}
