package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

// scanning is a run of scan at work.
type scanning struct {
	scanFlags
	fail    results.FailOn
	paths   []string
	roots   results.Roots // the same
	wanted  func(rel, shown string) bool
	ignore  *results.Ignore
	today   string
	start   time.Time
	store   *runStore // nil: no catalogue
	bar     scanProgress
	errOut  io.Writer // for warnings
	summary *results.Summary
	worst   *results.Image   // that decided the exit code; nil: none has
	images  []*results.Image // that are shown at the end, or stand in the script
	items   int              // of images
	copies  *results.Copies
	format  results.Format
	rows    io.Writer // for those that the format prints as they come
	partial string    // the name of the report until it is complete, when it goes to a file
	found   int
	done    int
}

func runScan(ctx context.Context, in io.Reader, out, errOut io.Writer, f scanFlags, paths []string) (err error) {
	s, err := newScanning(f, in, paths)
	if err != nil {
		return err
	}
	s.ending.hold("completing the report of what was looked at")
	if s.catalog != "" {
		defer func() {
			if closing := s.store.close(); closing != nil {
				err = closing // which is worse than any verdict
			}
		}()
		if err := s.openStore(); err != nil {
			return err
		}
	}
	w, end, err := s.destination(out)
	if err != nil {
		return err
	}
	s.rows = w
	s.errOut = errOut
	s.bar = s.newScanProgress(errOut, s.progress)
	err = s.scan(ctx)
	s.bar.stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		return end(err)
	}
	exit := 0
	if err != nil {
		exit = interruptOf(ctx).exit()
	}
	ended := end(s.finish(w, out, exit))
	if err := errors.Join(ended, s.writeScript()); err != nil { // one that cannot be written must not cost the other
		return err
	}
	if err != nil {
		return malformed{error: interrupt{interruptOf(ctx).signal, s.interrupted()}}
	}
	if s.noneJudged() && s.summary.Failed == 0 {
		return malformed{error: ondisk.In(realign.ErrUnknown, "scan: no image was judged; if that is right, give --allow-empty")}
	}
	return exitWith(s.summary.ExitCode)
}

// noneJudged reports whether the run fails since it judged no image.
func (s *scanning) noneJudged() bool { return s.fail != results.Never && s.summary.NoneJudged() }

// interrupted says what the report has, and that folders were not walked.
func (s *scanning) interrupted() string {
	if s.done < s.found {
		return fmt.Sprintf("interrupted: %d of the %d images found so far were looked at, and the report has those", s.done, s.found)
	}
	return fmt.Sprintf("interrupted: %d images were looked at, and the report has those; the PATHs may have more", s.done)
}

