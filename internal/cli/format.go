package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
)

// formatFlags choose how a report is printed.
type formatFlags struct {
	template string
	format   results.Format
}

func (f *formatFlags) add(cmd *cobra.Command, c *Base) {
	fs := cmd.Flags()
	formats := results.FormatNames()
	fs.StringVarP(&c.Output, "output", "o", formats[0], "print the result as `FORMAT`: "+strings.Join(formats, ", "))
	Complete(cmd, "output", formats...)
	fs.StringVar(&f.template, "template", "", "print the result by the template in `FILE`")
}

// settle finds the format, and reads the template of one.
func (f *formatFlags) settle(c *Base) (err error) {
	formats := results.FormatNames()
	switch {
	case !slices.Contains(formats, c.Output):
		return ondisk.NoChoice("--output", c.Output, formats...)
	case f.template != "" && (c.AsJSON || c.Output != formats[0]):
		return Usage("--template and --output ask for two formats; give one of them")
	case c.AsJSON && c.Output != "text" && c.Output != "json":
		return Usage("--json and --output %s ask for two formats; give one of them", c.Output)
	case f.template != "":
		out, template := store.Use{Flag: "--out", Path: c.Out}, store.Use{Flag: "--template", Path: f.template}
		if err := store.Apart(out, template); err != nil {
			return err
		}
		f.format, err = scan.ReadTemplate(f.template)
		return err
	case c.AsJSON:
		c.Output = "json"
	}
	f.format = results.Formats[slices.Index(formats, c.Output)]
	return nil
}
