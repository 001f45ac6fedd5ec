package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/sys"
)

// newVersion returns the command version.
func newVersion(c *Base) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: "Prints the version of trueup. JSON also has the version of the Go tool chain that built it, and what\n" +
			"trueup does not do on this system, or does in another way.",
		Example: "  trueup version --json",
		Args:    Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.Check(); err != nil {
				return err
			}
			v := struct {
				report.Origin
				Version string `json:"version"`
				Go      string `json:"go"`
				System  string `json:"system"`

				Lacks []sys.Lack `json:"lacks"`
			}{
				report.Origin{Schema: report.Schema, Command: "version"},
				c.Version, runtime.Version(),
				runtime.GOOS + "/" + runtime.GOARCH, sys.Lacks(runtime.GOOS),
			}
			return c.Emit(cmd.OutOrStdout(), v, func(t *report.Text) { t.Version(c.Version) })
		},
	}
}
