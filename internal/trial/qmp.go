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

// QEMU Machine Protocol: lines of JSON. Spec: QEMU, docs/interop/qmp-spec.
type monitor struct {
	w       io.Writer
	answers <-chan answer
	lost    <-chan error // why there are no more answers
	event   func(name string, data eventData)
	limit   time.Duration // of one command
	number  int
}

// answer is any line of QEMU.
type answer struct {
	QMP    json.RawMessage `json:"QMP"`
	ID     int             `json:"id"`
	Return json.RawMessage `json:"return"`
	Event  string          `json:"event"`
	Data   eventData       `json:"data"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// eventData has the members of all events that are looked at.
type eventData struct {
	Guest   bool   `json:"guest"`
	Reason  string `json:"reason"`
	NoSpace bool   `json:"nospace"`
}

// Bounds of the protocol. Under emulation on a busy machine, a command can wait for the guest's processor.
const (
	maxLine   = 4 << 20 // bytes of a line: the serial port's buffer in base64 is the longest
	callLimit = 60 * time.Second
)

// errNoQMP marks what QEMU should not have sent, or an answer that did not come.
var errNoQMP = errors.New("QEMU does not answer as its protocol demands")

// newMonitor starts to read what QEMU sends. The goroutine ends with r, or with the context.
func newMonitor(ctx context.Context, w io.Writer, r io.Reader) *monitor {
	answers, lost := make(chan answer), make(chan error, 1)
	go func() { lost <- readAnswers(ctx, r, answers) }()
	return &monitor{w: w, answers: answers, lost: lost, event: func(string, eventData) {}, limit: callLimit}
}

// readAnswers decodes lines up to the first that is no answer.
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

// next waits for a line. An event is handled.
func (m *monitor) next(ctx context.Context) (answer, error) {
	select {
	case a := <-m.answers:
		if a.Event != "" {
			m.event(a.Event, a.Data)
		}
		return a, nil
	case err := <-m.lost:
		return answer{}, err
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// greet waits for QEMU's first line, and leaves the state in which it takes one command alone.
func (m *monitor) greet(ctx context.Context) error {
	timed, cancel := context.WithTimeoutCause(ctx, m.limit, fmt.Errorf("%w: no greeting in %v", errNoQMP, m.limit))
	defer cancel()
	a, err := m.next(timed)
	if err != nil {
		return cause(timed, err)
	}
	if a.QMP == nil {
		return fmt.Errorf("%w: its first line is no greeting", errNoQMP)
	}
	return m.call(ctx, "qmp_capabilities", nil, nil)
}

// commandError is the answer to a command that QEMU did not carry out.
type commandError struct{ command, desc string }

func (e *commandError) Error() string { return fmt.Sprintf("QEMU: %s: %.200s", e.command, e.desc) }

// call carries out a command. result may be nil.
func (m *monitor) call(ctx context.Context, command string, arguments, result any) error {
	m.number++
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        int    `json:"id"`
	}{command, arguments, m.number})
	if err != nil {
		return err
	}
	timed, cancel := context.WithTimeoutCause(ctx, m.limit, fmt.Errorf("%w: %s took %v", errNoQMP, command, m.limit))
	defer cancel()
	if _, err := m.w.Write(append(line, '\n')); err != nil {
		return err
	}
	for {
		a, err := m.next(timed)
		switch {
		case err != nil:
			return cause(timed, err)
		case a.ID != m.number:
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

// cause returns why a context ended, if that is the error.
func cause(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	return err
}

// human carries out a command of the monitor for people, for what the protocol lacks.
func (m *monitor) human(ctx context.Context, line string) (string, error) {
	var text string
	err := m.call(ctx, "human-monitor-command", map[string]string{"command-line": line}, &text)
	return text, err
}
