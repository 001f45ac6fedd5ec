// Package linux finds the boot loaders of Linux (GRUB, LILO, SYSLINUX and others) and the configuration that locates a
// Linux guest's disks.
package linux

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Configuration reads the text files that locate the disks of a Linux guest. They name UUIDs, labels and partition
// numbers, which no move changes. A position that counts from the start of the disk is reported and never rewritten,
// because the file would change its length. resume= and resume_offset= do not matter: both are relative to a partition.
var Configuration = boot.Finder{Name: "linux configuration", Find: findLinux}

// Limits for reading and reporting. No configuration written by people exceeds them.
const (
	maxConfigs     = 64       // files of one file system
	maxConfigSize  = 1 << 20  // bytes of one file
	maxConfigBytes = 4 << 20  // of all files of a disk
	maxOpened      = 512      // names looked up on a disk: each can need a walk through large folders
	maxLookups     = 512      // partition names resolved on a disk, and places on it checked
	maxConfigLine  = 16 << 10 // bytes of a line
	maxConfigWords = 1 << 10  // words of a line
	maxSaid        = 16       // issues of a disk, and links
	maxQuoted      = 120      // bytes of a line shown in a message
	configCode     = "linux-configuration"
	writeName      = "rewrite the line, in the guest or in the copy, with the partition instead of a position on " +
		"the disk"
	orLeave = "; or leave this partition where it is (--partition selects others)"
)

// configFile is a kind of configuration file. Each element of its pattern can contain one star.
type configFile struct {
	pattern string
	role    string // part of its partition in the boot, or empty
	syntax  boot.Syntax
}

//go:embed configs.json
var configsText []byte

// configFiles lists the files of configs.json: of a root file system, then of a boot file system, under its mount point
// and at its top. One file system can be both.
var configFiles = sync.OnceValue(func() (all []configFile) {
	rows := ondisk.Embedded[[]struct {
		Boot        bool
		Syntax      boot.Syntax
		Role, About string
		Files       []string
	}](configsText)
	for i, top := range []string{"", "boot/", ""} {
		for _, r := range rows {
			for _, file := range r.Files {
				if r.Boot == (i > 0) {
					all = append(all, configFile{top + file, r.Role, r.Syntax})
				}
			}
		}
	}
	return all
})

// scanners maps syntaxes to the functions that scan a line, given as words.
var scanners = map[boot.Syntax]func(c *config, words []string){
	boot.Options: scanOptions, boot.GRUBLegacy: scanGRUB, boot.SYSLINUX: scanSyslinux, "commands": scanCommands,
	"crypttab": scanCrypttab, "fstab": scanFstab, "lilo": scanLilo, "u-boot": scanUBoot, "udev": scanRules,
}

// guest is the state of reading the configuration files of a disk.
type guest struct {
	g      *boot.Guest
	found  boot.Found
	said   map[string]bool
	queue  []*source           // files in the order in which they are scanned
	seen   map[fileKey]*source // files already read
	vars   map[string][]string // all values that GRUB scripts assign to a variable, anywhere
	wider  bool                // this round added a value to a variable
	missed []boot.Unseen
	failed error // first read error
	// Counters for the limits.
	bytes                 int64
	opened, names, places int
}

// fileKey identifies a file. One path can lead to two files if a journal is to be replayed.
type fileKey struct {
	files guestfile.FS
	path  string
}

// source is a text to scan.
type source struct {
	in     boot.Partition
	path   string
	role   string
	syntax boot.Syntax
	text   string

	root   []string // initial $root of GRUB; nil means the partition
	prefix []string // values of $prefix
	loader *loader  // the loader with this built-in text, or nil for a file
}

// config is the state of scanning one source.
type config struct {
	*guest
	*source
	line    int
	command string // text of the line

	script      // of GRUB
	menus  bool // SYSLINUX: the entry starts a menu, whose arguments name files
}

// searched describes the search in the files of a partition.
const searched = "the configuration of Linux and its loaders, and a swap file with a hibernated Linux"

