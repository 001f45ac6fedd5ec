package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// copyFlags holds the flags of every command that writes a copy of a disk or a package.
type copyFlags struct {
	*Base
	Move
	command string
	jobs    int
	verify  string
	sums    string // file for the digests

	skipAligned bool // write nothing if no partition has to move
	shifts      bool // write the disk at an offset of DEST
}

// add adds the flags common to these commands.
func (c *copyFlags) add(cmd *cobra.Command) {
	c.verify, c.jobs = full, defaultJobs
	addFlags(cmd,
		"require-sandbox", &c.RequireSandbox, "verify", &c.verify, "checksums", &c.sums, "jobs", &c.jobs,
		"progress", &c.progress,
	)
}

// checkFlags resolves the file for the digests before any reading.
func (c *copyFlags) checkFlags() (err error) {
	if c.sums == "" {
		return nil
	}
	if c.sums, err = (store.Place{Flag: "--checksums", Path: c.sums}).Resolve(); err != nil {
		return err
	}
	return errors.Join(store.Apart(store.Use{Flag: "--checksums", Path: c.sums}, store.Use{Flag: "--out", Path: c.Out}),
		store.TryFolder("--checksums", c.sums))
}

// spareAll refuses a report or digests over DEST, and digests over an input image.
func (c *copyFlags) spareAll(dest string, images ...Input) error {
	for flag, path := range map[string]string{"--out": c.Out, "--checksums": c.sums} {
		if err := store.Apart(store.Use{Flag: flag, Path: path}, store.Use{Flag: "DEST", Path: dest}); err != nil {
			return err
		}
	}
	for _, i := range images {
		if name, ok := i.Uses(c.sums); ok && c.sums != "" {
			return Usage("--checksums %s would overwrite %s, an input; name another file", c.sums, name)
		}
	}
	return nil
}

// writeSums writes the digests of the files of DEST, with names relative to the user's spelling of DEST.
func (c *copyFlags) writeSums(dest string, w realign.Written) error {
	if c.sums == "" || len(w.Sums) == 0 {
		return nil
	}
	sums := store.SHA256Sums(strings.TrimSuffix(dest, filepath.Base(dest)), w.Sums)
	if err := WriteFile(c.sums, []byte(sums)); err != nil {
		return fmt.Errorf("--checksums: %w; %s itself is complete and verified", err, dest)
	}
	return nil
}

// defaultJobs is the default number of chunks that a copy reads and writes at once.
const defaultJobs = 4

// full is the proof of a copy by every byte.
const full = "full"

// making holds the options of a copy.
type making struct {
	format string                     // of the copy; "" means as SOURCE
	size   func(int64) int64          // returns the disk size; nil means as SOURCE
	beside func(realign.Others) error // checks the other disks of the machine; may be nil
	to     realign.Dest
	hold   string                                          // action on interrupt; "" means removing the copy
	after  func(realign.Written) (*report.Replaced, error) // completes an exchange; may be nil
}

// copyDisk writes a copy of one disk to DEST, unless the disk is aligned and may be skipped.
func (c *copyFlags) copyDisk(ctx context.Context, out, errOut io.Writer, src, dest string, m *making) error {
	s, err := c.Open(src, c.Reading)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := c.spareAll(dest, s.Image); err != nil {
		return err
	}
	p, err := c.accepted(c.Base, s, dest, *m)
	if err != nil {
		return err
	}
	seen, err := s.InFiles()
	if err != nil {
		return err
	}
	r := report.NewAlign(Head(c.command), s, p, dest)
	if !p.Idle() || !c.skipAligned {
		j, end := c.jobOf(errOut, dest, m)
		if c.shifts {
			j.Offset = align.OffsetFor(s.Layout, s.Image.Disk.SectorSize())
		}
		w, err := j.Write(ctx, s, p, m.to)
		end()
		if err != nil {
			return err
		}
		r.Wrote(w, c.verify)
		if c.shifts {
			r.Shifted(j.Offset, s.Image.Disk.SectorSize(), align.Placings(seen, j.Offset))
		}
		if err := c.complete(r, w, m); err != nil {
			return err
		}
	}
	return c.report(out, r)
}

