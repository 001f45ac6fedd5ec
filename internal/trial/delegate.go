package trial

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/trial/results"
)

// Delegate is a trueup boot that makes the trial of a process which confines itself. It is started before that, waits
// for the call, and ends with the process that started it.
type Delegate struct{ *sys.Clerk }

// Delegates starts a delegate. Its arguments are those of boot that has a caller, with SOURCE at the end.
func Delegates(stderr io.Writer, args ...string) (*Delegate, error) {
	c, err := sys.StartClerk(stderr, append([]string{"boot", "--json"}, args...)...)
	return &Delegate{c}, err
}

// Call has the trial made, once, and returns its result, which is that of boot.
func (d *Delegate) Call(ctx context.Context) (*results.Boot, error) {
	stop := context.AfterFunc(ctx, func() { _ = d.In.Close() })
	defer stop()
	_, err := io.WriteString(d.In, "\n")
	var said []byte
	if err == nil {
		said, err = io.ReadAll(io.LimitReader(d.Out, maxAnswer))
	}
	var failed reply
	var r results.Boot
	if err == nil {
		err = errors.Join(json.Unmarshal(said, &failed), json.Unmarshal(said, &r))
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("trueup boot ended without a result: %w", err)
	case failed.Error != nil:
		return nil, failed.err()
	}
	return &r, nil
}

// Write hands a line to the delegate, which prints it above its bar. It is for the time of a Call.
func (d *Delegate) Write(line []byte) (int, error) { return d.In.Write(line) }

// ErrCallerGone is the cause of the end of a delegate that is no longer needed.
var ErrCallerGone = errors.New("the calling program needs no trial any more")

// Called waits for the call of a delegate. The context that it returns ends with the caller. say gets the lines that
// the caller has printed here.
func Called(ctx context.Context, in io.Reader, say func(line string)) (context.Context, error) {
	calls := bufio.NewReader(in)
	if _, err := calls.ReadByte(); err != nil {
		return nil, ErrCallerGone
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		for lines := bufio.NewScanner(calls); lines.Scan(); {
			if line := strings.TrimSpace(lines.Text()); line != "" {
				say(line)
			}
		}
		cancel(ErrCallerGone)
	}()
	return ctx, nil
}
