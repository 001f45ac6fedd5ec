package opinion

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
)

// Finding is what was found when both disks were asked the same.
type Finding struct {
	Asked, Said string
	Looked      bool // false: the appliance cannot read it
	Same        bool // both gave the same answer
}

// pair is an appliance with the source, and one with the copy. Each has a kernel of its own: two volume groups or pools
// of one name cannot be told apart in one.
type pair struct {
	source, dest *session
	found        []Finding
}

// Compare has appliances read two disks side by side, and returns what they found and the version of libguestfs. Their
// files go to folder. limit bounds the time behind the start.
func Compare(
	ctx context.Context, program, folder string, source, dest Drive, limit time.Duration,
) (version string, found []Finding, err error) {
	s, err := start(ctx, program, folder, source)
	if s != nil {
		defer s.close()
	}
	if err != nil {
		return "", nil, err
	}
	d, err := start(ctx, program, folder, dest)
	if d != nil {
		defer d.close()
	}
	if err != nil {
		return "", nil, err
	}
	p := &pair{source: s, dest: d}
	callOff := p.limit(launchTime, errLaunch)
	version, err = p.launch()
	callOff()
	if err != nil {
		return version, nil, err
	}
	defer p.limit(limit, fmt.Errorf("libguestfs did not end within %v", limit))()
	if err := p.filesystems(); err != nil {
		return version, nil, err
	}
	return version, p.found, p.systems()
}

// limit ends both sessions after a time, unless it is called off.
func (p *pair) limit(after time.Duration, why error) (callOff func() bool) {
	return time.AfterFunc(after, func() {
		p.source.end(why)
		p.dest.end(why)
	}).Stop
}

// say adds a finding.
func (p *pair) say(looked, same bool, asked, format string, args ...any) {
	p.found = append(p.found, Finding{asked, fmt.Sprintf(format, args...), looked, same})
}

// both sends a command to both, and returns the lines of their answers.
func (p *pair) both(command string, valid func(string) bool) (source, dest []string, err error) {
	if err = errors.Join(p.source.send(command), p.dest.send(command)); err != nil {
		return nil, nil, err
	}
	if source, err = p.source.ask(valid); err == nil {
		dest, err = p.dest.ask(valid)
	}
	return source, dest, err
}

func noLine(string) bool       { return false }
func anyLine(line string) bool { return !strings.Contains(line, errorMark) }

// launch starts both appliances.
func (p *pair) launch() (version string, err error) {
	for _, s := range []*session{p.source, p.dest} { // the answer to add-drive
		if _, err := s.ask(noLine); err != nil {
			return "", err
		}
		if s.said.Len() > 0 {
			return "", fmt.Errorf("guestfish takes no such drive: %.300q", s.said.String())
		}
	}
	lines, _, err := p.both("version", anyLine)
	if err != nil {
		return "", err
	}
	parts := map[string]string{}
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ": ")
		parts[name] = value
	}
	version = strings.Trim(parts["major"]+"."+parts["minor"]+"."+parts["release"], ".")
	if !regexp.MustCompile(`^[0-9.]{1,32}$`).MatchString(version) {
		return "", errors.New("guestfish prints no version of libguestfs")
	}
	if _, _, err := p.both("run", noLine); err != nil {
		return version, err
	}
	for _, s := range []*session{p.source, p.dest} {
		if cause := context.Cause(s.ctx); cause != nil {
			return version, cause // what it said is that it was ended
		}
		if s.said.Len() > 0 {
			return version, fmt.Errorf("the appliance of libguestfs does not start: %.600q", s.said.String())
		}
	}
	return version, nil
}

// volume is a file system as libguestfs names it: /dev/sda1, /dev/vg/root, btrfsvol:/dev/sda1/home.
type volume struct{ device, kind string }

// isVolume matches a line of list-filesystems.
var isVolume = ondisk.LazyPattern(`^(?:btrfsvol:)?/dev/[^:\x00-\x1f]+: [A-Za-z0-9_.+-]{1,64}$`)

