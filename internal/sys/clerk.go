package sys

import (
	"io"
	"os/exec"
)

// Clerk is this program, started once more before the process confines itself. It does what that cannot do then, and
// ends with it.
type Clerk struct {
	In  io.WriteCloser
	Out io.Reader
	cmd *exec.Cmd
}

// StartClerk starts a clerk with args, which prints messages to stderr.
func StartClerk(stderr io.Writer, args ...string) (*Clerk, error) {
	program, err := Self()
	if err != nil {
		return nil, err
	}
	c := &Clerk{cmd: exec.Command(program, args...)}
	c.cmd.Stderr = stderr
	Apart(c.cmd) // Ctrl-C is for this process
	if c.In, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if c.Out, err = c.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return c, c.cmd.Start()
}

// Close ends the clerk, and all that it has started.
func (c *Clerk) Close() error {
	_ = c.In.Close() // it may be closed already
	return c.cmd.Wait()
}
