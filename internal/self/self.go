// Package self starts other commands of this program and reads their JSON. Each command is a process that confines
// itself. A command that starts programs does not decode images itself, but uses these commands.
package self

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

const (
	maxAnswer = 64 << 20 // bytes of a report
	maxWords  = 4 << 10  // bytes kept of the standard error of a server
	endLimit  = 5 * time.Second
)

// Error is the error reported by a command.
type Error struct {
	Code    string // as in JSON
	Message string
	Exit    int
}

func (e *Error) Error() string { return e.Message }

// reply holds the fields common to all reports.
type reply struct {
	ExitCode int `json:"exit_code"`
	Error    *struct{ Code, Message string }
}

// read decodes a report into v. It returns the error reported by the command as an *Error.
func read(text []byte, v any) error {
	var r reply
	if err := errors.Join(json.Unmarshal(text, &r), json.Unmarshal(text, v)); err != nil {
		return err
	}
	if r.Error == nil {
		return nil
	}
	return &Error{Code: r.Error.Code, Message: r.Error.Message, Exit: max(r.ExitCode, 1)}
}

// Run runs a command to its end and decodes its report into v. Its warnings go to stderr. The exit code stands for the
// verdict of a report without an error.
func Run(ctx context.Context, stderr io.Writer, v any, command string, args ...string) (exit int, err error) {
	program, err := sys.Self()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{command, "--json"}, args...)...)
	out, said, err := sys.Output(ctx, cmd, maxAnswer)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil && cmd.ProcessState == nil {
		return 0, err
	}
	err = read(out, v)
	if _, reported := errors.AsType[*Error](err); reported {
		return 0, err
	}
	if err != nil {
		words := bytes.TrimSpace(said)
		return 0, fmt.Errorf("trueup %s ended with %v and without a report: %s", command, cmd.ProcessState,
			words[max(0, len(words)-500):])
	}
	_, err = stderr.Write(said)
	return cmd.ProcessState.ExitCode(), err
}

// Server is a running trueup serve.
type Server struct {
	URI  string
	cmd  *exec.Cmd
	said sys.Tail
	done <-chan struct{}
	once sync.Once
}

// Serve starts a server and decodes its report into v. Its arguments end with SOURCE.
func Serve(ctx context.Context, v any, args ...string) (*Server, error) {
	program, err := sys.Self()
	if err != nil {
		return nil, err
	}
	s := &Server{said: sys.Tail{Most: maxWords}}
	s.cmd = exec.Command(program, append([]string{"serve", "--json", "--exit-with-parent"}, args...)...)
	s.cmd.Stderr, s.cmd.WaitDelay = &s.said, endLimit
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	s.cmd.Stdout = theirOut
	s.done, err = Background(s.cmd)
	if err := errors.Join(err, theirOut.Close()); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = out.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err = s.begun(out, v); err == nil {
		return s, nil
	}
	_ = s.Close() // the report contains the reason
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if _, reported := errors.AsType[*Error](err); reported {
		return nil, err
	}
	return nil, fmt.Errorf("trueup serve ended with %v: %.500s", s.cmd.ProcessState, &s.said)
}

// Background starts a program that signals to this one do not reach. The channel is closed when the program has ended;
// then its ProcessState has the exit status.
func Background(cmd *exec.Cmd) (done <-chan struct{}, err error) {
	sys.Apart(cmd)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return ended, nil
}

// Done is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

// While returns a context that also ends with the server.
func (s *Server) While(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// begun reads the report that the server prints when the disk is ready.
func (s *Server) begun(out io.Reader, v any) error {
	var text json.RawMessage
	if err := json.NewDecoder(io.LimitReader(out, maxAnswer)).Decode(&text); err != nil {
		return err
	}
	var at struct{ URI string }
	if err := errors.Join(json.Unmarshal(text, &at), read(text, v)); err != nil {
		return err
	}
	s.URI = at.URI
	return nil
}

// Close ends the server, which then removes its socket. Its first call returns any error of the server while it served:
// its clients have then read wrong bytes.
func (s *Server) Close() (err error) {
	s.once.Do(func() {
		_ = s.cmd.Process.Signal(sys.Terminate)
		select {
		case <-s.done:
		case <-time.After(endLimit):
			_ = s.cmd.Process.Kill()
			<-s.done
		}
		removeSocket(s.URI)
		if s.cmd.ProcessState.ExitCode() != 0 {
			err = fmt.Errorf("trueup serve ended with %v: %.1000s", s.cmd.ProcessState, &s.said)
		}
	})
	return err
}

// Socket returns the path in the URI of a server, nbd+unix:///?socket=PATH.
func Socket(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return "", err
	}
	if u.Scheme != "nbd+unix" || u.Query().Get("socket") == "" {
		return "", ondisk.In(ondisk.ErrUnsupported, "%q is not the address of an NBD server on a Unix socket", uri)
	}
	return u.Query().Get("socket"), nil
}

// removeSocket removes the socket of a killed server, and its folder. It removes only sockets made by trueup serve,
// since the address comes from the server.
func removeSocket(uri string) {
	socket, err := Socket(uri)
	folder := filepath.Dir(socket)
	ours := filepath.Dir(folder) == filepath.Clean(os.TempDir()) &&
		strings.HasPrefix(filepath.Base(folder), "trueup-nbd-")
	if err != nil || !ours {
		return
	}
	_ = os.Remove(socket) // a server that ended normally has removed it
	_ = os.Remove(folder)
}
