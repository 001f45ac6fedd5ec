package cli

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
)

// Move holds the flags of a plan: goal, other disks, and reading.
type Move struct {
	realign.Reading
	realign.Goal
	With []string // other disks of the machine
}

// Add adds the flags.
func (m *Move) Add(cmd *cobra.Command) {
	m.AddPlaces(cmd)
	addFlags(cmd, "skip-free", &m.SkipFree, "flatten", &m.Flatten, "with", &m.With)
}

// AddPlaces adds the flags that select the partitions to move and their places.
func (m *Move) AddPlaces(cmd *cobra.Command) {
	addFlags(cmd, "boundary", &m.Boundary, "partition", &m.Only)
	addFlags(cmd, "data-only", &m.DataOnly, "allow-unbootable", &m.AllowUnbootable, "repair-table", &m.RepairTable)
	addReading(cmd, &m.Reading)
}

// Reads lists the inputs of a command: its images, the other disks of the machine, and the folders of parents.
func (m *Move) Reads(images ...string) []string { return slices.Concat(images, m.With, m.Allow) }

// NoPackage refuses --with for a package.
func (m *Move) NoPackage() error {
	if len(m.With) > 0 {
		return Usage("--with cannot be used for a package: its disks are planned together; leave it out")
	}
	return nil
}

// OpenOthers opens the disks of --with. dest is the output of the command, or "".
func (m *Move) OpenOthers(c *Base, s *realign.Source, dest string) (realign.Others, error) {
	return realign.OpenOthers(s, m.With, m.Allow, dest, c.Open)
}

// planned plans a disk together with the disks of --with. dest is the output of the command, or "".
func (m *Move) planned(c *Base, s *realign.Source, dest string, how making) (*realign.Plan, error) {
	o, err := m.OpenOthers(c, s, dest)
	if err != nil {
		return nil, err
	}
	defer o.Close()
	if how.beside != nil {
		if err := how.beside(o); err != nil {
			return nil, err
		}
	}
	m.To = how.format
	return s.PlanAmong(o, m.Goal, how.size)
}

// accepted is planned, but returns an error for a refused plan.
func (m *Move) accepted(c *Base, s *realign.Source, dest string, how making) (*realign.Plan, error) {
	p, err := m.planned(c, s, dest, how)
	if err != nil {
		return nil, err
	}
	if err := realign.Acceptable(p, m.Goal); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	return p, nil
}

// MaxJobs limits --jobs.
const MaxJobs = 64

// addWork adds the flags of commands with long work. jobs holds the default of --jobs.
func (c *Base) addWork(cmd *cobra.Command, jobs *int) {
	addFlags(cmd, "jobs", jobs)
	c.addProgress(cmd)
}

// addProgress adds the progress flags.
func (c *Base) addProgress(cmd *cobra.Command) {
	addFlags(cmd, "progress", &c.progress)
}

// addReading adds the flags for reading an image.
func addReading(cmd *cobra.Command, r *realign.Reading) {
	addFlags(cmd, "format", &r.Format, "sector-size", realign.SectorSize(&r.SectorSize), "allow-folder", &r.Allow)
}

// readBench reads the benchmark result in the file of --bench, or returns nil without one.
func (c *Base) readBench(path string) (*report.Benchmark, error) {
	if path == "" {
		return nil, nil
	}
	if err := store.Apart(store.Use{Flag: "--out", Path: c.Out}, store.Use{Flag: "--bench", Path: path}); err != nil {
		return nil, err
	}
	in, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--bench: %w", err)
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, measured.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("--bench: %w", err)
	}
	r, err := measured.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("--bench %s: %w", path, err)
	}
	return r, nil
}

// formatFlags selects the format of a report.
type formatFlags struct {
	template string
	format   results.Format
}

func (f *formatFlags) add(cmd *cobra.Command, c *Base) {
	c.Output = results.FormatNames()[0]
	addFlags(cmd, "output", &c.Output, "template", &f.template)
}

// resolve resolves the format and reads its template.
func (f *formatFlags) resolve(c *Base) (err error) {
	formats := results.FormatNames()
	switch {
	case !slices.Contains(formats, c.Output):
		return ondisk.NoChoice("--output", c.Output, formats...)
	case c.AsJSON && c.Output != "text" && c.Output != "json":
		return Usage("--json and --output %s are two formats; give one of them", c.Output)
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
