package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// unseenCode is the code of the warning about incompletely read configurations.
const unseenCode = "boot-configuration-unseen"

// includes maps the GRUB commands that run another configuration to its syntax. Spec: GRUB manual, "Commands";
// grub-core/commands/legacycfg.c and syslinuxcfg.c.
var includes = map[string]boot.Syntax{
	"source": boot.GRUB2, ".": boot.GRUB2, "configfile": boot.GRUB2, "normal": boot.GRUB2,
	"extract_entries_source": boot.GRUB2, "extract_entries_configfile": boot.GRUB2,
	"legacy_source": boot.GRUBLegacy, "legacy_configfile": boot.GRUBLegacy,
	"extract_legacy_entries_source": boot.GRUBLegacy, "extract_legacy_entries_configfile": boot.GRUBLegacy,
	"syslinux_source": boot.SYSLINUX, "syslinux_configfile": boot.SYSLINUX,
	"extract_syslinux_entries_source": boot.SYSLINUX, "extract_syslinux_entries_configfile": boot.SYSLINUX,
}

// loader is a loader together with the search for its configuration.
type loader struct {
	boot.Config

	found  bool     // one of its files was found
	missed []string // reasons why possible places could not be read
}

// follow scans all sources and the files they name, until a round adds nothing. Loaders come last: their first file is
// mostly in the queue already.
func (l *guest) follow() error {
	var loaders []*loader
	for _, x := range l.g.Configs() {
		ld := &loader{Config: x}
		loaders = append(loaders, ld)
		l.start(ld)
	}
	for round := 0; l.failed == nil; round++ {
		known := len(l.queue)
		l.wider, l.names, l.places = false, 0, 0
		for i := 0; i < len(l.queue) && l.failed == nil; i++ {
			l.scanAll(l.queue[i])
		}
		if !l.wider && len(l.queue) == known {
			break
		}
		if round == maxRounds {
			l.miss(0, "the scripts of GRUB", "their variables depend on each other too deeply")
			break
		}
	}
	for _, ld := range loaders {
		if !ld.found && len(ld.missed) > 0 {
			why := ld.missed[0] + andMore(len(ld.missed)-1, " places")
			l.miss(ld.Home, "the configuration of "+ld.Loader, why)
		}
	}
	l.warn()
	return l.failed
}

// andMore formats the number of further items, if there are any.
func andMore(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more%s)", n, what)
}

// fail keeps the first read error.
func (l *guest) fail(err error) {
	if l.failed == nil {
		l.failed = err
	}
}

// miss records a configuration that the boot may use and that could not be read.
func (l *guest) miss(partition int, what, why string) {
	u := boot.Unseen{Partition: partition, What: what, Why: why}
	if len(l.missed) < maxSaid && !slices.Contains(l.missed, u) {
		l.missed = append(l.missed, u)
	}
}

// warn adds one warning about all configurations that could not be read.
func (l *guest) warn() {
	for _, u := range l.missed {
		l.found.NotSeen(u.Partition, u.What, u.Why)
	}
	if len(l.missed) == 0 {
		return
	}
	more := andMore(len(l.missed)-1, ": boot_unseen of --json has all")
	l.found.Warn(unseenCode, 0, fmt.Sprintf("%s%s; if it contains sectors counted from the start of the disk, a "+
		"move breaks the boot",
		l.missed[0], more), "search the guest for block lists such as (hd0)63+1 (grep -rE "+
		"'\\(hd[0-9]+\\)[0-9]*\\+' /boot /etc), and rewrite each with a partition or file name")
}

// used reports whether a partition can hold files. Zeros mean that nobody formatted it.
func (l *guest) used(p boot.Partition) bool {
	switch {
	case p.Kind == table.Extended || p.Volume.Kind == volume.Swap:
		return false
	case p.Volume.Kind != volume.Unknown || boot.IsESP(p):
		return true
	case boot.NoFiles(p):
		return false
	}
	_, used, err := l.g.Area(p)
	if err != nil {
		l.fail(err)
	}
	return used
}

func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// start queues the first sources of a loader.
func (l *guest) start(ld *loader) {
	if ld.Why != "" {
		ld.missed = append(ld.missed, ld.Why)
	}
	if ld.Syntax == boot.GRUB2 && !ld.Anywhere {
		l.builtIn(ld)
		return
	}
	for _, p := range l.g.Partitions {
		if ld.Anywhere || p.Number == ld.Home {
			l.look(ld, p)
		}
	}
}

