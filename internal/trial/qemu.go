package trial

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/self"
	"github.com/trueup/trueup/internal/sys"
)

// process is a running QEMU.
type process struct {
	cmd     *exec.Cmd
	monitor *QMP
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has ended
	said    sys.Tail
	cpu     int      // thread of the guest's CPU; 0 if unknown
	out     *os.File // QMP output of QEMU
	dump    *os.File // receives screendumps from QEMU
	dumped  *os.File // the same file, open for reading
}

// Descriptors of the child: the screendump file and the connection to the disk server. QEMU opens neither by path, so
// it needs no permission for them.
const (
	pictureFD = 3
	diskFD    = 4
)

const (
	maxPPM     = 16 << 20 // bytes of a screendump
	maxWords   = 4 << 10  // bytes of standard error kept
	endLimit   = 5 * time.Second
	dialLimit  = 10 * time.Second
	pictureSet = "/dev/fdset/1"
)

// start runs QEMU and returns after it has opened all files, before the guest starts.
func (m *Machine) start(ctx context.Context, patience time.Duration) (*process, error) {
	program, err := m.program()
	if err != nil {
		return nil, err
	}
	args, err := m.arguments()
	if err != nil {
		return nil, err
	}
	server, err := dial(ctx, m.Disk)
	if err != nil {
		return nil, err
	}
	defer server.Close()
	dir, err := os.MkdirTemp(temporary(), "trueup-boot-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // its files are unlinked when the guest runs
	p := &process{done: make(chan struct{}), said: sys.Tail{Most: maxWords}}
	if err := p.makePicture(dir); err != nil {
		return nil, errors.Join(err, p.closeFiles())
	}
	args = append([]string{"-add-fd", fmt.Sprintf("fd=%d,set=1", pictureFD)}, args...)
	p.cmd = &exec.Cmd{
		Path: program, Args: append([]string{program}, args...), Dir: "/",
		Env:    []string{"TMPDIR=" + dir, "PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent"},
		Stderr: &p.said, ExtraFiles: []*os.File{p.dump, server}, WaitDelay: endLimit,
	}
	if err = sys.Unprivileged(p.cmd, dir); err == nil {
		err = p.spawn(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.closeFiles())
	}
	p.monitor.Limit = patience
	if err := p.monitor.Greet(ctx); err != nil {
		p.end()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		hint := ""
		if m.Accel != emulation {
			hint = "; to run without KVM, add --accel tcg"
		}
		return nil, ondisk.In(errNoQMP, "%s: %s%s", program, p.words(err), hint)
	}
	return p, nil
}

// temporary returns the folder for guest writes: the usual place of large files, or the user's own. As root, QEMU runs
// as another user, who must be able to enter the folder.
func temporary() string {
	if dir := os.Getenv("TMPDIR"); dir != "" && (os.Getuid() != 0 || openToAll(dir)) {
		return dir
	}
	if st, err := os.Stat("/var/tmp"); err == nil && st.IsDir() {
		return "/var/tmp"
	}
	return os.TempDir()
}

// openToAll reports whether every user may enter a folder and its parents.
func openToAll(dir string) bool {
	dir, err := filepath.Abs(dir)
	for err == nil {
		st, statErr := os.Stat(dir)
		if statErr != nil || st.Mode()&1 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
		dir = filepath.Dir(dir)
	}
	return false
}

// dial connects to a server URI.
func dial(ctx context.Context, uri string) (*os.File, error) {
	socket, err := self.Socket(uri)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialLimit}
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.(*net.UnixConn).File()
}

// makePicture creates the screendump file, which is unlinked when QEMU runs.
func (p *process) makePicture(dir string) (err error) {
	path := filepath.Join(dir, "screen")
	//nolint:gosec // a folder of our own
	if p.dump, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	p.dumped, err = os.Open(path) //nolint:gosec // the same
	return err
}

func (p *process) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{p.dump, p.dumped} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// spawn starts the QEMU process.
func (p *process) spawn(ctx context.Context) error {
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return err
	}
	p.cmd.Stdout, p.out = theirOut, out
	started := make(chan error)
	go func() {
		release := sys.Tie(p.cmd)
		defer release()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			sys.EndGroup(p.cmd.Process.Pid)
			_ = p.cmd.Wait() // p.cmd.ProcessState has the exit status
			close(p.done)
		}
	}()
	err = <-started
	err = errors.Join(err, theirOut.Close())
	if err != nil {
		return errors.Join(err, out.Close())
	}
	ctx, p.cancel = context.WithCancel(ctx)
	p.monitor = NewQMP(ctx, in, out)
	return nil
}

// end kills QEMU and its children, and waits for QEMU.
func (p *process) end() {
	p.cancel()
	_ = p.cmd.Process.Kill()
	<-p.done
	_ = p.out.Close()
	_ = p.closeFiles()
}

// words returns the text of an error, followed by the last stderr output of QEMU.
func (p *process) words(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
		select {
		case <-p.done:
			err = fmt.Errorf("QEMU ended: %v", p.cmd.ProcessState)
		case <-time.After(endLimit):
			err = errors.New("QEMU closed its monitor")
		}
	}
	return strings.TrimSpace(err.Error() + "; " + cmp.Or(p.said.String(), "it printed nothing"))
}

