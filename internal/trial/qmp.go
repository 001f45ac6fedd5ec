package trial

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

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
var errNoQMP = errors.New("QEMU does not answer as its protocol demands")

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