func findLinux(g *boot.Guest) (boot.Found, error) {
	l := &guest{g: g, said: map[string]bool{}, seen: map[fileKey]*source{}, vars: map[string][]string{}}
	for _, p := range g.Partitions {
		if p.Kind == table.Extended {
			continue
		}
		if err := tolerable(l.readPartition(p)); err != nil {
			return l.found, fmt.Errorf("partition %d: %w", p.Number, err)
		}
	}
	return l.found, l.follow()
}

// readPartition reads the configuration files of a partition before and after a journal replay. It records
// unreadable files.
func (l *guest) readPartition(p boot.Partition) error {
	files, err := l.g.Files(p)
	before := l.opened
	if err == nil {
		err = l.read(p, files)
	}
	// A loader reads the files before the journal replay, and Linux after it.
	if open, ok := files.(*ext.Replayed); ok && open.Unread != nil {
		why := ondisk.Shift(open.Unread, p.Off)
		if l.g.NotSeen(p, searched, why); l.opened > before {
			l.found.Warn(configCode, 0, fmt.Sprintf("the boot configuration in partition %d was read without a "+
				"replay of the journal, which may change it and is unreadable: %v", p.Number, why),
				"shut the guest down cleanly first, or check it for positions such as (hd0)63+1")
		}
	} else if ok {
		err = errors.Join(err, l.read(p, open.Before))
	}
	if err != nil {
		what := searched
		if !l.used(p) {
			what = ""
		}
		l.g.NotSeen(p, what, err)
	}
	return err
}

// tolerable drops errors about the content of a file system, and about absent files: an unreadable file prevents no
// move. It returns read errors.
func tolerable(err error) error {
	if ondisk.Understood(err) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, ondisk.ErrNoMatch) {
		return nil
	}
	return err
}

// read reads the configuration files of one file system. It returns the last error: a broken file does not hide others.
func (l *guest) read(p boot.Partition, files guestfile.FS) error {
	entries, err := files.List("")
	if err != nil {
		return err
	}
	top := map[string]bool{}
	for _, e := range entries {
		top[strings.ToLower(e.Name)] = true
	}
	count, broken := 0, error(nil)
	for _, c := range configFiles() {
		if first, _, _ := strings.Cut(c.pattern, "/"); !top[strings.ToLower(first)] {
			continue
		}
		names, err := l.expand(files, c.pattern)
		if err == nil {
			err = l.files(p, files, names, c, &count)
		} else if tolerable(err) == nil && !isAbsent(err) {
			err = l.unread(p, c.pattern, c, err)
		}
		if tolerable(err) != nil {
			return err
		}
		if err != nil {
			broken = err
		}
	}
	return broken
}

// files opens the named files, and queues them for the search. count is the number of files queued in the file system.
func (l *guest) files(p boot.Partition, files guestfile.FS, names []string, kind configFile,
	count *int,
) (broken error) {
	for _, name := range names {
		if *count == maxConfigs {
			return l.unread(p, name, kind, fmt.Errorf("%w of %d files to search", ondisk.ErrLimit,
				maxConfigs))
		}
		s, fresh, err := l.open(p, files, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case tolerable(err) != nil:
			return err
		case err != nil:
			broken = l.unread(p, name, kind, err)
		case fresh:
			*count++
			s.role, s.syntax = kind.role, kind.syntax
			l.queue = append(l.queue, s)
		}
	}
	return broken
}

// unread records that a loader's file could not be read, and returns the error.
func (l *guest) unread(p boot.Partition, name string, kind configFile, err error) error {
	if kind.role != "" || kind.syntax == boot.GRUB2 {
		l.miss(p.Number, fmt.Sprintf("%.256q of partition %d", "/"+name, p.Number), err.Error())
	}
	return err
}

// open reads a file. fresh is false if the file was already read under another name.
func (l *guest) open(p boot.Partition, files guestfile.FS, name string) (s *source, fresh bool, err error) {
	if l.opened++; l.opened > maxOpened {
		return nil, false, fmt.Errorf("file %.256q: %w of files to search", name, ondisk.ErrLimit)
	}
	f, err := files.Open(name)
	if err != nil {
		return nil, false, err
	}
	key := fileKey{files, f.Path}
	if s = l.seen[key]; s != nil {
		return s, false, nil
	}
	n := f.Size()
	if n > maxConfigSize || n > maxConfigBytes-l.bytes {
		return nil, false, fmt.Errorf("file %.256q of %d bytes: %w of a configuration", f.Path, n, ondisk.ErrLimit)
	}
	b, err := ondisk.Bytes(f, 0, n)
	if err != nil {
		return nil, false, err
	}
	l.bytes += n
	s = &source{in: p, path: "/" + strings.TrimPrefix(f.Path, "/"), text: string(b)}
	l.seen[key] = s
	return s, true, nil
}

