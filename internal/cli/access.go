package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// unpacks prepares for reading packed images.
func (c *Base) unpacks(ctx context.Context, errOut io.Writer) {
	u := &c.unpacking
	end := func() {}
	u.Run, u.Ended = ctx, func() { end() }
	u.Watch = func() (p realign.Progress) {
		c.Ending.Hold("")
		c.unpacked = true
		p, end = c.Watched(errOut, strings.TrimPrefix(u.Wanted, "trueup "), false)
		return p
	}
	u.Warn = func(text string) { c.say(errOut, text) }
}

// CheckServers refuses server images for a command that does not read them. It also sets whether the command reads
// packed images.
func (c *Base) CheckServers(cmd *cobra.Command, args []string) error {
	c.unpacking.On, c.unpacking.Wanted = cmd.Flags().Lookup("spool") != nil, cmd.CommandPath()
	if err := realign.CheckAddresses(args); err != nil {
		return err
	}
	if c.readsServers = c.unpacking.On; c.readsServers {
		return nil
	}
	for _, arg := range args {
		if err := realign.Local(arg, cmd.CommandPath()); err != nil {
			return err
		}
	}
	return nil
}

// lost is the isolation of this process or its workers if it is weaker than requested, otherwise nil. Every JSON object
// contains it.
var lost *report.Isolation

// Confine restricts the process to reading around images and writing beside outputs, before it reads any image. It
// first connects to image servers, until ctx ends.
func (c *Base) Confine(ctx context.Context, errOut io.Writer, images, outputs []string) (err error) {
	if c.readsServers {
		if c.remotes, err = realign.Connect(ctx, images, c.unpacking.Wanted); err != nil {
			return err
		}
	}
	c.unpacks(ctx, errOut)
	if !c.OwnProcess {
		return nil
	}
	written := store.OutputFolders(append(outputs, c.Out)...)
	if spool, err := filepath.EvalSymlinks(c.unpacking.Spool); err == nil && spool != "" {
		written = append(written, spool)
	}
	return c.confine(errOut, sandbox.Access{Read: realign.Folders(images), Write: written})
}

// confine restricts the process, which can find the programs that write to images only before.
func (c *Base) confine(errOut io.Writer, a sandbox.Access) error {
	c.writers = realign.FindWriters()
	return c.Confined(errOut, sandbox.Confine(a))
}

// Confined warns of an incomplete isolation, or refuses it with --require-sandbox.
func (c *Base) Confined(errOut io.Writer, iso sandbox.Isolation) error {
	if iso.Achieved == sandbox.Sandbox {
		return nil
	}
	if c.RequireSandbox {
		return ondisk.In(ondisk.ErrUnsupported, "--require-sandbox: isolation is %q, not %q (%s); nothing was read",
			iso.Achieved, sandbox.Sandbox, iso.Note)
	}
	lost = &report.Isolation{
		Wanted: string(iso.Wanted), Achieved: string(iso.Achieved), Layers: iso.Layers, Note: iso.Note,
	}
	c.say(errOut, fmt.Sprintf("warning: isolation is %q, not %q (%s); do not open untrusted images here, or add "+
		"--require-sandbox", iso.Achieved, sandbox.Sandbox, iso.Note))
	return nil
}

// ResolveOut resolves the output of the report before any reading.
func (c *Base) ResolveOut() (err error) {
	switch {
	case c.Out == "":
		return nil
	case store.Standard(c.Out):
		c.Out = ""
		return nil
	}
	c.Out, err = store.Place{Flag: "--out", Path: c.Out}.Resolve()
	return err
}

// OpenSource opens an image and reads its layout. Errors contain the path in the user's spelling.
func OpenSource(path string, r realign.Reading) (*realign.Source, error) {
	s, err := realign.Open(path, r)
	if errors.Is(err, realign.ErrOpen) {
		return nil, scan.NotOpened(path, err)
	}
	return s, err
}

