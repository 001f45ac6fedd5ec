package command

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// AddSandbox adds --require-sandbox.
func (c *Base) AddSandbox(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.RequireSandbox, "require-sandbox", false, "fail if the kernel cannot confine the program")
}

// RemoteHelp explains images of servers, for the help of commands that read them.
const RemoteHelp = `An image can also be on a server, which is only read: an export of an NBD server,
nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH, without TLS; or an object of a web server that answers ranges,
http://... or https://.... If an object changes during the run, the command fails; NBD cannot show a change, and a copy
from NBD is compared with what the server gives when it is read again. Such an image can name no other files. Results
and messages have ?... for the query of an address, which may be a secret.`

// AddRemote adds --authorization, for images of web servers.
func (c *Base) AddRemote(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.authorization, "authorization", "",
		"send the header Authorization with the value in `FILE` to a web server")
}

// CheckServers refuses images of servers for a command that does not read them.
func (c *Base) CheckServers(cmd *cobra.Command, args []string) error {
	if c.readsServers = cmd.Flags().Lookup("authorization") != nil; c.readsServers {
		return nil
	}
	for _, arg := range args {
		if err := realign.Local(arg, cmd.CommandPath()); err != nil {
			return err
		}
	}
	return nil
}

// Authorized adds --authorization to the flags of a command line that reads the same images.
func (c *Base) Authorized(flags []string) []string {
	return append(flags, realign.Authorized(c.authorization)...)
}

// FetchClerk is the argument that makes the program ask a web server for one that is confined.
const FetchClerk = realign.Fetch

// NewFetchClerk returns the command of a clerk, which is of no use to people.
func NewFetchClerk() *cobra.Command {
	return Hidden(FetchClerk, "Read an object of a web server for trueup", func(in io.Reader, out io.Writer) error {
		return realign.FetchServe(in, out, func(read, remove []string) {
			// The other process says what a kernel lacks.
			sandbox.Confine(sandbox.Access{Asks: true, Read: read, Remove: remove})
		})
	})
}

// Sandboxed adds the flag to those of another trueup, which is to be confined as well.
func (c *Base) Sandboxed(args []string) []string {
	if c.RequireSandbox {
		args = append(args, "--require-sandbox")
	}
	return args
}

// lost is the isolation of this process or its workers if it is less than wanted, else nil. Every object of JSON has
// it.
var lost *report.Isolation

// Confine restricts the process to reading around images and writing beside outputs, before it reads a byte of an
// image. Servers of images are connected to before that, until ctx ends.
func (c *Base) Confine(ctx context.Context, errOut io.Writer, images, outputs []string) (err error) {
	if c.readsServers {
		if c.remotes, err = realign.Connect(ctx, images, c.authorization); err != nil {
			return err
		}
	}
	if !c.OwnProcess {
		return nil
	}
	a := sandbox.Access{
		Read: realign.Folders(images), Write: store.OutputFolders(append(outputs, c.Out)...),
		Serves: len(c.Judging) > 0, Remove: c.Judging,
	}
	a.Read = append(a.Read, c.Judging...)
	return c.Confined(errOut, sandbox.Confine(a))
}

// Confined warns of an isolation that is not the whole one, or refuses to go on with it.
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
	if !c.Quiet {
		fmt.Fprintf(errOut, "trueup: warning: isolation is %q, not %q (%s); "+
			"do not open images of strangers here, or use --require-sandbox\n",
			iso.Achieved, sandbox.Sandbox, report.SafeMessage(iso.Note))
	}
	return nil
}
