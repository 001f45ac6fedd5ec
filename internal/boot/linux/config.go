// Package linux knows the loaders of Linux but GRUB, and the configuration by which a Linux finds its disks.
package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// Configuration reads the text files by which a Linux guest finds its disks. They name UUIDs, labels and numbers of
// partitions, which stay. A place that counts from the start of the disk is reported and never rewritten: the file
// would change its length. resume= and resume_offset= do not matter, since both mean a place within a partition.
var Configuration = boot.Finder{Name: "linux configuration", Find: findLinux}

// Limits of what is read and reported. No configuration written by people exceeds them.
const (
	maxConfigs     = 64       // files of one file system
	maxConfigSize  = 1 << 20  // bytes of one file
	maxConfigBytes = 4 << 20  // of all files of a disk
	maxOpened      = 512      // names of a disk that are looked up: each can take a walk through large folders
	maxLookups     = 512      // names of partitions on a disk that are resolved, and places on it that are judged
	maxConfigLine  = 16 << 10 // bytes of a line
	maxConfigWords = 1 << 10  // words of a line
	maxSaid        = 16       // issues of a disk, and links
	maxQuoted      = 120      // bytes of a line that are shown
	configCode     = "linux-configuration"
	writeName      = "write the line anew, in the guest or in the copy, so that it names the partition and not a " +
		"place on the disk"
	orLeave = "; or leave this partition where it is (--partition selects others)"
)

// configFile is a kind of file to read. An element of its pattern can hold one star.
type configFile struct {
	pattern string
	role    string // what its partition is in the boot; empty: nothing
	scan    func(c *config, words []string)
}

const (
	roleRoot     = "holds the root of a Linux"
	roleGRUB     = "holds the configuration of GRUB"
	roleSyslinux = "holds the configuration of SYSLINUX"
	roleLimine   = "holds the configuration of Limine"
	roleEntries  = "holds the entries of a boot loader"
)

// configFiles are those of a root file system, then those of a boot file system, which can be the same.
var configFiles = append([]configFile{
	{"etc/fstab", roleRoot, scanFstab},
	{"etc/crypttab", "", scanCrypttab},
	{"etc/default/grub", "", scanOptions},
	{"etc/kernel/cmdline", "", scanOptions},
	{"etc/dracut.conf", "", scanOptions},
	{"etc/dracut.conf.d/*.conf", "", scanOptions},
	{"etc/lilo.conf", "", scanLilo},
	{"etc/dmtab", "", scanCommands},
	{"etc/rc.local", "", scanCommands},
	{"etc/rc.d/rc.local", "", scanCommands},
	{"etc/init.d/boot.local", "", scanCommands},
	{"etc/udev/rules.d/*.rules", "", scanRules},
	{"efi/*/grub.cfg", roleGRUB, scanGRUB},
	{"syslinux.cfg", roleSyslinux, scanOptions},
	{"extlinux.conf", roleSyslinux, scanOptions},
	{"menu.lst", roleGRUB, scanGRUB}, // of grub4dos
}, append(inBoot("boot/"), inBoot("")...)...)

// inBoot returns the files of a boot file system, below the folder where it is mounted or at its top.
func inBoot(top string) []configFile {
	return []configFile{
		{top + "grub/grub.cfg", roleGRUB, scanGRUB},
		{top + "grub/custom.cfg", "", scanGRUB},
		{top + "grub/menu.lst", roleGRUB, scanGRUB},
		{top + "grub/grub.conf", roleGRUB, scanGRUB},
		{top + "grub2/grub.cfg", roleGRUB, scanGRUB},
		{top + "grub2/custom.cfg", "", scanGRUB},
		{top + "loader/entries/*.conf", roleEntries, scanOptions},
		{top + "limine.conf", roleLimine, scanOptions},
		{top + "limine.cfg", roleLimine, scanOptions},
		{top + "limine/limine.conf", roleLimine, scanOptions},
		{top + "limine/limine.cfg", roleLimine, scanOptions},
		{top + "syslinux/*.cfg", roleSyslinux, scanOptions},
		{top + "extlinux/*.cfg", roleSyslinux, scanOptions},
		{top + "extlinux/*.conf", roleSyslinux, scanOptions},
	}
}

// guest is the state of reading the files of a disk.
type guest struct {
	g     *boot.Guest
	found boot.Found
	said  map[string]bool
	// Spent of the limits.
	bytes                 int64
	opened, names, places int
}

// config is the state of reading one file.
type config struct {
	*guest
	in     boot.Partition
	path   string
	role   string
	line   int
	text   string // of the line
	onDisk bool   // GRUB's root is the whole disk
}

func findLinux(g *boot.Guest) (boot.Found, error) {
	l := &guest{g: g, said: map[string]bool{}}
	for _, p := range g.Partitions {
		if p.Kind == table.Extended {
			continue
		}
		files, err := g.Files(p)
		before := l.opened
		if err == nil {
			err = l.read(p, files)
		}
		// A loader reads the files as they are, and Linux once the journal is replayed.
		if open, ok := files.(*ext.Replayed); ok && open.Unread != nil {
			if g.NotSeen(p); l.opened > before {
				l.found.Warn(configCode, 0, fmt.Sprintf("the boot configuration in partition %d was read as the disk "+
					"has it, and the journal to be replayed, which may change it, cannot be read: %v", p.Number,
					ondisk.Shift(open.Unread, p.Off)),
					"shut the guest down cleanly first, or look for positions such as (hd0)63+1 in it")
			}
		} else if ok {
			err = errors.Join(err, l.read(p, open.Before))
		}
		if err != nil {
			g.NotSeen(p)
		}
		if err = tolerable(err); err != nil {
			return l.found, fmt.Errorf("partition %d: %w", p.Number, err)
		}
	}
	return l.found, nil
}