// picture returns the screen as a PPM file.
func (p *process) picture(ctx context.Context) ([]byte, error) {
	// QEMU writes through the same open file.
	if err := p.dump.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := p.dump.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if err := p.monitor.Call(ctx, "screendump", map[string]string{"filename": pictureSet}, nil); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.NewSectionReader(p.dumped, 0, maxPPM+1))
	if err == nil && len(b) > maxPPM {
		err = fmt.Errorf("%w: a picture of more than %d bytes", errNoQMP, maxPPM)
	}
	return b, err
}

// findProcessor finds the thread of the guest's CPU. Without it, all threads of QEMU count. Spec: QEMU,
// qapi/machine.json, query-cpus-fast.
func (p *process) findProcessor(ctx context.Context) {
	var all []struct {
		Thread int `json:"thread-id"`
	}
	if err := p.monitor.Call(ctx, "query-cpus-fast", nil, &all); err == nil && len(all) > 0 {
		p.cpu = all[0].Thread
	}
}

// work returns the CPU time of the guest, or false if it is unknown.
func (p *process) work() (time.Duration, bool) { return sys.Work(p.cmd.Process.Pid, p.cpu) }

// QMP is a client of the QEMU Machine Protocol: lines of JSON. It is for one goroutine. Spec: QEMU,
// docs/interop/qmp-spec.
type QMP struct {
	Event func(name string, data json.RawMessage) // receives events while a call waits
	Limit time.Duration                           // of one command

	w       io.Writer
	answers <-chan answer
	lost    <-chan error // receives the reason why there are no more answers
	number  int
}

// answer is any line from QEMU.
type answer struct {
	QMP    json.RawMessage `json:"QMP"`
	ID     int             `json:"id"`
	Return json.RawMessage `json:"return"`
	Event  string          `json:"event"`
	Data   json.RawMessage `json:"data"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// Limits of the protocol. Under emulation on a busy host, a command can wait for the guest's CPU.
const (
	maxLine   = 4 << 20 // bytes of a line: the longest is the serial buffer in base64
	callLimit = 60 * time.Second
)

// errNoQMP marks unexpected output of QEMU, or a missing answer.
var errNoQMP = errors.New("QEMU violates its monitor protocol")

// NewQMP starts reading QEMU's output. The goroutine ends with r or with the context.
func NewQMP(ctx context.Context, w io.Writer, r io.Reader) *QMP {
	answers, lost := make(chan answer), make(chan error, 1)
	go func() { lost <- readAnswers(ctx, r, answers) }()
	return &QMP{w: w, answers: answers, lost: lost, Event: func(string, json.RawMessage) {}, Limit: callLimit}
}

// readAnswers decodes lines up to the first invalid one.
func readAnswers(ctx context.Context, r io.Reader, to chan<- answer) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			return fmt.Errorf("%w: %.80q", errNoQMP, lines.Bytes())
		}
		select {
		case to <- a:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%w: %w", errNoQMP, err)
	}
	return io.EOF
}

// Wait handles events until a time.
func (q *QMP) Wait(ctx context.Context, until <-chan time.Time) error {
	for {
		if a, err := q.next(ctx, until); err != nil || a == nil {
			return err
		}
	}
}

// next returns the next line, or nil at the given time. It also handles an event.
func (q *QMP) next(ctx context.Context, until <-chan time.Time) (*answer, error) {
	select {
	case a := <-q.answers:
		if a.Event != "" {
			q.Event(a.Event, a.Data)
		}
		return &a, nil
	case err := <-q.lost:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-until:
		return nil, nil //nolint:nilnil // documented
	}
}

// Greet reads QEMU's greeting and ends the negotiation mode of QMP.
func (q *QMP) Greet(ctx context.Context) error {
	timed, cancel := context.WithTimeoutCause(ctx, q.Limit, fmt.Errorf("%w: no greeting in %v", errNoQMP, q.Limit))
	defer cancel()
	a, err := q.next(timed, nil)
	if err != nil {
		return cause(timed, err)
	}
	if a.QMP == nil {
		return fmt.Errorf("%w: its first line is no greeting", errNoQMP)
	}
	return q.Call(ctx, "qmp_capabilities", nil, nil)
}

// commandError is the error of a command from QEMU.
type commandError struct{ command, desc string }

func (e *commandError) Error() string { return fmt.Sprintf("QEMU: %s: %.200s", e.command, e.desc) }

// Call executes a command. Both arguments and result may be nil.
func (q *QMP) Call(ctx context.Context, command string, arguments, result any) error {
	q.number++
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        int    `json:"id"`
	}{command, arguments, q.number})
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeoutCause(ctx, q.Limit, fmt.Errorf("%w: %s took %v", errNoQMP, command, q.Limit))
	defer cancel()
	if _, err := q.w.Write(append(line, '\n')); err != nil {
		return err
	}
	for {
		a, err := q.next(timed, nil)
		switch {
		case err != nil:
			return cause(timed, err)
		case a.ID != q.number:
			continue
		case a.Error != nil:
			return &commandError{command, a.Error.Desc}
		case result == nil:
			return nil
		}
		if err := json.Unmarshal(a.Return, result); err != nil {
			return fmt.Errorf("%w: %s: %.80q", errNoQMP, command, a.Return)
		}
		return nil
	}
}

// cause returns the cause of an expired context if err is its deadline.
func cause(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}

// human executes a command of the human monitor, for functions missing in QMP.
func (q *QMP) human(ctx context.Context, line string) (string, error) {
	var text string
	err := q.Call(ctx, "human-monitor-command", map[string]string{"command-line": line}, &text)
	return text, err
}
