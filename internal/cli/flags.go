package cli

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/bench"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
)

// Move has the flags of a plan: goal, other disks, and how images are read.
type Move struct {
	realign.Reading
	realign.Goal
	With []string // other disks of the machine
}

// SkipFreeHelp explains --skip-free.
const SkipFreeHelp = `With --skip-free, the free space of NTFS, FAT and ext2 to ext4 is neither read nor written, and
the copy has zeros there: what was deleted cannot be brought back from it. A volume that is dirty or hibernated, or
whose bitmap does not agree with its files, is copied as a whole, with the reason.`

// MoveHelp explains the flags of a copy that decide what moves where, and what is copied.
const MoveHelp = SkipFreeHelp + `

` + PlacesHelp

// PlacesHelp explains the flags that decide what moves where.
const PlacesHelp = `By default, partitions that inspect finds off 64 KiB move to a multiple of 64 KiB if the boot
code uses cylinders, heads and sectors, and to a multiple of 1 MiB otherwise. --boundary SIZE makes SIZE both criterion
and target. A partition whose data would lie worse, or that no running guest reads or writes, stays; --partition N moves
it, with a warning. --data-only is refused if a partition that the boot needs would have to make room.

` + RepairTableHelp

// Add adds the flags.
func (m *Move) Add(cmd *cobra.Command, c *Base) {
	m.AddPlaces(cmd, c)
	AddSkipFree(cmd, &m.SkipFree)
	AddFlatten(cmd, &m.Flatten)
	AddWith(cmd, &m.With)
}

// AddPlaces adds the flags that decide which partitions of an image move where.
func (m *Move) AddPlaces(cmd *cobra.Command, c *Base) {
	AddBoundary(cmd, (*align.Boundary)(&m.Boundary), "alignment of moved partitions: auto, or 4K to 1G")
	cmd.Flags().IntSliceVar(&m.Only, "partition", nil, "move only partition `N`, and what it displaces (repeatable)")
	completePartitions(c, cmd, "partition", &m.Reading)
	cmd.Flags().BoolVar(&m.DataOnly, "data-only", false, "leave partitions that the boot needs in place")
	cmd.Flags().BoolVar(&m.AllowUnbootable, "allow-unbootable", false, "proceed although the copy may not boot")
	AddRepairTable(cmd, &m.RepairTable)
	AddReading(cmd, &m.Reading)
}

// RepairTableHelp explains --repair-table.
const RepairTableHelp = `A damaged GPT is copied as it is, with a warning, if nothing has to be rewritten in it, and
refused otherwise. With --repair-table, the damaged copy is written again from the other one, and the protective MBR if
it is missing. Every byte that this replaces is listed. It is refused if anything but zeros or the remains of this GPT
stands there.`

// AddRepairTable adds --repair-table.
func AddRepairTable(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "repair-table", false, "write a damaged copy of a GPT again, from the other one")
}

// AddSkipFree adds --skip-free.
func AddSkipFree(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "skip-free", false, "leave out what NTFS, ext and FAT call free: zeros are there instead")
}

// AddFlatten adds --flatten.
func AddFlatten(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "flatten", false, "merge a snapshot and its parents into one disk")
}

// Choices are the flags that make align move the same.
func (m *Move) Choices() []string { return append(m.Goal.Flags(), m.WithArguments()...) }

// WithArguments are the flags that name the other disks of the machine.
func (m *Move) WithArguments() (out []string) {
	for _, path := range m.With {
		out = append(out, "--with", realign.Shown(path))
	}
	return out
}

// AddWith adds --with.
func AddWith(cmd *cobra.Command, paths *[]string) {
	cmd.Flags().StringArrayVar(paths, "with", nil, "another `DISK` of the machine, read only (repeatable)")
}

// Reads lists what is read for some images: the other disks of the machine, and the folders of parents.
func (m *Move) Reads(images ...string) []string { return slices.Concat(images, m.With, m.Allow) }

// NoPackage refuses --with for a package.
func (m *Move) NoPackage() error {
	if len(m.With) > 0 {
		return Usage("--with, but the disks of a package are planned together without it")
	}
	return nil
}

// OpenOthers opens the disks of --with. dest is the output of the command, empty for none.
func (m *Move) OpenOthers(c *Base, s *realign.Source, dest string) (realign.Others, error) {
	return realign.OpenOthers(s, m.With, m.Allow, dest, c.Open)
}

// exclusive are the flags of which a command line can have one, with the reason.
var exclusive = []struct{ flag, other, why string }{
	{"data-only", "partition", "both choose the partitions that move"},
	{"with", "partition", "the numbers are those of one disk, and all disks are planned alike"},
	{"as-is", "boundary", nothingMoves},
	{"as-is", "partition", nothingMoves},
	{"as-is", "data-only", nothingMoves},
	{"as-is", "with", nothingMoves},
	{"by", "checksums", "no copy is written"},
}

