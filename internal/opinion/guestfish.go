package opinion

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// label is the name of the drive in the appliance, whose kernel numbers its own disks in any order.
const label = "trueup"

// command returns the guestfish command that adds the disk read-only to an appliance.
func (d disk) command() string {
	options := fmt.Sprintf("readonly:true label:%s blocksize:%d", label, d.sectorSize)
	if d.socket != "" {
		return fmt.Sprintf(`add-drive "" format:raw protocol:nbd %s %s`, quoted("server:unix:"+d.socket), options)
	}
	return fmt.Sprintf("add-drive %s format:%s %s", quoted(d.path), drivers[d.format], options)
}

// quoted quotes a text as one argument of guestfish. Spec: guestfish(1), "Quoting".
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
	// launchTime limits the start of the appliance, which is slow under emulation on a busy machine.
	launchTime = 10 * time.Minute
	// endTime limits the exit of guestfish, which includes removing its files.
	endTime = 10 * time.Second
	// mostLine limits one line of guestfish's output, and mostSaid the text of an error, in bytes.
	mostLine, mostSaid = 64 << 10, 4 << 10
)

var (
	errLaunch = fmt.Errorf("the libguestfs appliance did not start within %v; if KVM does not work here, set "+
		"LIBGUESTFS_BACKEND_SETTINGS=force_tcg", launchTime)
	errEnded = errors.New("guestfish ended in the middle of a command")
	errLine  = fmt.Errorf("guestfish printed a line of more than %d bytes", mostLine)
)

// session is a guestfish process that waits for commands. Its errors come between its answers, in order.
type session struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	pipe *os.File
	ctx  context.Context //nolint:containedctx // of the process
	end  context.CancelCauseFunc
	gone chan struct{} // closed when all writers of the pipe are gone
	mark string        // end of an answer; no image can predict it
	said strings.Builder
}

// start starts guestfish. Its files go to folder.
func start(ctx context.Context, program, folder string) (*session, error) {
	ctx, end := context.WithCancelCause(ctx)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LIBGUESTFS_TMPDIR="+folder)
	if os.Getenv("LIBGUESTFS_BACKEND") == "" {
		cmd.Env = append(cmd.Env, "LIBGUESTFS_BACKEND=direct") // needs no libvirt, and runs as this user
	}
	s := &session{cmd: cmd, ctx: ctx, end: end, gone: make(chan struct{}), mark: rand.Text()}
	sys.Apart(cmd)
	// SIGTERM ends QEMU and guestfish. guestfish then leaves its files in folder, which the caller removes.
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
	return s, nil
}

// close ends guestfish and its child processes.
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

// errorMark precedes an error of libguestfs, after the line number.
const errorMark = "libguestfs: error: "

// note appends the text of an error to said, up to its limit.
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

// failed returns the error of a session that has become unusable.
func (s *session) failed(err error) error {
	if cause := context.Cause(s.ctx); cause != nil {
		err = cause
	}
	if s.said.Len() > 0 {
		return fmt.Errorf("%w; its last output: %.300q", err, s.said.String())
	}
	return err
}

// mostLines limits the lines kept of an answer.
const mostLines = 4096

// ask makes guestfish run a command, even after a failed one. It returns the valid lines of the answer. All other
// output goes to said. A mark ends each answer, even of a session ended in the meantime: ask returns an error for that.
func (s *session) ask(command string, valid func(line string) bool) ([]string, error) {
	s.said.Reset()
	if _, err := fmt.Fprintf(s.in, "-%s\necho %s\n", command, s.mark); err != nil {
		return nil, s.failed(err)
	}
	lines, err := s.answer(valid)
	return lines, cmp.Or(err, context.Cause(s.ctx))
}