// OpenSource is the function OpenSource for an image that may be on a server or packed.
func (c *Base) OpenSource(path string, r realign.Reading) (*realign.Source, error) {
	r.Remotes, r.Unpacking = c.remotes, c.unpacking
	return OpenSource(path, c.Knowing(r))
}

// Knowing returns r with the programs that had files open for writing before the process confined itself.
func (c *Base) Knowing(r realign.Reading) realign.Reading {
	r.Writers = c.writers
	return r
}

// Open opens an image and checks that the report cannot overwrite it.
func (c *Base) Open(path string, r realign.Reading) (*realign.Source, error) {
	s, err := c.OpenSource(path, r)
	if err != nil {
		return nil, err
	}
	if err := c.Spare(s.Image); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Input is an image or a package that a command reads.
type Input interface {
	Uses(path string) (name string, ok bool)
}

// Spare refuses a report that would overwrite an input or has no folder to go to, before any work.
func (c *Base) Spare(images ...Input) error {
	if c.Out == "" {
		return nil
	}
	if err := store.TryFolder("--out", c.Out); err != nil {
		return err
	}
	for _, i := range images {
		if name, ok := i.Uses(c.Out); ok {
			return Usage("--out %s would overwrite %s, an input; name another file", c.Out, name)
		}
	}
	return nil
}

// Apart refuses a report over one of several images, even if that image may not open. name is their argument.
func (c *Base) Apart(name string, images []string) error {
	if len(images) == 1 {
		return nil // it opens, or the command fails
	}
	var read []store.Use
	for _, path := range images {
		read = append(read, store.Use{Flag: name, Path: path})
	}
	return store.Apart(store.Use{Flag: "--out", Path: c.Out}, read...)
}

// endedEarly is the log entry of each of several images.
type endedEarly struct {
	Path string `json:"path"`
	Exit int    `json:"exit_code"`
}

// Each runs a command for one image after the other. Their results are JSON objects of one line, or texts with an empty
// line between them. An error of one image is its result. Wrong usage, a signal and an unwritable result end the run.
// The exit code is the worst one, as in a scan.
func (c *Base) Each(
	ctx context.Context, command string, images []string, stdout, stderr io.Writer,
	run func(out io.Writer, image string) error,
) error {
	c.several = true
	w, end, err := c.CreateReport(stdout)
	if err != nil {
		return err
	}
	worst, ends := 0, []endedEarly(nil)
	each := func(image string) (err error) {
		if err = ctx.Err(); err == nil {
			err = run(w, image)
		}
		switch {
		case errors.Is(err, context.Canceled):
			return InterruptOf(ctx).Saying(fmt.Sprintf("interrupted; %d of %d images were not inspected",
				len(images)-len(ends), len(images)))
		case errors.Is(err, ondisk.ErrUsage) || errors.Is(err, errStdout):
			return err
		}
		code, err := printed(err, c, command, w, stderr)
		if results.Worse(code, worst) {
			worst = code
		}
		ends = append(ends, endedEarly{realign.Shown(image), code})
		return WrapStdout(err)
	}
	for _, image := range images {
		if err := each(image); err != nil {
			_ = end(err) // discards the report
			return err
		}
	}
	c.Result = ends
	if err := end(nil); err != nil {
		return err
	}
	return ExitWith(worst)
}

// CreateReport returns the writer of a report in pieces, and the function to end it. With --out, the file has no name
// until then. The run handles interrupts itself.
func (c *Base) CreateReport(stdout io.Writer) (w io.Writer, end func(error) error, err error) {
	c.Ending.Hold("")
	if c.Out == "" {
		return stdout, func(err error) error { return err }, nil
	}
	f, err := store.CreateReport(c.Out, ReportMode)
	if err != nil {
		return nil, nil, err
	}
	return f, f.End, nil
}

// ReportMode is the mode of report files before the umask.
const ReportMode = 0o666

// WriteFile writes a report to a file, complete or not at all.
func WriteFile(path string, b []byte) error {
	f, err := store.CreateReport(path, ReportMode)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return f.End(err)
}
