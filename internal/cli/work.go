package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
)

// maxTitle bounds the title of a report, in bytes.
const maxTitle = 200

// Title is the title of a report.
type Title string

// AddTitle adds --title.
func AddTitle(cmd *cobra.Command, to *Title) {
	cmd.Flags().Var(to, "title", "give page, JUnit suite and text the title `TEXT`")
}

func (t *Title) String() string { return string(*t) }

// Type names the argument.
func (*Title) Type() string { return "TEXT" }

// Set takes the argument.
func (t *Title) Set(arg string) error {
	if len(arg) > maxTitle {
		return fmt.Errorf("a title of %d bytes, want at most %d", len(arg), maxTitle)
	}
	*t = Title(arg)
	return nil
}

// Work are the flags of commands whose work takes long.
type Work struct {
	Shown
	Jobs int
}

// Shown are the flags of commands that show how far they are.
type Shown struct {
	Progress   string // one of progress.Kinds
	noProgress bool
}

// MaxJobs bounds what is done at once.
const MaxJobs = 64

// AddWork adds the flags. usage describes --jobs.
func (w *Work) AddWork(cmd *cobra.Command, jobs int, usage string) {
	cmd.Flags().IntVarP(&w.Jobs, "jobs", "j", jobs, usage)
	w.AddProgress(cmd)
}

// AddProgress adds the flags.
func (s *Shown) AddProgress(cmd *cobra.Command) {
	f, kinds := cmd.Flags(), progress.Kinds
	f.StringVar(&s.Progress, "progress", kinds[0], "show progress as `KIND`: auto (a bar on terminals), json or none")
	f.BoolVar(&s.noProgress, "no-progress", false, "same as --progress none")
	Complete(cmd, "progress", kinds...)
}

// CheckWork refuses values that cannot be right.
func (w *Work) CheckWork() error {
	if w.Jobs < 1 || w.Jobs > MaxJobs {
		return Usage("--jobs %d, want 1 to %d", w.Jobs, MaxJobs)
	}
	return w.CheckProgress()
}

// CheckProgress refuses values that cannot be right.
func (s *Shown) CheckProgress() error {
	if !slices.Contains(progress.Kinds, s.Progress) {
		return ondisk.NoChoice("--progress", s.Progress, progress.Kinds...)
	}
	if s.noProgress {
		s.Progress = "none"
	}
	return nil
}
