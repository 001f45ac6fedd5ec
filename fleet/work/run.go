package work

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/internal/sys"
)

// Limits of a run's output, in bytes: an image may have compromised the process.
const (
	maxLine   = 64 << 10
	maxOutput = 8 << 20
	maxLog    = 4 << 10
	maxCode   = 64
)

// run is one trueup process of a job. It can be killed at any time, along with this process: it only writes temporary
// names, or an exchange with a journal.
type run struct {
	cmd   *exec.Cmd
	said  chan event // closed when the run closes its output
	ended chan end

	mu   sync.Mutex
	gone bool // the process was reaped, and its number can be reused
}

// event is a line of JSON on the run's standard error.
type event struct {
	Event string `json:"event"`
	fleet.Progress
}

// end is the result of a run.
type end struct {
	exit   int // negative if it was killed or could not be waited for
	output []byte
	log    string
	err    error
}

// start starts the program. log receives the lines that are not JSON.
func start(program string, args []string, log func(line string)) (*run, error) {
	r := &run{said: make(chan event), ended: make(chan end, 1)}
	started := make(chan error)
	// The kernel ties the child to the thread that starts it, so this goroutine keeps the thread until the program
	// ends.
	go func() {
		r.cmd = exec.Command(program, args...)
		release := sys.Tie(r.cmd)
		defer release()
		var said io.Reader
		out, err := r.cmd.StdoutPipe()
		if err == nil {
			said, err = r.cmd.StderrPipe()
		}
		if err == nil {
			err = r.cmd.Start()
		}
		started <- err
		if err == nil {
			r.ended <- r.wait(out, said, log)
		}
	}()
	return r, <-started
}

// wait reads the output of the run until it ends.
func (r *run) wait(out, said io.Reader, log func(line string)) (e end) {
	output := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(io.LimitReader(out, maxOutput+1)) // truncated output is not valid JSON
		_, _ = io.Copy(io.Discard, out)
		output <- b
	}()
	tail := r.listen(said, log)
	close(r.said)
	e.output = <-output
	sys.EndGroup(r.cmd.Process.Pid)
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
	e.err = r.cmd.Wait()
	e.exit, e.log = r.cmd.ProcessState.ExitCode(), tail
	return e
}

// listen forwards events, and returns the last of the other lines.
func (r *run) listen(said io.Reader, log func(line string)) (tail string) {
	in := bufio.NewReaderSize(said, maxLine)
	for {
		line, err := in.ReadSlice('\n')
		var e event
		if bytes.HasPrefix(line, []byte("{")) && json.Unmarshal(line, &e) == nil && e.Event != "" {
			e.Phase = clip(e.Phase, maxCode)
			r.said <- e
		} else if text := strings.TrimSpace(string(line)); text != "" {
			text = fleet.Plain(text)
			log(text)
			tail += text + "\n"
			tail = tail[max(0, len(tail)-maxLog):]
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return strings.ToValidUTF8(tail, "?")
		}
	}
}

// signal signals the run's process group, unless it has ended.
func (r *run) signal(group func(*exec.Cmd) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gone {
		_ = group(r.cmd) // it may be ending
	}
}

// kill kills the run and its children, and waits for them.
func (r *run) kill() end {
	r.signal(sys.KillGroup)
	for range r.said { // wait needs the channel drained
		continue
	}
	return <-r.ended
}

// finish asks the run to end, and kills it after patience.
func (r *run) finish(patience time.Duration) end {
	r.stop()
	defer time.AfterFunc(patience, func() { r.signal(sys.KillGroup) }).Stop()
	for range r.said {
		continue
	}
	return <-r.ended
}

// stop asks the run to end.
func (r *run) stop() { r.signal(sys.TerminateGroup) }

// failure is the JSON of trueup for an error.
type failure struct {
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// verdict is the consequence of a run for its job.
type verdict struct {
	state         fleet.State // Queued if another try may succeed
	code, message string
}

// lasting holds the error codes that another try with the same image would return again.
var lasting = map[string]bool{
	"usage": true, "unsupported": true, "format": true, "reference": true, "limit": true, "changed": true,
}

// busy is the error code of an image that another program is using.
const busy = "busy"

// unfinished is the error code of a disk in the middle of an exchange.
const unfinished = "unfinished"

// gone is the code of a missing datastore.
const gone = "gone"

// exitRefused is the exit code of trueup for a refusal.
const exitRefused = 4

// exitDiffers is the exit code of trueup verify for a difference.
const exitDiffers = 5

// verdictOf returns the verdict of a run from its exit code and its JSON. good lists the exit codes of success.
func verdictOf(e end, good ...int) verdict {
	if slices.Contains(good, e.exit) {
		return verdict{state: fleet.Done}
	}
	var f failure
	err := json.Unmarshal(e.output, &f)
	if err == nil && f.Error == nil && e.exit == exitDiffers {
		return verdict{fleet.Queued, "verify", "the copy differs from the aligned image"}
	}
	if err != nil || f.Error == nil || e.exit < 0 || !fleet.IsCode(f.Error.Code) {
		return verdict{fleet.Queued, "crash", fmt.Sprintf("trueup ended without a result: %v", e.err)}
	}
	v := verdict{fleet.Queued, f.Error.Code, clip(f.Error.Message, maxLog)}
	if v.code != busy && (e.exit == exitRefused || lasting[v.code]) {
		v.state = fleet.Refused
	}
	return v
}

// clip makes a text one line of bounded length.
func clip(s string, most int) string {
	s = fleet.Plain(s)
	return strings.ToValidUTF8(s[:min(len(s), most)], "?")
}

// ask runs the program until it ends.
func ask(ctx context.Context, program string, args ...string) (end, error) {
	r, err := start(program, args, func(string) {})
	if err != nil {
		return end{}, err
	}
	defer context.AfterFunc(ctx, func() { r.signal(sys.KillGroup) })()
	for range r.said {
		continue // not needed
	}
	return <-r.ended, ctx.Err()
}
