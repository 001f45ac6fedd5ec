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
	"strconv"
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
	// mostLine bounds one line that guestfish prints, and mostSaid the words of an error, in bytes.
	mostLine, mostSaid = 64 << 10, 4 << 10
)

var (
	errLaunch = fmt.Errorf("the appliance of libguestfs did not start within %v; where KVM does not work, "+
		"LIBGUESTFS_BACKEND_SETTINGS=force_tcg does without it", launchTime)
	errEnded = errors.New("guestfish ended in the middle of a command")
	errLine  = fmt.Errorf("guestfish printed more than %d bytes without an end of the line", mostLine)
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
	s.in, s.pipe, s.out = in, out, bufio.NewReaderSize(out, mostLine)
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
		b, err := s.out.ReadSlice('\n')
		line := strings.TrimSuffix(string(b), "\n")
		rest, end := strings.CutSuffix(line, s.mark)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return nil, s.failed(errLine)
		case err != nil:
			return nil, s.failed(errEnded)
		case end:
			s.note(rest)
			return lines, nil
		case !valid(line):
			s.note(line)
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
	err = p.filesystems()
	return version, p.found, err
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
	if err = errors.Join(p.source.send(command), p.dest.send(command)); err != nil {
		return nil, nil, err
	}
	return p.answers(valid)
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

// outcome is how a command ended in an appliance.
type outcome struct {
	code int
	text string // the end of its output
}

// words are the last line that a command printed.
func (o outcome) words() string {
	text := strings.TrimSpace(o.text)
	return fmt.Sprintf("%.200s", text[strings.LastIndexByte(text, '\n')+1:])
}

// isOutcome matches the output of a command in an appliance.
var isOutcome = ondisk.LazyPattern(`(?s)^(.*\n)?exit ([0-9]{1,3})$`)

// shell has the shells of both appliances run a command.
func (p *pair) shell(asked, command string) (source, dest outcome, err error) {
	x, y, err := p.both("debug sh "+quoted("{ "+command+"; echo exit $?; } 2>&1 </dev/null | tail -c 2000"), anyLine)
	if err != nil {
		return source, dest, err
	}
	a := isOutcome().FindStringSubmatch(strings.Join(x, "\n"))
	b := isOutcome().FindStringSubmatch(strings.Join(y, "\n"))
	if a == nil || b == nil {
		return source, dest, fmt.Errorf("%s gave no exit code: %.200q", asked,
			p.source.said.String()+p.dest.said.String())
	}
	source.code, _ = strconv.Atoi(a[2]) // by the pattern
	dest.code, _ = strconv.Atoi(b[2])
	source.text, dest.text = a[1], b[1]
	return source, dest, nil
}

// check has both appliances check a file system. A damaged source has a copy with the same damage: what counts is that
// both checks end alike.
func (p *pair) check(v volume) error {
	tool, ok := checks[v.kind]
	if !ok || strings.HasPrefix(v.device, "btrfsvol:") {
		return nil
	}
	device := v.device
	if rest, found := strings.CutPrefix(device, "/dev/sda"); found {
		device = "/dev/disk/guestfs/" + label + rest
	}
	asked := v.device + ": " + tool
	x, y, err := p.shell(asked, tool+" '"+device+"'")
	switch {
	case err != nil:
		return err
	case x.code != y.code:
		p.say(Differs, asked, "ends with exit %d on SOURCE (%s), with exit %d on DEST (%s)", x.code, x.words(), y.code,
			y.words())
	case x.code == 0:
		p.say(Agrees, asked, "no error")
	case x.code > 7: // fsck(8): 8 and above, it did not come to check; sh: 127, the appliance lacks it
		p.say(NotLooked, asked, "ends with exit %d on both, and checked nothing (%s)", x.code, y.words())
	default:
		p.say(Agrees, asked, "ends with exit %d on both: SOURCE has the same errors (%s)", x.code, y.words())
	}
	return nil
}

// listing prints the SHA-256 of all names of the mounted file system and their number, the SHA-256 of the list of all
// regular files with theirs and their number, and errors. Equal file systems list their files in one order.
const listing = `cd /sysroot && { find . -print0 2>/tmp/e | sha256sum; find . -printf x 2>/tmp/f | wc -c; ` +
	`find . -type f -print0 2>>/tmp/e | xargs -0 -r sha256sum 2>>/tmp/e | sha256sum; ` +
	`find . -type f -printf x 2>>/tmp/f | wc -c; head -c 500 /tmp/e; }`

// isListing matches the parts of a listing. The number of names is not 0, since the root is one.
var isListing = ondisk.LazyPattern(
	`(?s)^([0-9a-f]{64}  -\n([1-9][0-9]*)\n)([0-9a-f]{64}  -\n([0-9]+)\n)(.*)$`)

// files compares the names of all files of a file system, and the contents of the regular ones.
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

// contents compares the files of what is mounted.
func (p *pair) contents(asked string) error {
	x, y, err := p.shell(asked, listing)
	if err != nil {
		return err
	}
	a, b := isListing().FindStringSubmatch(x.text), isListing().FindStringSubmatch(y.text)
	const names, number, sums, regular, errs = 1, 2, 3, 4, 5
	switch {
	case a == nil || b == nil || x.code != 0 || y.code != 0:
		return fmt.Errorf("%s: the appliance cannot list them: %.200q", asked, x.words()+"; "+y.words())
	case a[names] != b[names]:
		p.say(Differs, asked, "names differ")
	case a[sums] != b[sums]:
		p.say(Differs, asked, "names are equal, and the SHA-256 of regular files differ")
	case a[errs] != b[errs]:
		p.say(Differs, asked, "SOURCE: %.200s; DEST: %.200s", a[errs], b[errs])
	case a[errs] != "":
		p.say(NotLooked, asked, "equal as far as they can be read on either disk: %.200s", strings.TrimSpace(a[errs]))
	default:
		p.say(Agrees, asked, "all names (%s) and the SHA-256 of all regular files (%s) are equal", a[number],
			a[regular])
	}
	return nil
}