// complete completes an exchange, and writes the digests of the copy.
func (c *copyFlags) complete(r *report.Align, w realign.Written, m *making) error {
	if m.after != nil {
		replaced, err := m.after(w)
		if err != nil {
			return err
		}
		r.ReplacedBy(replaced)
	}
	return c.writeSums(r.Dest, w)
}

// jobOf returns the job of a copy and a function to end its progress. From now on the run handles interrupts itself.
func (c *copyFlags) jobOf(errOut io.Writer, dest string, m *making) (j *realign.Job, end func()) {
	c.Ending.Hold(cmp.Or(m.hold, removing))
	p, end := c.Watched(errOut, c.command, c.verify == full)
	return &realign.Job{
		Full: c.verify == full, Jobs: c.jobs, Sums: c.sums != "", Progress: p, Dest: dest,
		Texts: []store.Use{{Flag: "--out", Path: c.Out}, {Flag: "--checksums", Path: c.sums}},
	}, end
}

// removing is the message of an interrupted copy to a file, see ending.Hold.
const removing = "removing the unfinished copy"

// report prints the result of a copy.
func (c *copyFlags) report(out io.Writer, r *report.Align) error {
	r.Flags = c.proof()
	r.Folder, _ = os.Getwd() // for a command line in the report
	err := c.Emit(out, r, func(t *report.Text) { t.Align(r) })
	if err != nil && r.Written {
		return fmt.Errorf("%w; %s itself is complete and verified", err, r.Dest)
	}
	return err
}

// proof returns the flags of a verify command for the copy. Verify derives the moves from the copy, but not the places
// on other disks of the machine.
func (c *copyFlags) proof() []string {
	moved := []string{"skip-free", "to-sector-size"}
	if given(c.line, "with") {
		moved = asMoved
	}
	return c.repeated("verify", slices.Concat(asRead, []string{"spool"}, moved)...)
}

// copyPackage writes a package with every disk as planned and everything else unchanged.
func (c *copyFlags) copyPackage(
	ctx context.Context, out, errOut io.Writer, source, dest string, m *making,
) error {
	if err := c.NoPackage(); err != nil {
		return err
	}
	src, err := realign.OpenPackage(source)
	if errors.Is(err, ondisk.ErrNoMatch) {
		return notAPackage(source, dest)
	}
	if err != nil {
		return err
	}
	defer src.Close()
	if err := errors.Join(c.Spare(src), c.spareAll(dest, src)); err != nil {
		return err
	}
	goal := c.Goal
	if goal.Copy {
		goal.Flatten = false // a package keeps its snapshots
	}
	p, err := realign.PlanPackage(src, c.Knowing(c.Reading), goal)
	if err != nil {
		return err
	}
	defer p.Close()
	r := report.NewPackageAlign(Head(c.command), p, dest)
	if !p.Idle() || !c.skipAligned {
		j, end := c.jobOf(errOut, dest, m)
		w, err := j.WritePackage(ctx, p, m.to)
		end()
		if err != nil {
			return err
		}
		r.WrotePackage(p, w, c.verify)
		if err := c.complete(r, w.Written, m); err != nil {
			return err
		}
	}
	return c.report(out, r)
}

// notAPackage returns the error of a source that should be a package. If the file cannot be opened, it returns that
// error.
func notAPackage(source, dest string) error {
	s, err := OpenSource(source, realign.Reading{
		Unpacking: realign.Unpacking{Wanted: "a copy that is a package"},
	})
	if err != nil {
		return err
	}
	s.Close()
	return Usage("DEST %s is a package, and SOURCE %s is one disk; name a disk as DEST, or a package as SOURCE",
		dest, source)
}