const nothingMoves = "nothing is moved"

// checkExclusive refuses a command line with two flags that exclude each other. A flag with its default excludes none.
func checkExclusive(cmd *cobra.Command) error {
	given := func(name string) bool {
		f := cmd.Flags().Lookup(name)
		return f != nil && f.Changed && f.Value.String() != f.DefValue
	}
	for _, x := range exclusive {
		if given(x.flag) && given(x.other) {
			return Usage("--%s with --%s, but %s; leave out one of them", x.flag, x.other, x.why)
		}
	}
	return nil
}

// planned makes the plan of a disk among those of --with. dest is the output of the command, empty for none.
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

// accepted is planned for a plan that is carried out: its refusal is an error.
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

// AddBoundary adds --boundary.
func AddBoundary(cmd *cobra.Command, n *align.Boundary, usage string) {
	cmd.Flags().Var(n, "boundary", usage)
	Complete(cmd, "boundary", "auto", "4K", "64K", "1M")
}

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

// AddUnknown adds --allow-unknown.
func AddUnknown(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "allow-unknown", false, "exit with 0 if the content of a disk is unknown")
}

// AddReading adds the flags about the image that a command reads.
func AddReading(cmd *cobra.Command, r *realign.Reading) {
	usage := "require this image `FORMAT`: " + strings.Join(realign.Formats(), ", ")
	cmd.Flags().StringVar(&r.Format, "format", "", usage)
	Complete(cmd, "format", realign.Formats()...)
	usage = "sector size of a raw image: 512 or 4096 (default: that of its GPT or device, else 512)"
	cmd.Flags().Var((*realign.SectorSize)(&r.SectorSize), "sector-size", usage)
	Complete(cmd, "sector-size", "512", "4096")
	cmd.Flags().StringArrayVar(&r.Allow, "allow-folder", nil,
		"read parents and extents in `DIR` and below too (repeatable)")
}

// ToHelp explains --to and lists the formats.
func ToHelp() string {
	_, text := realign.Targets()
	return "--to FORMAT[:SUBFORMAT] sets the format of DEST: " + text +
		". With ,align=SIZE appended, the size of the disk becomes a multiple of SIZE."
}

// Storage has the flags for the storage below the images.
type Storage struct {
	align.Storage        // set by Find
	Named         bool   // by the user
	name          string // of a profile, or a size
	Profiles      string // file of profiles
}

// String returns the argument.
func (s *Storage) String() string { return s.name }

// Set takes the argument of --storage. What it means depends on --profiles.
func (s *Storage) Set(name string) error {
	s.name, s.Named = name, true
	return nil
}

// Type is the word that help texts show for the argument.
func (s *Storage) Type() string { return "STORAGE" }

// Add adds --storage and --profiles.
func (s *Storage) Add(cmd *cobra.Command) {
	names := align.Profiles{}.Names()
	s.name = names[0]
	cmd.Flags().Var(s, "storage",
		"storage below, for the costs: a size from 512 to 4M, or one of "+strings.Join(names, ", ")+
			"; +OFFSET is where its blocks start")
	Complete(cmd, "storage", names...)
	cmd.Flags().StringVar(&s.Profiles, "profiles", "", "read more storages for --storage from `FILE`, in TOML")
}

// Find finds the storage that the flags name.
func (s *Storage) Find() error {
	var known align.Profiles
	if s.Profiles != "" {
		text, err := readFile(s.Profiles, align.MaxProfiles+1)
		if err != nil {
			return Usage("--profiles: %w", err)
		}
		if known, err = align.ParseProfiles(text); err != nil {
			return Usage("--profiles %s: %w", s.Profiles, err)
		}
	}
	var err error
	if s.Storage, err = known.Parse(s.name); err != nil {
		return Usage("--storage: %w", err)
	}
	return nil
}

// readFile reads what a user has set down in a file, no more than so many bytes of it.
func readFile(path string, most int64) ([]byte, error) {
	in, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return io.ReadAll(io.LimitReader(in, most))
}

// BenchFile is the flag that names the result of a benchmark.
type BenchFile string

// Add adds --bench.
func (b *BenchFile) Add(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(b), "bench", "", "say what trueup bench --json measured, from its `FILE`")
}

// Read reads the result, nil without the flag. out is that of the command.
func (b BenchFile) Read(out string) (*report.Benchmark, error) {
	if b == "" {
		return nil, nil
	}
	path := string(b)
	if err := store.Apart(store.Use{Flag: "--out", Path: out}, store.Use{Flag: "--bench", Path: path}); err != nil {
		return nil, err
	}
	return bench.ReadResult(path)
}

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