func volumes(lines []string) (out []volume) {
	for _, l := range lines {
		i := strings.LastIndex(l, ": ")
		out = append(out, volume{l[:i], l[i+2:]})
	}
	return out
}

// noFiles are kinds of contents that libguestfs names and that have no files it could read without a key.
var noFiles = []string{"unknown", "swap", "crypto_LUKS", "BitLocker", "LVM2_member", "linux_raid_member"}

// mostVolumes bounds the file systems that are looked at.
const mostVolumes = 256

// filesystems compares the file systems of both disks, one after the other.
func (p *pair) filesystems() error {
	const asked = "file systems"
	x, y, err := p.both("list-filesystems", isVolume().MatchString)
	if err != nil {
		return err
	}
	for _, s := range []*session{p.source, p.dest} {
		if s.said.Len() > 0 {
			return fmt.Errorf("list-filesystems: %.600q", s.said.String())
		}
	}
	switch {
	case !slices.Equal(x, y):
		p.say(true, false, asked, "SOURCE has %s, DEST has %s", list(x), list(y))
		return nil
	case len(x) > mostVolumes:
		p.say(false, true, asked, "there are %d, which is more than %d", len(x), mostVolumes)
		return nil
	}
	listed := volumes(x)
	for _, v := range listed {
		if slices.Contains(noFiles, v.kind) {
			p.noFiles(v)
			continue
		}
		if err := errors.Join(p.check(v), p.files(v)); err != nil {
			return err
		}
	}
	if err := p.unlisted(listed); err != nil {
		return err
	}
	if len(p.found) == 0 {
		p.say(false, true, asked, "found none on either disk")
	}
	return nil
}

// noFiles says that a volume has no files that the appliance could read.
func (p *pair) noFiles(v volume) {
	p.say(false, true, v.device, "its content (%.100s) has no files to read here", v.kind)
}

// unlisted names partitions that list-filesystems leaves out though something is on them: what is encrypted, and
// members of groups and arrays.
func (p *pair) unlisted(listed []volume) error {
	const asked = "list-partitions"
	isPartition := regexp.MustCompile(`^/dev/[A-Za-z0-9/]{1,64}$`).MatchString
	x, y, err := p.both(asked, isPartition)
	if err != nil {
		return err
	}
	if !slices.Equal(x, y) {
		p.say(true, false, asked, "SOURCE has %s, DEST has %s", list(x), list(y))
		return nil
	}
	for _, device := range x[:min(len(x), mostVolumes)] {
		if slices.ContainsFunc(listed, func(v volume) bool { return v.device == device }) {
			continue
		}
		a, b, err := p.both("vfs-type "+quoted(device), anyLine)
		switch kind := strings.Join(a, " "); {
		case err != nil:
			return err
		case !slices.Equal(a, b):
			p.say(true, false, device, "its content is %.100s on SOURCE, %.100s on DEST", kind, strings.Join(b, " "))
		case kind != "": // an extended partition has none
			p.noFiles(volume{device, kind})
		}
	}
	return nil
}

func list(lines []string) string {
	if len(lines) == 0 {
		return "none"
	}
	return fmt.Sprintf("%.200s", strings.Join(lines, ", "))
}

// checks are programs of the appliance that check a file system, by kind, with the options that keep them from writing.
var checks = map[string]string{
	"ext2": "e2fsck -f -n", "ext3": "e2fsck -f -n", "ext4": "e2fsck -f -n", "ntfs": "ntfsfix -n", "vfat": "fsck.fat -n",
	"xfs": "xfs_repair -n", "btrfs": "btrfs check --readonly", "exfat": "fsck.exfat -n", "f2fs": "fsck.f2fs --dry-run",
	"hfsplus": "fsck.hfsplus -n", "jfs": "jfs_fsck -n",
}