// expand returns the paths that match a pattern, limited to one more than the caller may read.
func (l *guest) expand(files guestfile.FS, pattern string) ([]string, error) {
	paths := []string{""}
	for element := range strings.SplitSeq(pattern, "/") {
		var next []string
		for _, dir := range paths {
			found, err := l.match(files, dir, element)
			if err != nil {
				return nil, err
			}
			next = append(next, found...)
			next = next[:min(len(next), maxConfigs+1)]
		}
		paths = next
	}
	return paths, nil
}

// match returns the paths in a folder that match an element of a pattern. It lists the folder only for a star.
func (l *guest) match(files guestfile.FS, dir, element string) (paths []string, err error) {
	if !strings.Contains(element, "*") {
		return []string{path.Join(dir, element)}, nil
	}
	if l.opened++; l.opened > maxOpened {
		return nil, fmt.Errorf("folder %.256q: %w of files to search", dir, ondisk.ErrLimit)
	}
	entries, err := files.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if ok, _ := path.Match(element, strings.ToLower(e.Name)); ok && e.Name != "." && e.Name != ".." {
			paths = append(paths, path.Join(dir, e.Name))
		}
	}
	return paths, nil
}

// scanAll scans all lines of a source.
func (l *guest) scanAll(s *source) {
	if s.role != "" {
		l.link(s.in, s.role, fmt.Sprintf("%s: %.256q", s.role, s.path))
	}
	c := &config{guest: l, source: s}
	c.begin()
	if c.lines(); s.loader != nil && !s.loader.Anywhere {
		c.normal()
	}
}

