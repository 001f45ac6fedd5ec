package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/report"
)

// newVersion returns the command version.
func newVersion(c *Base) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  Arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.Check(); err != nil {
				return err
			}
			v := struct {
				report.Origin
				Version string `json:"version"`
				Go      string `json:"go"`
				System  string `json:"system"`
			}{
				report.Origin{Schema: report.Schema, Command: "version"},
				c.Version, runtime.Version(),
				runtime.GOOS + "/" + runtime.GOARCH,
			}
			return c.Emit(cmd.OutOrStdout(), v, func(t *report.Text) { t.Version(c.Version) })
		},
	}
}
