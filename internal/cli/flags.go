package cli

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/opinion"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/trial"
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

// addReading adds the flags for reading an image.
func addReading(cmd *cobra.Command, r *realign.Reading) {
	addFlags(cmd, "format", &r.Format, "sector-size", realign.SectorSize(&r.SectorSize), "allow-folder", &r.Allow)
}

// readBench reads the benchmark result in the file of --bench, or returns nil without one.
func (c *Base) readBench(path string) (*measured.Result, error) {
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

// flagRow describes a flag. The rows of flags.json define the flags of all commands, their completion, the groups of
// the help, and the checks of contradicting flags. Rows that name a command precede rows for all commands.
type flagRow struct {
	Name, Short string
	Of          string   // commands of the row, separated by spaces; "" means commands without their own row
	Help        string   // argument name in backquotes; %s is replaced by the choices
	Choices     []string // for shell completion
	From        string   // key of choices, instead of Choices
	Strict      bool     // the value must be one of the choices
	Least, Most int      // range of an integer; Most 0 means no range, Least is at least 1
	Single      bool     // the flag is valid for one argument only
	Needs       *pair    // required other flag
	Excludes    []pair   // contradicting flags
}

// pair is the other flag of a check, with the reason of the refusal. Or is a flag that is sufficient, too.
type pair struct{ Flag, Why, Or string }

// flagGroup holds the flags under a title of the help.
type flagGroup struct {
	Title string
	Rows  []flagRow
}

//go:embed flags.json
var flagsText []byte

// flagGroups lists the flags of all commands in the order of the help.
var flagGroups = sync.OnceValue(func() []flagGroup { return ondisk.Embedded[[]flagGroup](flagsText) })

// choices maps the names in flags.json to functions that return the choices of a flag.
var choices = map[string]func() []string{
	"accelerators": oneOf(trial.Accels), "buses": trial.BusChoices, "firmwares": oneOf(trial.Firmwares),
	"formats": results.FormatNames, "images": realign.Formats, "isolations": oneOf(scan.Isolations),
	"judges": opinion.Judges, "levels": results.FailOns, "progress": oneOf(progress.Kinds),
	"storages": align.StorageNames,
	"targets": func() []string {
		names, _ := realign.Targets()
		return names
	},
}

// oneOf returns a function that returns constant choices.
func oneOf(choices []string) func() []string { return func() []string { return choices } }

// isOf reports whether the row applies to a command.
func (r flagRow) isOf(command string) bool {
	return r.Of == "" || slices.Contains(strings.Fields(r.Of), command)
}

// rowOf returns the row of a flag of a command. A missing row is a bug.
func rowOf(command, name string) flagRow {
	for _, g := range flagGroups() {
		for _, r := range g.Rows {
			if r.Name == name && r.isOf(command) {
				if r.From != "" {
					r.Choices = choices[r.From]()
				}
				return r
			}
		}
	}
	panic("no row for --" + name)
}

// addFlags adds flags of flagGroups to a command. Each name is followed by a pointer to its variable, which holds the
// default. Flags of the root are flags of all commands.
func addFlags(cmd *cobra.Command, namesAndVariables ...any) {
	for pair := range slices.Chunk(namesAndVariables, 2) {
		addFlag(cmd, pair[0].(string), pair[1]) //nolint:forcetypeassert // a wrong type is a bug
	}
}

func addFlag(cmd *cobra.Command, name string, to any) {
	r, f := rowOf(cmd.Name(), name), cmd.Flags()
	if cmd.Name() == "trueup" {
		f = cmd.PersistentFlags()
	}
	if r.Choices != nil {
		r.Help = strings.Replace(r.Help, "%s", strings.Join(r.Choices, ", "), 1)
	}
	switch to := to.(type) {
	case *bool:
		f.BoolVarP(to, name, r.Short, *to, r.Help)
	case *int:
		f.IntVarP(to, name, r.Short, *to, r.Help)
	case *[]int:
		f.IntSliceVarP(to, name, r.Short, *to, r.Help)
	case *string:
		f.StringVarP(to, name, r.Short, *to, r.Help)
	case *[]string:
		f.StringArrayVarP(to, name, r.Short, *to, r.Help)
	case *time.Duration:
		f.DurationVarP(to, name, r.Short, *to, r.Help)
	case pflag.Value:
		f.VarP(to, name, r.Short, r.Help)
	default:
		panic(fmt.Sprintf("--%s has a variable of type %T", name, to))
	}
	if list := f.Lookup(name); list.DefValue == "[]" {
		list.DefValue = "" // the help prints no default
	}
	if r.Choices != nil {
		completeBy(cmd, name, cobra.FixedCompletions(r.Choices, cobra.ShellCompDirectiveNoFileComp))
	}
}

// checkFlags refuses invalid flag values and contradicting flags.
func checkFlags(cmd *cobra.Command, args []string) (wrong error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if wrong == nil && given(cmd, f.Name) && f.Name != "help" {
			wrong = rowOf(cmd.Name(), f.Name).check(cmd, f.Value.String(), args)
		}
	})
	return wrong
}

