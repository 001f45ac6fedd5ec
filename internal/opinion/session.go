// This part of the package asks libguestfs about the contents of disks, as a second opinion. It runs guestfish, whose
// appliance is a Linux in a virtual machine, and compares what two of them say: one has the source, the other one its
// copy. What they say is untrusted: it is bounded, and it must be escaped before it is shown.

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
	"strings"
	"time"

	"github.com/trueup/trueup/internal/sys"
)

// Names of guestfish and of its package in Debian.
const (
	GuestfishProgram = "guestfish"
	GuestfishPackage = "libguestfs-tools"
)

// Drive is a disk for the appliance, which cannot write to it: a file, or what a socket serves by NBD.
type Drive struct {
	Path       string // absolute
	Format     string // of the file, as QEMU names it
	Socket     string // of a server of NBD, instead of a path
	SectorSize int64  // bytes
}

// label is the name of the drive in the appliance, whose kernel numbers its own disks in any order.
const label = "trueup"

// command returns what adds the drive.
func (d Drive) command() string {
	options := fmt.Sprintf("readonly:true label:%s blocksize:%d", label, d.SectorSize)
	if d.Socket != "" {
		return fmt.Sprintf(`add-drive "" format:raw protocol:nbd %s %s`, quoted("server:unix:"+d.Socket), options)
	}
	return fmt.Sprintf("add-drive %s format:%s %s", quoted(d.Path), d.Format, options)
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
func start(ctx context.Context, program, folder string, d Drive) (*session, error) {
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