// newScanning checks the command line before anything is looked at.
func newScanning(f scanFlags, in io.Reader, paths []string) (*scanning, error) {
	fail, err := f.check()
	if err != nil {
		return nil, err
	}
	s := &scanning{scanFlags: f, fail: fail, summary: results.NewSummary(), copies: results.NewCopies()}
	if f.asJSON {
		s.output = "json"
	}
	s.format = results.Formats[slices.Index(results.FormatNames(), s.output)]
	if s.wanted, err = f.wanted(); err != nil {
		return nil, err
	}
	if s.ignore, err = f.readIgnore(); err != nil {
		return nil, err
	}
	s.paths = slices.Clone(paths)
	if f.filesFrom != "" {
		more, err := readList(f.filesFrom, in)
		if err != nil {
			return nil, err
		}
		s.paths = append(s.paths, more...)
	}
	if slices.Contains(paths, "") {
		return nil, ondisk.In(errUsage, "a PATH is empty, maybe from a variable that is not set; . is the folder that you are in")
	}
	if len(paths) == 0 && f.filesFrom == "" {
		return nil, ondisk.In(errUsage, "scan takes a PATH, none given; see trueup scan --help")
	}
	s.roots = results.NewRoots(s.paths)
	s.start = time.Now()
	s.today = s.start.UTC().Format(time.DateOnly)
	sum := s.summary
	sum.Paths, sum.Boundary, sum.Storage, sum.Version = s.paths, f.boundary.criterion(), f.storage.profile().Name, f.version
	sum.AllowEmpty = f.empty
	sum.FailOn, sum.Started, sum.ChangedOnly, sum.Again = string(fail), stamp(s.start), f.changed, f.again()
	return s, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// destination is where the report goes, and what ends it.
func (s *scanning) destination(out io.Writer) (w io.Writer, end func(error) error, err error) {
	if s.out == "" {
		return out, func(err error) error { return err }, nil
	}
	f, err := store.CreateReport(s.out, reportMode)
	if err != nil {
		return nil, nil, err
	}
	s.partial = f.Name()
	return f, f.End, nil
}

func (s *scanning) scan(ctx context.Context) error {
	pool, err := s.startPool(ctx)
	if err != nil {
		return err
	}
	o := scan.Options{
		Paths: s.paths, Wanted: s.wanted, Spare: s.spared(), Jobs: s.jobs, Pool: pool, Flags: s.commandFlags(),
		Found:  func(n int) { s.bar.found(n) },
		Walked: s.bar.walked, Row: s.row,
		Unreadable: s.unreadable,
	}
	if s.store != nil {
		o.Store = s.store
	}
	res, err := scan.Scan(ctx, o)
	s.found, s.summary.Skipped = res.Found, res.Skipped
	s.summary.Found = res.Found
	if cerr := pool.Close(); err == nil {
		err = cerr
	}
	if err == nil && s.store != nil {
		err = s.store.removed(s.row)
	}
	return err
}

// spared are the files that the run itself writes or reads, which are no images whatever they look like.
func (s *scanning) spared() func(device, inode uint64) bool {
	names := []string{s.out, s.partial, s.script, s.scanFlags.ignore, s.filesFrom}
	if s.store != nil {
		names = append(names, s.store.all.Files()...)
	}
	ids := map[sys.ID]bool{}
	for _, name := range names {
		if st, err := sys.Stat(name); name != "" && err == nil {
			ids[st.ID] = true
		}
	}
	return func(device, inode uint64) bool { return ids[sys.ID{Device: device, Inode: inode}] }
}

// commandFlags are those that trueup align needs to do what the scan speaks of.
func (s *scanning) commandFlags() []string {
	if s.boundary.criterion() == align.DefaultBoundary {
		return nil
	}
	return []string{"--boundary", s.boundary.String()}
}

// row takes a row that is finished.
func (s *scanning) row(i *results.Image) error {
	s.done++
	i.Tolerated = s.unknown
	s.ignore.Accept(i, s.roots, s.today, s.fail)
	s.summary.Add(i)
	s.copies.Add(i)
	s.bar.done(i)
	if s.changed && i.Change == results.Same {
		return nil
	}
	s.exit(s.fail.Code(i), i)
	if s.format.Row != nil {
		if err := s.format.Row(s.rows, i); err != nil {
			return wrapStdout(err)
		}
	}
	if s.format.Row == nil || (s.script != "" && i.Priority != nil) {
		s.keep(i)
	}
	return nil
}

// Limits of what is kept of the rows until the report is written. Rows of few items, as those of usual disks, are always kept whole.
const (
	maxKeptItems = 1 << 18 // some 200 MB
	fewItems     = 32
)

// keep keeps a row for the report. Many images of thousands of partitions each must not take all memory.
func (s *scanning) keep(i *results.Image) {
	if s.items+i.Items() > maxKeptItems {
		i.Trim(fewItems)
	}
	s.items += i.Items()
	s.images = append(s.images, i)
}

// unreadable takes a place that could not be looked at. What lies there is not known, which is an error as that of an image is.
func (s *scanning) unreadable(u results.Unreadable) {
	if s.summary.AddUnreadable(u); s.fail != results.Never {
		s.exit(exitError, &results.Image{Path: u.Path, State: results.Failed})
	}
}

// exit makes the exit code worse where it is not as bad yet. Of all images that are as bad it is told for the one that stands first in
// the report, whichever was finished first.
func (s *scanning) exit(code int, i *results.Image) {
	sum := s.summary
	if code == 0 || results.Worse(sum.ExitCode, code) {
		return
	}
	if code == sum.ExitCode && results.Compare(s.worst, i) <= 0 {
		return
	}
	s.worst, sum.ExitCode, sum.Worst = i, code, i.Path
}

// finish writes what is written at the end: the sum, the catalogue's note of the run, and the report. w is where the
// report goes; stdout reports whether that is a terminal. interrupted is the exit code of a run that is not complete.
func (s *scanning) finish(w, stdout io.Writer, interrupted int) error {
	sum := s.summary
	sum.Finished, sum.Took = stamp(time.Now()), realign.Since(s.start)
	sum.Complete, sum.IgnoreNotes = interrupted == 0, s.ignore.Notes(s.today)
	if s.noneJudged() {
		sum.ExitCode = exitError
	}
	if interrupted != 0 {
		sum.ExitCode = interrupted
	}
	s.copies.Settle(sum, s.images)
	results.Rank(s.images)
	var err error
	if s.store != nil {
		err = s.store.Finish(sum)
	}
	return errors.Join(err, wrapStdout(s.print(w, stdout)))
}

func (s *scanning) writeScript() error {
	if s.script == "" {
		return nil
	}
	f, err := store.CreateReport(s.script, scriptMode)
	if err != nil {
		return err
	}
	return f.End(results.Script(f, s.summary, s.images))
}

// print writes the report in the format that is wanted.
func (s *scanning) print(w, stdout io.Writer) error {
	if s.format.Terminal && s.out == "" && s.quiet {
		return nil
	}
	t := &report.Text{Verbose: s.verbose, Width: textWidth}
	if s.out == "" {
		t.Width, t.Color, t.Columns, t.Unicode = width(stdout), s.color(stdout), columns(stdout), blockCharacters(stdout)
	}
	return s.format.Write(w, &results.Report{Summary: s.summary, Images: s.images, Fail: s.fail, Text: t})
}