// answer reads an answer up to its mark.
func (s *session) answer(valid func(line string) bool) (lines []string, err error) {
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

// compareFiles compares the files of two disks in two parallel appliances, and returns a row for each result. Each
// appliance has its own kernel: one kernel cannot distinguish two volume groups or pools with the same name. Their
// files go to folder. limit is the longest time after the start of the appliances. With an error come the earlier
// results common to both.
func compareFiles(
	ctx context.Context, program, folder string, source, dest disk, limit time.Duration,
) (Table, error) {
	var found [2][]answer
	var errs [2]error
	var both sync.WaitGroup
	for i, d := range []disk{source, dest} {
		both.Go(func() { found[i], errs[i] = look(ctx, program, folder, d, limit) })
	}
	both.Wait()
	t, err := compared(found[0], found[1]), cmp.Or(errs[0], errs[1])
	if len(t) == 0 && err == nil {
		t = Table{{Asked: "file systems", Said: "none found on either disk", Verdict: NotLooked}}
	}
	return t, err
}

// answer is the finding of one appliance about one object.
type answer struct {
	asked   string
	value   string  // must be equal on both disks
	words   string  // the value, for people
	said    string  // for an equal value
	verdict Verdict // for an equal value; empty for a silent result
}

// compared compares the answers of two appliances. Both have the same objects, up to the first volume that only one of
// them lists.
func compared(source, dest []answer) (t Table) {
	for i := range min(len(source), len(dest)) {
		x, y := source[i], dest[i]
		if x.asked != y.asked {
			break
		}
		if x.value != y.value {
			x.said, x.verdict = fmt.Sprintf("SOURCE: %s; DEST: %s", x.words, y.words), Differs
		}
		if x.verdict != "" {
			t = append(t, Row{Asked: x.asked, Said: x.said, Verdict: x.verdict})
		}
	}
	return t
}

// look examines a disk in an appliance.
func look(ctx context.Context, program, folder string, d disk, limit time.Duration) ([]answer, error) {
	s, err := start(ctx, program, folder)
	if err != nil {
		return nil, err
	}
	defer s.close()
	callOff := s.limit(launchTime, errLaunch)
	_, err = s.must("guestfish rejects the drive", d.command(), noLine)
	if err == nil {
		_, err = s.must("the libguestfs appliance does not start", "run", noLine)
	}
	callOff()
	if err != nil {
		return nil, err
	}
	defer s.limit(limit, fmt.Errorf("libguestfs did not end within %v", limit))()
	return s.survey()
}

// limit ends the session after a time, unless the caller calls callOff.
func (s *session) limit(after time.Duration, why error) (callOff func() bool) {
	return time.AfterFunc(after, func() { s.end(why) }).Stop
}

func noLine(string) bool       { return false }
func anyLine(line string) bool { return !strings.Contains(line, errorMark) }

// must is ask for a command that has to succeed.
func (s *session) must(words, command string, valid func(string) bool) ([]string, error) {
	lines, err := s.ask(command, valid)
	if err == nil && s.said.Len() > 0 {
		err = fmt.Errorf("%s: %.600q", words, s.said.String())
	}
	return lines, err
}

// isVolume matches a line of list-filesystems: a file system in libguestfs notation (/dev/sda1, /dev/vg/root,
// btrfsvol:/dev/sda1/home), and its kind.
var isVolume = ondisk.LazyPattern(`^((?:btrfsvol:)?/dev/[^:\x00-\x1f]+): ([A-Za-z0-9_.+-]{1,64})$`)

// isPartition matches a line of list-partitions.
var isPartition = ondisk.LazyPattern(`^/dev/[A-Za-z0-9/]{1,64}$`)

// noFiles lists the kinds of content without files, or with files that need a key.
var noFiles = []string{"unknown", "swap", "crypto_LUKS", "BitLocker", "LVM2_member", "linux_raid_member"}

// mostVolumes limits the file systems examined.
const mostVolumes = 256

// survey examines the file systems of a disk in turn, and then the partitions with content but no file system:
// encrypted ones, and members of groups and arrays. With an error come the answers before it.
func (s *session) survey() ([]answer, error) {
	systems, err := s.must("list-filesystems", "list-filesystems", isVolume().MatchString)
	if err != nil {
		return nil, err
	}
	partitions, err := s.must("list-partitions", "list-partitions", isPartition().MatchString)
	if err != nil {
		return nil, err
	}
	out := []answer{listed("file systems", systems), listed("partitions", partitions)}
	if n := max(len(systems), len(partitions)); n > mostVolumes {
		out[0].verdict, out[0].said = NotLooked, fmt.Sprintf("there are %d, more than the limit of %d", n, mostVolumes)
		return out, nil
	}
	for _, line := range systems {
		found, err := s.volume(line)
		out = append(out, found...)
		if err != nil {
			return out, err
		}
	}
	for _, device := range partitions {
		if slices.ContainsFunc(systems, func(line string) bool { return strings.HasPrefix(line, device+": ") }) {
			continue
		}
		lines, err := s.ask("vfs-type "+quoted(device), anyLine)
		if err != nil {
			return out, err
		}
		out = append(out, unread(device, strings.Join(lines, " "), s.said.String()))
	}
	return out, nil
}

// listed returns the answer for a list that must be equal.
func listed(asked string, lines []string) answer {
	words := fmt.Sprintf("%.200s", strings.Join(lines, ", "))
	return answer{asked: asked, value: strings.Join(lines, "\n"), words: cmp.Or(words, "none")}
}

// unread returns the answer for a device without readable files. An extended partition has no kind. why is the error
// that left the kind unknown.
func unread(device, kind, why string) answer {
	a := answer{asked: device, value: kind, words: fmt.Sprintf("its content is %.100s", cmp.Or(kind, "unknown"))}
	switch {
	case why != "":
		a.said, a.verdict = fmt.Sprintf("its content is unknown: %.200q", why), NotLooked
	case kind != "":
		a.said, a.verdict = fmt.Sprintf("its content (%.100s) has no readable files", kind), NotLooked
	}
	return a
}

// volume examines a file system, given by its line in the list.
func (s *session) volume(line string) ([]answer, error) {
	m := isVolume().FindStringSubmatch(line)
	device, kind := m[1], m[2]
	if slices.Contains(noFiles, kind) {
		return []answer{unread(device, kind, "")}, nil
	}
	var out []answer
	if tool, ok := checks[kind]; ok && !strings.HasPrefix(device, "btrfsvol:") {
		a, err := s.check(device, tool)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	a, err := s.files(device, kind)
	if err != nil {
		return out, err
	}
	return append(out, a), nil
}

// checks lists the check programs of the appliance by kind of file system, with the options that prevent writes.
var checks = map[string]string{
	"ext2": "e2fsck -f -n", "ext3": "e2fsck -f -n", "ext4": "e2fsck -f -n", "ntfs": "ntfsfix -n", "vfat": "fsck.fat -n",
	"xfs": "xfs_repair -n", "btrfs": "btrfs check --readonly", "exfat": "fsck.exfat -n", "f2fs": "fsck.f2fs --dry-run",
	"hfsplus": "fsck.hfsplus -n", "jfs": "jfs_fsck -n",
}

// isOutcome matches the output of a command in an appliance.
var isOutcome = ondisk.LazyPattern(`(?s)^(.*\n)?exit ([0-9]{1,3})$`)

// shell runs a command in the shell of the appliance. text is the end of its output, and words are its last line.
func (s *session) shell(asked, command string) (code int, text, words string, err error) {
	lines, err := s.ask("debug sh "+quoted("{ "+command+"; echo exit $?; } 2>&1 </dev/null | tail -c 2000"), anyLine)
	if err != nil {
		return 0, "", "", err
	}
	m := isOutcome().FindStringSubmatch(strings.Join(lines, "\n"))
	if m == nil {
		return 0, "", "", fmt.Errorf("%s returned no exit code: %.200q", asked, s.said.String())
	}
	code, _ = strconv.Atoi(m[2]) // by the pattern
	words = strings.TrimSpace(m[1])
	return code, m[1], fmt.Sprintf("%.200s", words[strings.LastIndexByte(words, '\n')+1:]), nil
}

// check checks a file system in the appliance. The copy of a damaged source has the same damage: both checks must end
// alike.
func (s *session) check(device, tool string) (answer, error) {
	asked := device + ": " + tool
	if rest, found := strings.CutPrefix(device, "/dev/sda"); found {
		device = "/dev/disk/guestfs/" + label + rest
	}
	code, _, words, err := s.shell(asked, tool+" '"+device+"'")
	a := answer{asked: asked, value: strconv.Itoa(code), words: fmt.Sprintf("exit %d (%s)", code, words)}
	switch {
	case code == 0:
		a.said, a.verdict = "no errors", Agrees
	case code > 7: // fsck(8): 8 and above, nothing was checked; sh: 127, the program is missing
		a.said = fmt.Sprintf("ends with exit %d on both, and checked nothing (%s)", code, words)
		a.verdict = NotLooked
	default:
		a.said = fmt.Sprintf("ends with exit %d on both: SOURCE has the same errors (%s)", code, words)
		a.verdict = Agrees
	}
	return a, err
}

// listing prints the SHA-256 of all names of the mounted file system and their number, the SHA-256 of the list of all
// regular files with their checksums and their number, and errors. Equal file systems list their files in the same
// order.
const listing = `cd /sysroot && { find . -print0 2>/tmp/e | sha256sum; find . -printf x 2>/tmp/f | wc -c; ` +
	`find . -type f -print0 2>>/tmp/e | xargs -0 -r sha256sum 2>>/tmp/e | sha256sum; ` +
	`find . -type f -printf x 2>>/tmp/f | wc -c; head -c 500 /tmp/e; }`

// isListing matches the parts of a listing. The number of names is at least 1, for the root.
var isListing = ondisk.LazyPattern(`(?s)^([0-9a-f]{64})  -\n([1-9][0-9]*)\n([0-9a-f]{64})  -\n([0-9]+)\n(.*)$`)

// files reads the names of all files of a file system, and the contents of the regular ones.
func (s *session) files(device, kind string) (answer, error) {
	a := answer{asked: device + ": files of " + kind}
	if _, err := s.ask("mount-ro "+quoted(device)+" /", noLine); err != nil {
		return a, err
	}
	if said := s.said.String(); said != "" {
		a.words, a.verdict = fmt.Sprintf("cannot be mounted: %.200s", said), NotLooked
		a.said = fmt.Sprintf("cannot be mounted on either disk: %.200s", said)
		return a, nil
	}
	code, text, words, err := s.shell(a.asked, listing)
	if err != nil {
		return a, err
	}
	m := isListing().FindStringSubmatch(text)
	if m == nil || code != 0 {
		return a, fmt.Errorf("%s: the appliance cannot list them: %.200q", a.asked, words)
	}
	names, number, sums, regular, errs := m[1], m[2], m[3], m[4], strings.TrimSpace(m[5])
	a.value = text
	a.words = fmt.Sprintf("%s names with SHA-256 %.16s…, %s regular files with %.16s…", number, names, regular, sums)
	if errs == "" {
		a.said = fmt.Sprintf("all names (%s) and the SHA-256 of all regular files (%s) are equal", number, regular)
		a.verdict = Agrees
	} else {
		a.words += ", " + errs
		a.said, a.verdict = "the readable ones are equal: "+errs, NotLooked
	}
	_, err = s.ask("umount-all", noLine)
	return a, err
}