// given reports whether a flag is on the command line with a value other than its default.
func given(cmd *cobra.Command, name string) bool {
	f := cmd.Flags().Lookup(name)
	return f != nil && f.Changed && f.Value.String() != f.DefValue
}

// Flags that a suggested command line repeats, in its order: for reading an image, and for the moves.
var (
	asRead  = []string{"sector-size", "offset", "allow-folder"}
	asMoved = []string{
		"boundary", "partition", "data-only", "allow-unbootable", "flatten", "skip-free", "repair-table", "with",
		"to-sector-size",
	}
)

// repeated returns the named flags of the command line with their values, if another command has them too.
func (c *Base) repeated(command string, names ...string) (words []string) {
	other := commandOf(c.line.Root(), []string{command})
	for _, name := range names {
		is := given(c.line, name)
		if name == "spool" { // it has a default beside DEST, and is needed for packed images only
			is = c.unpacked
		}
		if !is || other.Flags().Lookup(name) == nil {
			continue
		}
		value, argued := c.line.Flags().Lookup(name).Value.(notEmpty)
		if !argued {
			words = append(words, "--"+name)
			continue
		}
		all := []string{value.String()}
		if list, ok := value.Value.(pflag.SliceValue); ok {
			all = list.GetSlice()
		}
		for _, one := range all {
			words = append(words, "--"+name, realign.Shown(one))
		}
	}
	return words
}

// check checks a flag against its value, the arguments and the other flags.
func (r flagRow) check(cmd *cobra.Command, value string, args []string) error {
	if r.Strict && !slices.Contains(r.Choices, value) {
		return ondisk.NoChoice("--"+r.Name, value, r.Choices...)
	}
	if n, err := strconv.Atoi(value); err == nil && r.Most > 0 && (n < max(1, r.Least) || n > r.Most) {
		return Usage("--%s %d: must be %d to %d", r.Name, n, max(1, r.Least), r.Most)
	}
	if r.Single && len(args) > 1 && strings.HasSuffix(cmd.Use, "...") {
		name := strings.TrimSuffix(strings.Fields(cmd.Use)[1], "...")
		return Usage("--%s is for 1 %s, %d given; give one", r.Name, name, len(args))
	}
	if r.Needs != nil && !given(cmd, r.Needs.Flag) && !given(cmd, r.Needs.Or) {
		name, _ := pflag.UnquoteUsage(cmd.Flags().Lookup(r.Needs.Flag))
		return Usage("--%s needs --%s %s, %s", r.Name, r.Needs.Flag, name, r.Needs.Why)
	}
	for _, x := range r.Excludes {
		if given(cmd, x.Flag) {
			return Usage("--%s and --%s exclude each other: %s; leave out one of them", r.Name, x.Flag, x.Why)
		}
	}
	return nil
}
