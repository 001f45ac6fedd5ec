package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// addSandbox adds --require-sandbox.
func (c *common) addSandbox(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.requireSandbox, "require-sandbox", false, "fail if the kernel cannot confine the program")
}

// lost is what this process, or its workers, should have been kept from and are not; nil where nothing is missing. It is a fact of the
// process, and every object of JSON tells it.
var lost *report.Isolation

// confine restricts the process, before the first byte of an image is read, to reading around images and writing beside outputs.
func (c *common) confine(errOut io.Writer, images, outputs []string) error {
	if !c.ownProcess {
		return nil
	}
	a := sandbox.Access{}
	for _, path := range images {
		if path != "-" { // standard input is open already
			a.Read = append(a.Read, ova.Roots(path)...)
		}
	}
	a.Write = outputFolders(append(outputs, c.out)...)
	return c.confined(errOut, sandbox.Confine(a))
}

// confined warns of an isolation that is not the whole one, or refuses to go on with it.
func (c *common) confined(errOut io.Writer, iso sandbox.Isolation) error {
	if iso.Achieved == sandbox.Sandbox {
		return nil
	}
	if c.requireSandbox {
		return ondisk.In(ondisk.ErrUnsupported, "--require-sandbox: isolation is %q, not %q (%s); nothing was read", iso.Achieved, sandbox.Sandbox, iso.Note)
	}
	lost = &report.Isolation{Wanted: string(iso.Wanted), Achieved: string(iso.Achieved), Layers: iso.Layers, Note: iso.Note}
	if !c.quiet {
		fmt.Fprintf(errOut, "trueup: warning: isolation is %q, not %q (%s); do not open images of strangers here, or use --require-sandbox\n",
			iso.Achieved, sandbox.Sandbox, report.SafeMessage(iso.Note))
	}
	return nil
}

// outputFolders are the folders in which files of these names are written: that of the name, and that of what a link leads
// to. What is not a regular file, and what lies among the devices, is not written.
func outputFolders(paths ...string) (out []string) {
	for _, path := range paths {
		folder, err := filepath.EvalSymlinks(filepath.Dir(path))
		if path == "" || path == "-" || err != nil || folder == "/dev" {
			continue
		}
		out = append(out, folder)
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if st, err := os.Stat(real); err == nil && st.Mode().IsRegular() {
				out = append(out, filepath.Dir(real))
			}
		}
	}
	return out
}
