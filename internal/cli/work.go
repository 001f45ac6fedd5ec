package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// work are the flags of commands whose work takes long.
type work struct {
	shown
	jobs int
}

// shown are the flags of commands that show how far they are.
type shown struct {
	progress   string // one of progress.Kinds
	noProgress bool
}

// maxJobs bounds what is done at once.
const maxJobs = 64

// addWork adds the flags. usage describes --jobs.
func (w *work) addWork(cmd *cobra.Command, jobs int, usage string) {
	cmd.Flags().IntVarP(&w.jobs, "jobs", "j", jobs, usage)
	w.addProgress(cmd)
}

func (s *shown) addProgress(cmd *cobra.Command) {
	f, kinds := cmd.Flags(), progress.Kinds
	f.StringVar(&s.progress, "progress", kinds[0], "show progress as `KIND`: auto (a bar on terminals), json or none")
	f.BoolVar(&s.noProgress, "no-progress", false, "same as --progress none")
	complete(cmd, "progress", kinds...)
}

// checkWork refuses values that cannot be right.
func (w *work) checkWork() error {
	if w.jobs < 1 || w.jobs > maxJobs {
		return ondisk.In(ondisk.ErrUsage, "--jobs %d, want 1 to %d", w.jobs, maxJobs)
	}
	return w.checkProgress()
}

func (s *shown) checkProgress() error {
	if !slices.Contains(progress.Kinds, s.progress) {
		return ondisk.In(ondisk.ErrUsage, "--progress %q, want auto, json or none", s.progress)
	}
	if s.noProgress {
		s.progress = "none"
	}
	return nil
}

// progressTo returns where progress goes. Messages of an interruption then go above its bar.
func (c *common) progressTo(w io.Writer, kind string) progress.Output {
	return progress.Output{W: w, Kind: kind, Quiet: c.quiet, Above: c.ending.shows}
}

// watched shows the progress of work from the call of watch until that of end. Proves: a copy is read again.
func (c *common) watched(w io.Writer, kind, command string, proves bool) (watch func() realign.Progress, end func()) {
	var p *progress.Copy
	watch = func() realign.Progress {
		if p = progress.NewCopy(c.progressTo(w, kind), command, proves); p == nil {
			return nil
		}
		return p
	}
	return watch, func() {
		p.Stop()
		p = nil
	}
}

// rate is a number of bytes in a second as an argument of a command line. 0 is no limit.
type rate int64

// minRate bounds rates from below: a chunk of a copy takes some seconds then.
const minRate = 256 * units.KiB

func (r *rate) String() string {
	if *r == 0 {
		return ""
	}
	return units.Short(int64(*r))
}

// Type is the word that help texts show for the argument.
func (r *rate) Type() string { return "SIZE" }

// Set parses the argument.
func (r *rate) Set(arg string) error {
	n, err := units.Parse(arg)
	if err != nil || n < minRate {
		return fmt.Errorf("rate %q, want bytes in a second, from %s on, such as 20M", arg, units.Short(minRate))
	}
	*r = rate(n)
	return nil
}

// given is an argument of a command line that is not empty: "$FILE" of a script that did not set it asks for nothing.
type given string

func (g *given) String() string { return string(*g) }

// Type is the word that help texts show for the argument.
func (g *given) Type() string { return "string" }

// Set parses the argument.
func (g *given) Set(arg string) error {
	if arg == "" {
		return errors.New("it is empty; name one, or leave the flag out")
	}
	*g = given(arg)
	return nil
}

// giveWay has other programs read and write before this one, and those that it starts.
func (c *common) giveWay(idle bool) error {
	if !idle || !c.ownProcess {
		return nil
	}
	return sys.Idle()
}
