package opinion

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// label is the name of the drive in the appliance, whose kernel numbers its own disks in any order.
const label = "trueup"

// command returns what adds the disk to an appliance, which cannot write to it.
func (d disk) command() string {
	options := fmt.Sprintf("readonly:true label:%s blocksize:%d", label, d.sectorSize)
	if d.socket != "" {
		return fmt.Sprintf(`add-drive "" format:raw protocol:nbd %s %s`, quoted("server:unix:"+d.socket), options)
	}
	return fmt.Sprintf("add-drive %s format:%s %s", quoted(d.path), drivers[d.format], options)
}

// quoted returns a text as guestfish reads it in one piece. Spec: guestfish(1), "Quoting".
func quoted(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteString(`\` + string(rune(c)))
		case c < ' ' || c > '~':
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

const (
	// launchTime bounds the start of the appliance, which emulation on a busy machine makes long.
	launchTime = 10 * time.Minute
	// endTime bounds the end of guestfish, which removes its files then.
	endTime = 10 * time.Second
	// mostItem bounds one line or name that guestfish prints, and mostSaid the words of an error, in bytes.
	mostItem, mostSaid = 64 << 10, 4 << 10
)

var (
	errLaunch = fmt.Errorf("the appliance of libguestfs did not start within %v; where KVM does not work, "+
		"LIBGUESTFS_BACKEND_SETTINGS=force_tcg does without it", launchTime)
	errEnded = errors.New("guestfish ended in the middle of a command")
	errItem  = fmt.Errorf("guestfish printed more than %d bytes without an end of the line", mostItem)
)

// session is a guestfish that waits for commands. Its errors come between its answers, in order.
type session struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	pipe *os.File
	ctx  context.Context //nolint:containedctx // of the process
	end  context.CancelCauseFunc
	gone chan struct{} // closed when all that writes to the pipe is gone
	mark string        // of the end of an answer; no image can know it
	said strings.Builder
}

// start runs guestfish with a drive. Its files go to folder.
func start(ctx context.Context, program, folder string, d disk) (*session, error) {
	ctx, end := context.WithCancelCause(ctx)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LIBGUESTFS_TMPDIR="+folder)
	if os.Getenv("LIBGUESTFS_BACKEND") == "" {
		cmd.Env = append(cmd.Env, "LIBGUESTFS_BACKEND=direct") // needs no libvirt, and runs as this user
	}
	s := &session{cmd: cmd, ctx: ctx, end: end, gone: make(chan struct{}), mark: rand.Text()}
	sys.Apart(cmd)
	// QEMU ends when it is asked to, and then guestfish, which is not, removes its files.
	cmd.Cancel = func() error {
		_ = s.in.Close()
		err := sys.TerminateGroup(cmd)
		select {
		case <-s.gone:
		case <-time.After(endTime):
			_ = sys.KillGroup(cmd)
		}
		return err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.in, s.pipe, s.out = in, out, bufio.NewReader(out)
	cmd.Stdout, cmd.Stderr = theirs, theirs
	err = cmd.Start()
	if err = errors.Join(err, theirs.Close()); err != nil {
		end(err)
		return nil, errors.Join(err, out.Close())
	}
	return s, s.send(d.command())
}

// close ends guestfish and all that it started.
func (s *session) close() {
	_ = s.in.Close() // guestfish ends there
	limit := time.AfterFunc(endTime, func() { s.end(errEnded) })
	_, _ = io.Copy(io.Discard, s.out)
	limit.Stop()
	close(s.gone)
	_ = s.cmd.Wait() // its disks are read-only
	s.end(nil)
	_ = s.pipe.Close()
}

// send has guestfish run a command, whether the one before went well or not. A mark follows its answer.
func (s *session) send(command string) error {
	s.said.Reset()
	_, err := fmt.Fprintf(s.in, "-%s\necho %s\n", command, s.mark)
	if err != nil {
		return s.failed(err)
	}
	return nil
}

// next returns the next item of the answer, each with sep at its end. ok is false at the end of the answer. What is no
// item by valid is an error's text and goes to said.
func (s *session) next(sep byte, valid func(item string) bool) (item string, ok bool, err error) {
	var b []byte
	for {
		c, err := s.out.ReadByte()
		switch {
		case err != nil:
			return "", false, s.failed(errEnded)
		case c == '\n' && strings.HasSuffix(string(b[max(0, len(b)-len(s.mark)):]), s.mark):
			s.note(string(b[:len(b)-len(s.mark)]))
			return "", false, nil
		case c == sep && valid(string(b)):
			return string(b), true, nil
		case c == sep || c == '\n' && !anyLine(string(b)):
			s.note(string(b))
			b = b[:0]
		case len(b) == mostItem:
			return "", false, s.failed(errItem)
		default:
			b = append(b, c)
		}
	}
}

// errorMark stands before an error of libguestfs, behind the number of the line.
const errorMark = "libguestfs: error: "

// note keeps the text of an error, as far as there is room.
func (s *session) note(text string) {
	if _, after, found := strings.Cut(text, errorMark); found {
		text = after
	}
	if text = strings.TrimSpace(text); text == "" {
		return
	}
	if s.said.Len() > 0 {
		text = "; " + text
	}
	s.said.WriteString(text[:min(len(text), mostSaid-s.said.Len())])
}

// failed returns why the session is of no more use.
func (s *session) failed(err error) error {
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause
	}
	if s.said.Len() > 0 {
		return fmt.Errorf("%w; its last words: %.300q", err, s.said.String())
	}
	return err
}

// mostLines bounds the lines of an answer that is kept.
const mostLines = 4096

// ask returns the lines of an answer that are valid. What else was printed is in said.
func (s *session) ask(valid func(line string) bool) (lines []string, err error) {
	for {
		line, ok, err := s.next('\n', valid)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return lines, nil
		case len(lines) < mostLines:
			lines = append(lines, line)
		}
	}
}

// pair is an appliance with the source, and one with the copy. Each has a kernel of its own: two volume groups or pools
// of one name cannot be told apart in one.
type pair struct {
	source, dest *session
	found        Table
}

// compareFiles has appliances read two disks side by side, and returns what they found and the version of libguestfs.
// Their files go to folder. limit bounds the time behind the start.
func compareFiles(
	ctx context.Context, program, folder string, source, dest disk, limit time.Duration,
) (version string, found Table, err error) {
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
func (p *pair) say(v Verdict, asked, format string, args ...any) {
	p.found = append(p.found, Row{Asked: asked, Said: fmt.Sprintf(format, args...), Verdict: v})
}

// both sends a command to both, and returns the lines of their answers.
func (p *pair) both(command string, valid func(string) bool) (source, dest []string, err error) {
	if err = p.send(command); err != nil {
		return nil, nil, err
	}
	return p.answers(valid)
}

func (p *pair) send(command string) error {
	return errors.Join(p.source.send(command), p.dest.send(command))
}

func (p *pair) answers(valid func(string) bool) (source, dest []string, err error) {
	if source, err = p.source.ask(valid); err == nil {
		dest, err = p.dest.ask(valid)
	}
	return source, dest, err
}

func noLine(string) bool       { return false }
func anyLine(line string) bool { return !strings.Contains(line, errorMark) }

// launch starts both appliances.
func (p *pair) launch() (version string, err error) {
	if _, _, err = p.answers(noLine); err == nil { // to add-drive
		err = p.refusal("guestfish takes no such drive")
	}
	if err != nil {
		return "", err
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
	if _, _, err = p.both("run", noLine); err == nil {
		err = p.refusal("the appliance of libguestfs does not start")
	}
	return version, err
}

// refusal returns what either said to a command, behind some words.
func (p *pair) refusal(words string) error {
	for _, s := range []*session{p.source, p.dest} {
		if cause := context.Cause(s.ctx); cause != nil {
			return cause // what it said is that it was ended
		}
		if s.said.Len() > 0 {
			return fmt.Errorf("%s: %.600q", words, s.said.String())
		}
	}
	return nil
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
	if err == nil {
		err = p.refusal("list-filesystems")
	}
	switch {
	case err != nil:
		return err
	case !slices.Equal(x, y):
		p.say(Differs, asked, "SOURCE has %s, DEST has %s", list(x), list(y))
		return nil
	case len(x) > mostVolumes:
		p.say(NotLooked, asked, "there are %d, which is more than %d", len(x), mostVolumes)
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
		p.say(NotLooked, asked, "found none on either disk")
	}
	return nil
}

// noFiles says that a volume has no files that the appliance could read.
func (p *pair) noFiles(v volume) {
	p.say(NotLooked, v.device, "its content (%.100s) has no files to read here", v.kind)
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
		p.say(Differs, asked, "SOURCE has %s, DEST has %s", list(x), list(y))
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
			p.say(Differs, device, "its content is %.100s on SOURCE, %.100s on DEST", kind, strings.Join(b, " "))
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
		p.say(NotLooked, asked, "the appliance lacks this program")
	case codeX == "" || codeY == "":
		return fmt.Errorf("%s gave no exit code: %.200q", asked, p.source.said.String()+p.dest.said.String())
	case codeX != codeY:
		p.say(Differs, asked, "ends with %s on SOURCE (%s), with %s on DEST (%s)", codeX, saidX, codeY, saidY)
	case codeX == "exit 0":
		p.say(Agrees, asked, "no error")
	case len(codeX) > len("exit 7") || codeX > "exit 7": // fsck(8): 8 and above, it did not come to check
		p.say(NotLooked, asked, "ends with %s on both, and checked nothing (%s)", codeX, saidY)
	default:
		p.say(Agrees, asked, "ends with %s on both: SOURCE has the same errors (%s)", codeX, saidY)
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
		p.say(Differs, asked, "SOURCE: %.200s; DEST: %.200s", p.source.said.String(), p.dest.said.String())
		return nil
	case p.source.said.Len() > 0:
		p.say(NotLooked, asked, "fails on both: %.200s", p.source.said.String())
		return nil
	case !slices.Equal(x, y):
		p.say(Differs, asked, "SOURCE has a system on %s, DEST on %s", list(x), list(y))
		return nil
	case len(x) == 0:
		p.say(NotLooked, asked, "found no operating system on either disk")
	}
	for _, root := range x[:min(len(x), mostVolumes)] {
		a, b, err := p.both("inspect-get-product-name "+quoted(root), anyLine)
		if err != nil {
			return err
		}
		if name := strings.Join(a, " "); slices.Equal(a, b) {
			p.say(Agrees, asked, "%s has %.100s", root, name)
		} else {
			p.say(Differs, asked, "%s has %.100s on SOURCE, %.100s on DEST", root, name, strings.Join(b, " "))
		}
	}
	return nil
}

// files compares the names of all files of a file system, and the SHA-256 of the regular ones. Both appliances read
// side by side: equal file systems list their files in one order, so that nothing has to be kept.
func (p *pair) files(v volume) error {
	asked := v.device + ": files of " + v.kind
	if _, _, err := p.both("mount-ro "+quoted(v.device)+" /", noLine); err != nil {
		return err
	}
	x, y := p.source.said.String(), p.dest.said.String()
	switch {
	case x != "" && y != "":
		p.say(NotLooked, asked, "cannot be mounted on either disk: %.200s", y)
		return nil
	case x != "":
		p.say(Differs, asked, "cannot be mounted on SOURCE, and on DEST it can: %.200s", x)
	case y != "":
		p.say(Differs, asked, "cannot be mounted on DEST: %.200s", y)
	default:
		if err := p.contents(asked); err != nil {
			return err
		}
	}
	_, _, err := p.both("umount-all", noLine)
	return err
}

// isSum matches a line of sha256sum, which begins with \ where the name has escapes.
var isSum = ondisk.LazyPattern(`^\\?[0-9a-f]{64} [ *]`)

// contents compares the files of what is mounted.
func (p *pair) contents(asked string) error {
	names, err := p.stream("find0 / -", 0, anyLine)
	if err != nil {
		return err
	}
	sums, err := p.stream("checksums-out sha256 / -", '\n', isSum().MatchString)
	if err != nil {
		return err
	}
	switch {
	case names.differs != "":
		p.say(Differs, asked, "names differ: %s", names.differs)
	case sums.differs != "":
		p.say(Differs, asked, "SHA-256 differs: %s", sums.differs)
	case names.said != "" || sums.said != "":
		p.say(NotLooked, asked, "equal SHA-256 for %d of them; the others cannot be read on either disk: %.200s",
			sums.items, strings.TrimLeft(names.said+"; "+sums.said, "; "))
	default:
		p.say(Agrees, asked, "all names (%d) and the SHA-256 of all regular files (%d) are equal", names.items,
			sums.items)
	}
	return nil
}

// streamed is what came of two streams.
type streamed struct {
	items   int64
	differs string // the first item that differs, and how many do
	said    string // the error of both
}

// stream compares the items that both sessions answer, one by one.
func (p *pair) stream(command string, sep byte, valid func(string) bool) (c streamed, err error) {
	if err = p.send(command); err != nil {
		return c, err
	}
	return p.streams(sep, valid)
}

// streams compares the answers of both sessions.
func (p *pair) streams(sep byte, valid func(string) bool) (c streamed, err error) {
	var first string
	var differing int64
	for more := true; more; {
		x, inX, err := p.source.next(sep, valid)
		if err != nil {
			return c, err
		}
		y, inY, err := p.dest.next(sep, valid)
		if err != nil {
			return c, err
		}
		switch {
		case inX && inY && x == y:
			c.items++
		case inX != inY: // one has more
			if differing++; first == "" {
				first = x + y
			}
			if err := drain(p.source, inX, sep, valid); err != nil {
				return c, err
			}
			if err := drain(p.dest, inY, sep, valid); err != nil {
				return c, err
			}
			more = false
		case inX:
			if differing++; first == "" {
				first = y
			}
		default:
			more = false
		}
	}
	c.said = p.dest.said.String()
	if differing > 0 {
		if c.differs = nameOf(first); differing > 1 {
			c.differs += fmt.Sprintf(", and %d more", differing-1)
		}
	} else if other := p.source.said.String(); other != c.said {
		c.differs = fmt.Sprintf("SOURCE: %.200s; DEST: %.200s", other, c.said)
	}
	return c, nil
}

// drain reads an answer to its end.
func drain(s *session, more bool, sep byte, valid func(string) bool) (err error) {
	for more && err == nil {
		_, more, err = s.next(sep, valid)
	}
	return err
}

// nameOf returns the name of an item, without its sum.
func nameOf(item string) string {
	if isSum().MatchString(item) {
		_, item, _ = strings.Cut(item, " ")
		item = item[1:]
	}
	return fmt.Sprintf("%.200q", item)
}
