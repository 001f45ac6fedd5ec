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

// Bounds of what a run prints, in bytes: it may have been taken over by an image.
const (
	maxLine   = 64 << 10
	maxOutput = 8 << 20
	maxLog    = 4 << 10
	maxCode   = 64
)

// run is one trueup process of a job. It can die at any moment, with this process: it writes temporary names, or an
// exchange with a journal.
type run struct {
	cmd   *exec.Cmd
	said  chan event // closed when the run has closed its output
	ended chan end

	mu   sync.Mutex
	gone bool // it was waited for, and its number can be another program's
}

// event is a line on the run's standard error that is one of JSON.
type event struct {
	Event string `json:"event"`
	fleet.Progress
}

// end is how a run ended.
type end struct {
	exit   int // negative: it was killed, or could not be waited for
	output []byte
	log    string
	err    error
}

// start starts the program with args. log receives lines that are no JSON.
func start(program string, args []string, log func(line string)) (*run, error) {
	r := &run{said: make(chan event), ended: make(chan end, 1)}
	started := make(chan error)
	// The kernel goes by the thread that starts a program: this goroutine keeps it until the program has ended.
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

// wait reads what the run prints until it ends.
func (r *run) wait(out, said io.Reader, log func(line string)) (e end) {
	output := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(io.LimitReader(out, maxOutput+1)) // an end that is torn is no JSON
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

// listen passes events on, and returns the last of the other lines.
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

// signal tells the run something, unless it is gone.
func (r *run) signal(group func(*exec.Cmd) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.gone {
		_ = group(r.cmd) // it may be about to go
	}
}

// kill ends the run and all that it has started, and waits for that.
func (r *run) kill() end {
	r.signal(sys.KillGroup)
	for range r.said { // it is waited for when all is read
		continue
	}
	return <-r.ended
}

// finish asks the run to end, and kills it if it does not in time.
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

// failure is what trueup prints as JSON when it fails.
type failure struct {
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// verdict is what the end of a run means for its job.
type verdict struct {
	state         fleet.State // Queued: it may succeed another time
	code, message string
}

// lasting are the codes of errors that come again with the same image.
var lasting = map[string]bool{
	"usage": true, "unsupported": true, "format": true, "reference": true, "limit": true, "changed": true,
}

// busy is the code of an error that passes when another program is done.
const busy = "busy"

// unfinished is the code of a disk in the middle of an exchange.
const unfinished = "unfinished"

// gone is the code of a datastore that this worker does not see any more.
const gone = "gone"

// exitRefused is the exit code of trueup for a refusal.
const exitRefused = 4

// exitDiffers is the exit code of trueup verify for a difference.
const exitDiffers = 5

// verdictOf judges the end of a run by its exit code and its JSON. good are the exit codes of success.
func verdictOf(e end, good ...int) verdict {
	if slices.Contains(good, e.exit) {
		return verdict{state: fleet.Done}
	}
	var f failure
	err := json.Unmarshal(e.output, &f)
	if err == nil && f.Error == nil && e.exit == exitDiffers {
		return verdict{fleet.Queued, "verify", "the copy is not the aligned image"}
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

// clip bounds a text that is kept, and makes it one line.
func clip(s string, most int) string {
	s = fleet.Plain(s)
	return strings.ToValidUTF8(s[:min(len(s), most)], "?")
}

// ask runs the program to its end.
func ask(ctx context.Context, program string, args ...string) (end, error) {
	r, err := start(program, args, func(string) {})
	if err != nil {
		return end{}, err
	}
	defer context.AfterFunc(ctx, func() { r.signal(sys.KillGroup) })()
	for range r.said {
		continue // nothing of it is needed
	}
	return <-r.ended, ctx.Err()
}