// check has both appliances check a file system. A damaged source has a copy with the same damage: what counts is that
// both checks end alike.
func (p *pair) check(v volume) error {
	tool, ok := checks[v.kind]
	if !ok || strings.HasPrefix(v.device, "btrfsvol:") {
		return nil
	}
	asked := v.device + ": " + tool
	name, _, _ := strings.Cut(tool, " ")
	device := v.device
	if rest, found := strings.CutPrefix(device, "/dev/sda"); found {
		device = "/dev/disk/guestfs/" + label + rest
	}
	// The end of the output is enough, and its last line is the exit code.
	script := fmt.Sprintf("command -v %s >/dev/null 2>&1 || { echo absent; exit 0; }; "+
		"{ %s '%s' 2>&1 </dev/null; echo exit $?; } | tail -c 2000", name, tool, device)
	x, y, err := p.both("debug sh "+quoted(script), anyLine)
	if err != nil {
		return err
	}
	codeX, saidX := exitOf(x)
	codeY, saidY := exitOf(y)
	switch {
	case codeX == "absent" && codeY == "absent":
		p.say(false, true, asked, "the appliance lacks this program")
	case codeX == "" || codeY == "":
		return fmt.Errorf("%s gave no exit code: %.200q", asked, p.source.said.String()+p.dest.said.String())
	case codeX != codeY:
		p.say(true, false, asked, "ends with %s on SOURCE (%s), with %s on DEST (%s)", codeX, saidX, codeY, saidY)
	case codeX == "exit 0":
		p.say(true, true, asked, "no error")
	case len(codeX) > len("exit 7") || codeX > "exit 7": // fsck(8): 8 and above, it did not come to check
		p.say(false, true, asked, "ends with %s on both, and checked nothing (%s)", codeX, saidY)
	default:
		p.say(true, true, asked, "ends with %s on both: SOURCE has the same errors (%s)", codeX, saidY)
	}
	return nil
}

var isExit = ondisk.LazyPattern(`^exit [0-9]{1,3}$|^absent$`)

// exitOf returns how a check ended, empty if that is not known, and its last words.
func exitOf(lines []string) (code, said string) {
	if len(lines) == 0 || !isExit().MatchString(lines[len(lines)-1]) {
		return "", ""
	}
	words := lines[:len(lines)-1]
	for i := len(words) - 1; i >= 0 && said == ""; i-- {
		said = strings.TrimSpace(words[i])
	}
	return lines[len(lines)-1], fmt.Sprintf("%.200s", said)
}

// systems compares the operating systems that libguestfs finds.
func (p *pair) systems() error {
	const asked = "inspect-os"
	isRoot := regexp.MustCompile(`^(?:btrfsvol:)?/dev/[^"\\\x00-\x1f]+$`).MatchString
	x, y, err := p.both(asked, isRoot)
	switch {
	case err != nil:
		return err
	case p.source.said.String() != p.dest.said.String():
		p.say(true, false, asked, "SOURCE: %.200s; DEST: %.200s", p.source.said.String(), p.dest.said.String())
		return nil
	case p.source.said.Len() > 0:
		p.say(false, true, asked, "fails on both: %.200s", p.source.said.String())
		return nil
	case !slices.Equal(x, y):
		p.say(true, false, asked, "SOURCE has a system on %s, DEST on %s", list(x), list(y))
		return nil
	case len(x) == 0:
		p.say(false, true, asked, "found no operating system on either disk")
	}
	for _, root := range x[:min(len(x), mostVolumes)] {
		a, b, err := p.both("inspect-get-product-name "+quoted(root), anyLine)
		if err != nil {
			return err
		}
		if name := strings.Join(a, " "); slices.Equal(a, b) {
			p.say(true, true, asked, "%s has %.100s", root, name)
		} else {
			p.say(true, false, asked, "%s has %.100s on SOURCE, %.100s on DEST", root, name, strings.Join(b, " "))
		}
	}
	return nil
}