// tolerable drops what is wrong with a file system: files that are not understood keep no partition from moving.
func tolerable(err error) error {
	if boot.Understood(err) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, ondisk.ErrNoMatch) {
		return nil
	}
	return err
}

// read reads the files of one file system. The error is the last one: a broken file does not hide others.
func (l *guest) read(p boot.Partition, files guestfile.FS) error {
	entries, err := files.List("")
	if err != nil {
		return err
	}
	top := map[string]bool{}
	for _, e := range entries {
		top[strings.ToLower(e.Name)] = true
	}
	seen, broken := map[string]bool{}, error(nil)
	for _, c := range configFiles {
		if first, _, _ := strings.Cut(c.pattern, "/"); !top[first] {
			continue
		}
		names, err := l.expand(files, c.pattern)
		if err == nil {
			err = l.files(p, files, names, c, seen)
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

// files reads those of one pattern. seen holds the files that another name led to.
func (l *guest) files(p boot.Partition, files guestfile.FS, names []string, kind configFile,
	seen map[string]bool,
) (broken error) {
	for _, name := range names {
		if l.opened++; l.opened > maxOpened || len(seen) == maxConfigs {
			return fmt.Errorf("file %.256q: %w of files that are looked into", name, ondisk.ErrLimit)
		}
		f, err := files.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !seen[f.Path] {
			seen[f.Path] = true
			err = l.file(p, f, kind)
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

// expand returns the paths of a pattern. Folders are listed only for a star.
func (l *guest) expand(files guestfile.FS, pattern string) ([]string, error) {
	paths := []string{""}
	for element := range strings.SplitSeq(pattern, "/") {
		var next []string
		for _, dir := range paths {
			if !strings.Contains(element, "*") {
				next = append(next, path.Join(dir, element))
				continue
			}
			if l.opened++; l.opened > maxOpened {
				return nil, fmt.Errorf("folder %.256q: %w of files that are looked into", dir, ondisk.ErrLimit)
			}
			entries, err := files.List(dir)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			for _, e := range entries {
				if ok, _ := path.Match(element, strings.ToLower(e.Name)); ok && len(next) < maxConfigs &&
					e.Name != "." && e.Name != ".." {
					next = append(next, path.Join(dir, e.Name))
				}
			}
		}
		paths = next
	}
	return paths, nil
}

// file reads one file and scans it.
func (l *guest) file(p boot.Partition, f *guestfile.File, kind configFile) error {
	n := f.Size()
	if n > maxConfigSize || n > maxConfigBytes-l.bytes {
		return fmt.Errorf("file %.256q of %d bytes: %w of a configuration", f.Path, n, ondisk.ErrLimit)
	}
	b, err := ondisk.Bytes(f, 0, n)
	if err != nil {
		return err
	}
	l.bytes += n
	c := &config{guest: l, in: p, path: "/" + strings.TrimPrefix(f.Path, "/"), role: kind.role}
	if kind.role != "" {
		c.link(p, kind.role, fmt.Sprintf("%s: %.256q", kind.role, c.path))
	}
	c.scan(string(b), kind.scan)
	return nil
}

// scan passes the words of each line to a scanner. A line that ends in a backslash goes on.
func (c *config) scan(text string, scanner func(*config, []string)) {
	var line []byte
	number := 0
	for s := range strings.Lines(text) {
		if number++; len(line) == 0 {
			c.line = number
		}
		s, open := strings.CutSuffix(strings.TrimRight(s, "\r\n"), `\`)
		line = append(line, s[:min(len(s), maxConfigLine-len(line))]...)
		if open && len(line) < maxConfigLine {
			continue
		}
		c.text, line = strings.TrimSpace(string(line)), line[:0]
		if c.text != "" {
			scanner(c, words(c.text))
		}
	}
}

// words divides a line as a shell does. A comment follows a #.
func words(line string) (out []string) {
	var w []byte
	quote, inside := byte(0), false
	for i := 0; i < len(line) && len(out) < maxConfigWords; i++ {
		switch b := line[i]; {
		case quote != 0 && b == quote:
			quote = 0
		case quote == 0 && (b == '"' || b == '\''):
			quote, inside = b, true
		case quote != '\'' && b == '\\' && i+1 < len(line):
			i++
			w, inside = append(w, line[i]), true
		case quote == 0 && (b == ' ' || b == '\t'):
			if inside {
				out = append(out, string(w))
			}
			w, inside = w[:0], false
		case quote == 0 && !inside && b == '#':
			return out
		default:
			w, inside = append(w, b), true
		}
	}
	if inside {
		out = append(out, string(w))
	}
	return out
}

// link adds once what a partition is in the boot.
func (l *guest) link(p boot.Partition, topic, text string) {
	key := fmt.Sprint("link ", p.Number, topic)
	if p.Kind == table.Extended || l.said[key] || len(l.found.Chain) == maxSaid {
		return
	}
	l.said[key] = true
	l.found.Link(p.Number, "partition %d %s", p.Number, text)
}