// lines passes the words of each line to the scanner. A backslash at the end joins a line with the next.
func (c *config) lines() {
	var line []byte
	number := 0
	for s := range strings.Lines(c.text) {
		if number++; len(line) == 0 {
			c.line = number
		}
		s, open := strings.CutSuffix(strings.TrimRight(s, "\r\n"), `\`)
		if len(line)+len(s) > maxConfigLine {
			c.miss(c.in.Number, c.at(), fmt.Sprintf("only the first %d bytes of a line are read", maxConfigLine))
		}
		line = append(line, s[:min(len(s), maxConfigLine-len(line))]...)
		if open && len(line) < maxConfigLine {
			continue
		}
		c.command, line = strings.TrimSpace(string(line)), line[:0]
		switch {
		case c.command == "":
		case c.syntax == boot.GRUB2:
			c.grub2(c.command)
		default:
			scanners[c.syntax](c, words(c.command))
		}
	}
}

// link records the role of a partition in the boot, once for each topic.
func (l *guest) link(p boot.Partition, topic, text string) {
	key := fmt.Sprint("link ", p.Number, topic)
	if p.Kind == table.Extended || l.said[key] || len(l.found.Chain) == maxSaid {
		return
	}
	l.said[key] = true
	l.found.Link(p.Number, "partition %d %s", p.Number, text)
}

// Hibernation finds a Linux hibernated into a swap file. In a swap partition, its prober finds it.
var Hibernation = boot.Finder{Name: "hibernation of Linux", Find: findHibernation}

// swapFiles lists the usual paths. Sources: Ubuntu, subiquity and cloud-init (swap.img); Calamares, module fstab
// (swapfile, swap/swapfile); dphys-swapfile(8) of Raspberry Pi OS (var/swap).
var swapFiles = []string{"swapfile", "swap.img", "swap/swapfile", "var/swap"}

const (
	maxSwapFiles = 32 // paths looked up in each file system
	maxSwapDepth = 8  // path elements that may be a mount point of another file system
)

func findHibernation(g *boot.Guest) (boot.Found, error) {
	var listed []string
	f, err := eachView(g, func(_ boot.Partition, files guestfile.FS, _ *boot.Found) error {
		text, err := content(files, "etc/fstab")
		listed = append(listed, listedSwap(text)...)
		return err
	})
	if err != nil {
		return f, err
	}
	listed = listed[:min(len(listed), maxSwapFiles)]
	found, err := eachView(g, func(p boot.Partition, files guestfile.FS, f *boot.Found) error {
		return hibernated(p, files, listed, f)
	})
	f.Add(found)
	return f, err
}

// eachView calls do for each readable state of the files of a partition. A damaged file system ends only its own
// search.
func eachView(g *boot.Guest, do func(boot.Partition, guestfile.FS, *boot.Found) error) (boot.Found, error) {
	return boot.Everywhere(func(g *boot.Guest, p boot.Partition, f *boot.Found) error {
		files, err := g.Files(p)
		if err != nil {
			return tolerable(err) // the search for configurations records it
		}
		for _, view := range views(files) {
			err := do(p, view, f)
			if ondisk.Understood(err) {
				if !g.Missed(p) { // otherwise the search for configurations has recorded the partition
					g.NotSeen(p, searched, err)
				}
			} else if tolerable(err) != nil {
				return err
			}
		}
		return nil
	})(g)
}

// views returns the readable states of the files: before the journal replay for a loader, and after it for Linux.
func views(files guestfile.FS) []guestfile.FS {
	if open, ok := files.(*ext.Replayed); ok && open.Unread == nil {
		return []guestfile.FS{files, open.Before}
	}
	return []guestfile.FS{files}
}

// content returns the text of a small file, empty if it does not exist.
func content(files guestfile.FS, name string) (string, error) {
	f, err := files.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case f.Size() > maxConfigSize:
		return "", fmt.Errorf("file %.256q of %d bytes: %w of a configuration", f.Path, f.Size(), ondisk.ErrLimit)
	}
	b, err := ondisk.Bytes(f, 0, f.Size())
	return string(b), err
}

// listedSwap returns the paths of swap files in an fstab. A file system can be mounted on any folder of a path, so
// every tail of the path is a candidate.
func listedSwap(fstab string) (paths []string) {
	for line := range strings.Lines(fstab) {
		w := words(strings.TrimRight(line[:min(len(line), maxConfigLine)], "\r\n"))
		if len(w) < 3 || w[2] != "swap" || !strings.HasPrefix(w[0], "/") || strings.HasPrefix(w[0], "/dev/") {
			continue
		}
		elements := strings.Split(strings.TrimPrefix(path.Clean(w[0]), "/"), "/")
		for i := range elements[:min(len(elements), maxSwapDepth)] {
			paths = append(paths, path.Join(elements[i:]...))
		}
		if len(paths) >= maxSwapFiles {
			break
		}
	}
	return paths
}

// hibernated reports the swap files of a file system that hold a hibernated Linux. An unreadable file does not hide
// others.
func hibernated(p boot.Partition, files guestfile.FS, paths []string, f *boot.Found) (broken error) {
	if strings.HasPrefix(string(p.Volume.Kind), "ext") {
		paths = slices.Concat(swapFiles, paths)
	}
	for _, name := range paths {
		issues, err := asleepIn(files, name)
		if tolerable(err) != nil {
			return err
		}
		if ondisk.Understood(err) {
			broken = err
		}
		for _, i := range issues {
			name := fmt.Sprintf("the swap file %.256q%s", "/"+name, p.Suffix())
			i.Text = name + ": " + i.Text
			if !slices.ContainsFunc(f.Issues, func(x ondisk.Issue) bool { return x.Text == i.Text }) {
				f.Issues = append(f.Issues, i)
				f.Sign(boot.Hibernated, p, boot.NoMove, "%s holds a hibernated Linux", name)
			}
		}
	}
	return broken
}

// asleepIn returns the issues of a swap file.
func asleepIn(files guestfile.FS, name string) ([]ondisk.Issue, error) {
	file, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	v, err := volume.SwapArea.Probe(file)
	if err != nil {
		return nil, err
	}
	return v.Issues, nil
}