// look searches one partition for the configuration of a loader.
func (l *guest) look(ld *loader, p boot.Partition) {
	for _, name := range ld.Paths {
		found, err := l.enqueue(p, name, ld.Syntax, nil)
		switch {
		case found:
			ld.found = true
			return
		case err != nil:
			if l.used(p) {
				ld.missed = append(ld.missed, boot.WhyUnseen(p, err))
			}
			return
		}
	}
}

// builtIn queues the commands built into GRUB 2, with its prefix.
func (l *guest) builtIn(ld *loader) {
	device, folder, ok := strings.Cut(strings.TrimPrefix(ld.Prefix, "("), ")")
	if !strings.HasPrefix(ld.Prefix, "(") {
		device, folder, ok = "", ld.Prefix, false
	}
	switch {
	case device == "memdisk":
		ld.found = ld.found || ld.Why == "" // its configuration is in Script
	case !ok && ld.Home == 0 && !strings.Contains(ld.Script, "prefix"):
		// The BIOS names no partition, so the partition of the prefix is unknown.
		ld.Anywhere, ld.Paths = true, []string{strings.TrimPrefix(path.Join(folder, "grub.cfg"), "/")}
		for _, p := range l.g.Partitions {
			l.look(ld, p)
		}
	case !ok:
		device = fmt.Sprintf("#%d", ld.Home)
	}
	l.queue = append(l.queue, &source{
		in: l.g.Numbered(ld.Home), path: "the commands built into " + ld.Loader, syntax: boot.GRUB2,
		text: ld.Script, loader: ld, root: []string{device}, prefix: []string{"(" + device + ")" + folder},
	})
}

// normal makes GRUB 2 read the configuration in its prefix, after its built-in commands.
func (c *config) normal() {
	var names []string
	for _, v := range orEmpty(c.script.prefix) {
		names = append(names, v+"/grub.cfg")
	}
	c.include([][]string{names}, boot.GRUB2)
}

// include follows a command that names a configuration: all values of its first non-option argument.
func (c *config) include(args [][]string, syntax boot.Syntax) {
	for _, values := range args {
		if strings.HasPrefix(values[0], "-") {
			continue
		}
		var missed []string
		found := false
		for _, v := range values {
			ok, why := c.load(v, syntax)
			if found = found || ok; why != "" {
				missed = append(missed, why)
			}
		}
		switch {
		case c.loader != nil:
			c.loader.found = c.loader.found || found
			c.loader.missed = append(c.loader.missed, missed[:min(len(missed), maxSaid)]...)
		case !found && len(missed) > 0:
			c.miss(c.in.Number, c.at(), missed[0])
		}
		return
	}
}

// devicesOf splits a file name of GRUB into its possible devices and its path. ok is false for a device without a
// closing parenthesis.
func (c *config) devicesOf(name string) (devices []string, file string, ok bool) {
	rest, named := strings.CutPrefix(name, "(")
	if !named {
		return c.values("root"), name, true
	}
	device, file, ok := strings.Cut(rest, ")")
	return []string{device}, file, ok
}

// load queues a file by its GRUB name. why is empty for an absent file.
func (c *config) load(name string, syntax boot.Syntax) (found bool, why string) {
	devices, file, ok := c.devicesOf(name)
	switch {
	case isUnknown(name) && !strings.HasPrefix(name, "("+unknown+")"):
		return false, fmt.Sprintf("it names a file by an unknown value: %q", cutText(c.command))
	case !ok || !strings.HasPrefix(file, "/"):
		return false, "" // a block list, or no file
	}
	for _, device := range devices {
		p, no := c.device(device, c.syntax == boot.GRUBLegacy)
		if no != "" {
			why = fmt.Sprintf("%.256q: %s", file, no)
			continue
		}
		was, err := c.enqueue(p, strings.Trim(path.Clean(file), "/"), syntax, c)
		if found = found || was; err != nil && c.used(p) {
			why = fmt.Sprintf("%.256q: %s", file, boot.WhyUnseen(p, err))
		}
	}
	if found {
		why = ""
	}
	return found, why
}

// enqueue queues a file of a partition in every readable state, before and after a journal replay. found is false for
// an absent file; err explains why the file or its file system cannot be read.
func (l *guest) enqueue(p boot.Partition, name string, syntax boot.Syntax, from *config) (found bool, err error) {
	files, err := l.g.Files(p)
	if err != nil {
		return false, l.legible(err)
	}
	for _, view := range views(files) {
		s, fresh, oerr := l.open(p, view, name)
		switch {
		case isAbsent(oerr):
			continue
		case oerr != nil:
			err = l.legible(oerr)
			continue
		}
		found = true
		if !fresh {
			continue
		}
		if s.syntax = syntax; from != nil {
			s.role, s.root, s.prefix = from.role, from.script.root, from.script.prefix
		}
		l.queue = append(l.queue, s)
	}
	return found, err
}

// legible returns err, the reason why a file was not read. A read error also ends the search.
func (l *guest) legible(err error) error {
	if tolerable(err) != nil {
		l.fail(err)
	}
	return err
}

// entries follows blscfg, which reads the entries in the root. Entries on readable file systems are already in the
// queue.
func (c *config) entries() {
	for _, device := range c.values("root") {
		p, why := c.device(device, false)
		if why == "" {
			files, err := c.g.Files(p)
			if err == nil {
				_, err = files.List("loader")
			}
			if err == nil || isAbsent(err) {
				continue
			}
			why = boot.WhyUnseen(p, c.legible(err))
		}
		c.miss(c.in.Number, c.at()+" (blscfg)", "the entries of the menu: "+why)
	}
}

// loadEnv assigns the variables of a GRUB environment block. Spec: GRUB manual, "The GRUB environment block".
func (c *config) loadEnv(w [][]string) {
	names := []string{}
	for _, v := range orEmpty(c.script.prefix) {
		names = append(names, v+"/grubenv")
	}
	for i, values := range w[1:] {
		if name, ok := strings.CutPrefix(values[0], "--file="); ok {
			names = []string{name}
		} else if values[0] == "-f" || values[0] == "--file" && i+2 < len(w) {
			names = w[min(i+2, len(w)-1)]
		}
	}
	for _, name := range names {
		for line := range strings.Lines(c.environment(name)) {
			if key, value, ok := strings.Cut(strings.TrimRight(line, "\n"), "="); ok && !strings.HasPrefix(line, "#") {
				c.assign(key, []string{value})
			}
		}
	}
}

// environment returns the text of a GRUB environment block, or an empty one if it cannot be read: then the
// configuration next to it is unreadable too.
func (c *config) environment(name string) string {
	devices, file, ok := c.devicesOf(name)
	p, why := c.device(devices[0], false)
	if why != "" || !ok {
		return ""
	}
	files, err := c.g.Files(p)
	if err != nil {
		return ""
	}
	s, _, err := c.open(p, files, strings.Trim(path.Clean(file), "/"))
	if c.legible(err) != nil {
		return ""
	}
	return s.text
}

// scanSyslinux scans a line of SYSLINUX, which can name more files. Spec: syslinux wiki, "Config".
func scanSyslinux(c *config, w []string) {
	for len(w) > 0 && strings.EqualFold(w[0], "menu") {
		w = w[1:]
	}
	if len(w) > 1 {
		switch strings.ToLower(w[0]) {
		case "include", "config":
			c.relative(w[1])
		case "kernel", "com32", "ui", "default":
			c.menus = strings.HasSuffix(strings.ToLower(w[1]), "menu.c32")
			if c.menus && len(w) > 2 {
				c.relative(w[2])
			}
		case "append":
			if c.menus {
				c.relative(w[1])
			}
		}
	}
	for _, x := range w {
		c.blockLists(x, false)
	}
	scanOptions(c, w)
}

// relative queues a file relative to this one, or to the root of the same file system.
func (c *config) relative(name string) {
	if name == "~" || name == "" {
		return
	}
	if !strings.HasPrefix(name, "/") {
		name = path.Join(path.Dir(c.path), name)
	}
	_, err := c.enqueue(c.in, strings.Trim(path.Clean(name), "/"), boot.SYSLINUX, c)
	if err != nil && !isAbsent(err) && !errors.Is(err, ondisk.ErrNoMatch) {
		c.miss(c.in.Number, c.at(), fmt.Sprintf("%.256q: %s", name, boot.WhyUnseen(c.in, err)))
	}
}
