package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/opinion"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/trial"
)

// flagRow describes a flag. These rows define the flags of all commands, their completion, the groups of the help, and
// the checks of contradicting flags.
type flagRow struct {
	name, short string
	of          string          // commands of the row, separated by spaces; "" means commands without their own row
	help        string          // argument name in backquotes; %s is replaced by the choices
	choices     func() []string // for shell completion
	strict      bool            // the value must be one of choices
	least, most int             // range of an integer; most 0 means no range, least is at least 1
	single      bool            // the flag is valid for one argument only
	needs       *pair           // required other flag
	excludes    []pair          // contradicting flags
}

// pair is the other flag of a check, with the reason of the refusal.
type pair struct{ flag, why string }

// Reasons of refusals.
var (
	oneFormat    = "both set the format of the result"
	oneMachine   = "partition numbers are per disk, and all disks are planned alike"
	nothingMoves = "nothing is moved"
	forWith      = &pair{"with", "because it applies to the other disks only; partition starts of SOURCE are read " +
		"from DEST"}
	forGuest = &pair{"except-bitmap", "for a guest that may have changed the table of DEST; without it, the starts " +
		"are read from DEST"}
)

// flagGroups lists the flags of all commands by title, in the order of the help.
var flagGroups = []struct {
	title string
	rows  []flagRow
}{
	{"Flags", ownFlags},
	{"Flags of the result", resultFlags},
	{"Flags of the move", goalFlags},
	{"Flags of reading", readingFlags},
	{"Flags of the run", runFlags},
}

var ownFlags = []flagRow{
	// of all commands
	{
		name: "output", short: "o", of: "scan report", help: "print the result as `FORMAT`: %s",
		choices: results.FormatNames,
	},
	{name: "output", short: "o", help: "print the result as `FORMAT`: text or json", choices: outputs},
	{name: "json", help: "same as --output json"},
	{name: "out", help: "write the result to `FILE`, or - for standard output"},
	{name: "quiet", short: "q", help: "print only errors"},
	{name: "verbose", short: "v", help: "also print volume IDs, hidden sectors, changed bytes"},
	{
		name: "color", choices: oneOf("always", "never", "auto"), strict: true,
		help: "print colours `WHEN`: always, never or auto (on terminals without NO_COLOR)",
	},
	{name: "no-color", help: "same as --color never"},
	{name: "no-progress", help: "show no progress"},
	{name: "log", help: "append changes of files to `FILE` as lines of JSON; - for standard error"},

	// judge
	{name: "by", of: "judge", choices: opinion.Judges, strict: true, help: "`JUDGE`: all, qemu-img or libguestfs"},

	// inspect and plan
	{name: "list", short: "l", help: "print only the partitions, as fdisk -lu lists them"},
	{name: "data", help: "read all data to count the bytes that are not zero"},
	{name: "impact", help: "compute the storage blocks that an I/O touches"},
	{name: "bench", help: "add the results of trueup bench --json in `FILE`"},
	{name: "fragmentation", help: "count the pieces of files and of free space"},

	// scan and report
	{
		name: "template", help: "print the result with the Go template in `FILE`",
		excludes: []pair{{"output", oneFormat}, {"json", oneFormat}},
	},
	{name: "include", help: "inspect only files in folders that match `GLOB` (repeatable)"},
	{name: "files-from", help: "read PATHs from `FILE`, - for standard input"},
	{name: "script", help: "write a shell script of the align commands to `FILE`"},
	{name: "check", help: "check all tables of every container, as inspect does"},
	{name: "exclude", help: "skip files in folders that match `GLOB` (repeatable)"},
	{name: "since", help: "reuse the rows of unchanged images from `FILE` of an earlier scan; show changes"},
	{
		name: "changed", help: "report only new, changed and removed images",
		needs: &pair{"since", "the results of the earlier scan"},
	},
	{
		name: "replace", help: "make --script replace images by their copies",
		needs:    &pair{"script", "the file for the commands: a scan changes no image"},
		excludes: []pair{{"shard", "an image of another shard may depend on the replaced one"}},
	},
	{
		name: "fail-on", of: "scan", choices: results.FailOns,
		help: "fail for `LEVEL`: %s (default: errors and starts off --boundary)",
	},
	{
		name: "fail-on", choices: results.FailOns,
		help: "fail for `LEVEL`: %s (default: errors and starts off the boundary)",
	},
	{name: "ignore", help: "accept the images listed in `FILE`"},
	{name: "label", help: "label all rows with `KEY=VALUE` (repeatable)"},
	{name: "shard", help: "inspect only share `K/N` of the images, for array jobs"},
	{
		name: "isolation", choices: oneOf(scan.Isolations...), strict: true,
		help: "isolation of the workers, by `LEVEL`: %s",
	},
	{name: "allow-unknown", help: "exit with 0 if the content of a disk is unknown"},
	{name: "allow-empty", help: "exit with 0 if no image was judged"},
	{
		name: "storage", choices: align.StorageNames,
		help: "storage below the image: block size from 512 to 4M, or one of %s; +OFFSET: start of its blocks",
	},

	// serve
	{
		name: "as-is", help: "serve the disk of SOURCE with nothing moved",
		excludes: []pair{
			{"boundary", nothingMoves},
			{"partition", nothingMoves},
			{"data-only", nothingMoves},
			{"with", nothingMoves},
		},
	},
	{
		name: "socket", of: "serve", help: "listen on a new Unix socket at `PATH`",
		excludes: []pair{{"listen", "a server listens in one place"}},
	},
	{name: "listen", help: "listen on TCP `HOST:PORT`, a loopback address; port 0: any free"},
	{
		name: "listen-anywhere", help: "allow --listen an address reachable from other machines",
		needs: &pair{"listen", "whose address it allows"},
	},
	{name: "once", help: "end when the last client has left"},
	{name: "exit-with-parent", help: "end when the calling program has ended"},

	// handover
	{name: "socket", of: "handover", help: "serve SOURCE at a new Unix socket at `PATH` (default: DEST.socket)"},
	{name: "qmp", help: "have the QEMU whose monitor is the Unix socket `PATH` copy the rest"},
	{
		name: "domain", help: "have libvirt copy the rest for its domain `NAME`",
		excludes: []pair{{"qmp", "one of them copies"}},
	},
	{
		name: "run", help: "start QEMU by the command behind --, where {} stands for the disk",
		excludes: []pair{
			{"qmp", "the QEMU that is started gets a monitor of its own"}, {"domain", "libvirt starts its QEMU itself"},
		},
	},
	{name: "limit", help: "copy the rest with at most `SIZE` a second"},
	{
		name: "resume", help: "go on with the handover to DEST",
		excludes: []pair{
			{"undo", "one goes on and one takes back"},
			{"limit", "the journal of DEST has it since the handover began"},
		},
	},
	{name: "undo", help: "remove DEST, if no guest wrote to it"},
	{
		name: "discard-writes", help: "with --undo, remove DEST with all that the guest wrote",
		needs: &pair{"undo", "which removes DEST"},
	},

	// boot
	{name: "qemu", help: "QEMU `PROGRAM` (default: qemu-system-x86_64)"},
	{
		name: "firmware", choices: oneOf(trial.Firmwares...), strict: true,
		help: "`KIND` of firmware: auto (what boots the disk), bios or uefi",
	},
	{name: "bus", choices: trial.BusChoices, strict: true, help: "disk `CONTROLLER`: %s"},
	{
		name: "accel", choices: oneOf(trial.Accels...), strict: true,
		help: "`ACCELERATOR`: auto (KVM where it works), kvm or tcg",
	},
	{name: "memory", least: 16, most: 64 << 10, help: "memory of the guest in `MIB`"},
	{name: "seconds", most: 24 * 60 * 60, help: "end each run after `N` seconds (emulated: of processor time)"},
	{name: "settle", most: 24 * 60 * 60, help: "end a run when its screen rests for `N` seconds"},
	{name: "pictures", help: "write the screens in graphics as PNG files into a new folder `DIR`"},

	// bench
	{name: "size", help: "size of the scratch file"},
	{name: "starts", help: "starts to compare, one of them on 4 KiB"},
	{name: "runtime", help: "`TIME` of each measurement"},
	{name: "rounds", help: "measure each point `N` times"},
	{name: "buffered", help: "measure through the page cache, with a flush after each write"},

	// undo, resume and finish
	{name: "below", help: "process all disks with a journal in `DIR` and below"},
	{
		name: "dry-run", help: "with --below, only check and list the disks",
		needs: &pair{"below", "whose disks it checks; for one disk, run trueup inspect"},
	},
}

var resultFlags = []flagRow{
	{name: "to", of: "offset", help: "format of DEST (default: by its name, or else raw)", choices: targetNames},
	{name: "to", help: "format of DEST (default: the format of SOURCE)", choices: targetNames},
	{name: "force", of: "undo finish", help: "proceed although files were changed since"},
	{name: "force", help: "replace an existing DEST when it is complete"},
	{name: "keep", help: "keep the `WHAT`: original or none", choices: oneOf(keepOriginal, keepNone), strict: true},
	{
		name: "by", of: "replace", single: true,
		help:     "give its names to `DISK`, a finished copy beside it, instead of writing one",
		excludes: []pair{{"checksums", "no copy is written"}},
	},
	{name: "journal", of: "move", single: true, help: "keep the journal in `FILE`, not beside DISK"},
	{
		name: "journal", single: true, help: "journal `FILE` given to trueup move --journal",
		excludes: []pair{{"below", "a journal belongs to one disk"}},
	},
	{
		name: "verify", choices: oneOf(full, structure), strict: true,
		help: "proof before the copy gets its name, by `LEVEL`: full (every byte) or structure",
	},
	{name: "checksums", single: true, help: "write the SHA-256 of each file of the copy to `FILE`, as sha256sum does"},
	{name: "skip-aligned", help: "write nothing if no partition has to move"},
	{name: "skip-free", help: "leave out the free space of NTFS, ext and FAT; the copy has zeros there"},
	{name: "flatten", of: "verify judge", help: "with --with, if align was run with --flatten", needs: forWith},
	{name: "flatten", help: "merge a snapshot and its parents into one disk"},
	{name: "overwrite-content", help: "overwrite the device; `WHAT` is its content as printed by the refusal"},
	{name: "except-bitmap", help: "accept the writes of a guest in the dirty bitmap `NAME` of DEST, a qcow2"},
	{name: "discard", help: "discard zero ranges on the device"},
}

var goalFlags = []flagRow{
	{
		name: "boundary", of: "inspect scan", choices: boundaries,
		help: "required alignment of partition starts, 4K to 1G",
	},
	{
		name: "boundary", of: "verify judge", choices: boundaries, needs: forWith,
		help: "with --with, the --boundary of align",
	},
	{name: "boundary", help: "alignment of moved partitions: auto, or 4K to 1G", choices: boundaries},
	{
		name: "partition", of: "verify", needs: forGuest,
		help: "with --except-bitmap, the --partition of align (repeatable)",
	},
	{name: "partition", help: "move only partition `N`, and what it displaces (repeatable)"},
	{name: "data-only", of: "verify judge", help: "with --with, if align was run with --data-only", needs: forWith},
	{
		name: "data-only", help: "do not move partitions needed to boot",
		excludes: []pair{{"partition", "both select the partitions to move"}},
	},
	{
		name: "allow-unbootable", of: "verify judge", needs: forWith,
		help: "with --with, if align was run with --allow-unbootable",
	},
	{name: "allow-unbootable", help: "proceed although the copy may not boot"},
	{
		name: "with", single: true, help: "another `DISK` of the machine, read only (repeatable)",
		excludes: []pair{{"partition", oneMachine}},
	},
	{
		name: "repair-table", of: "verify", needs: forGuest,
		help: "with --except-bitmap, if align was run with --repair-table",
	},
	{name: "repair-table", help: "repair a damaged copy of a GPT from the other one"},
}

var readingFlags = []flagRow{
	{name: "format", help: "require this image `FORMAT`: %s", choices: realign.Formats},
	{
		name: "sector-size", choices: oneOf("512", "4096"),
		help: "sector size of a raw image: 512 or 4096 (default: from its GPT or device, else 512)",
	},
	{
		name: "to-sector-size", of: "verify", choices: oneOf("512", "4096"),
		help: "sector size of a raw DEST: 512 or 4096 (default: from its table, else as SOURCE)",
	},
	{
		name: "to-sector-size", choices: oneOf("512", "4096"),
		help: "write the partition table in sectors of 512 or 4096 bytes (default: as SOURCE)",
	},
	{name: "offset", of: "verify", help: "SOURCE is a raw disk that begins at byte `BYTES` of its file"},
	{name: "offset", help: "the image is a raw disk that begins at byte `BYTES` of its file"},
	{name: "dest-offset", help: "DEST is a raw disk that begins at byte `BYTES` of its file"},
	{
		name: "allow-folder", of: "undo finish",
		help: "look for overlays of the disks in `DIR` and below too (repeatable)",
	},
	{name: "allow-folder", help: "read parents and extents in `DIR` and below too (repeatable)"},
	{name: "spool", of: "align convert", help: "unpack a compressed image in `DIR` (default: the folder of DEST)"},
	{name: "spool", help: "unpack a compressed image in `DIR`"},
}

var runFlags = []flagRow{
	{name: "jobs", short: "j", of: "verify", most: MaxJobs, help: "read `N` chunks at once"},
	{name: "jobs", short: "j", of: "scan", most: MaxJobs, help: "inspect `N` images at once, 1 to 64"},
	{name: "jobs", short: "j", most: MaxJobs, help: "read and write `N` chunks at once"},
	{
		name: "progress", choices: oneOf(progress.Kinds...), strict: true,
		help: "show progress as `KIND`: auto (a bar on terminals), json or none",
	},
	{name: "require-sandbox", help: "fail if the kernel cannot confine the program"},
}

// Choices of flags for shell completion.
var (
	outputs    = oneOf("text", "json")
	boundaries = oneOf("auto", "4K", "64K", "1M")
)

// oneOf returns a function that returns constant choices.
func oneOf(choices ...string) func() []string { return func() []string { return choices } }

func targetNames() []string {
	names, _ := realign.Targets()
	return names
}

// isOf reports whether the row applies to a command. Rows that name a command precede rows for all commands.
func (r flagRow) isOf(command string) bool {
	return r.of == "" || slices.Contains(strings.Fields(r.of), command)
}

// rowOf returns the row of a flag of a command. A missing row is a bug.
func rowOf(command, name string) flagRow {
	for _, g := range flagGroups {
		for _, r := range g.rows {
			if r.name == name && r.isOf(command) {
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
	if r.choices != nil {
		r.help = strings.Replace(r.help, "%s", strings.Join(r.choices(), ", "), 1)
	}
	switch to := to.(type) {
	case *bool:
		f.BoolVarP(to, name, r.short, *to, r.help)
	case *int:
		f.IntVarP(to, name, r.short, *to, r.help)
	case *[]int:
		f.IntSliceVarP(to, name, r.short, *to, r.help)
	case *string:
		f.StringVarP(to, name, r.short, *to, r.help)
	case *[]string:
		f.StringArrayVarP(to, name, r.short, *to, r.help)
	case *time.Duration:
		f.DurationVarP(to, name, r.short, *to, r.help)
	case pflag.Value:
		f.VarP(to, name, r.short, r.help)
	default:
		panic(fmt.Sprintf("--%s has a variable of type %T", name, to))
	}
	if list := f.Lookup(name); list.DefValue == "[]" {
		list.DefValue = "" // the help prints no default
	}
	if r.choices != nil {
		completeBy(cmd, name, cobra.FixedCompletions(r.choices(), cobra.ShellCompDirectiveNoFileComp))
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
	if r.strict && !slices.Contains(r.choices(), value) {
		return ondisk.NoChoice("--"+r.name, value, r.choices()...)
	}
	if n, err := strconv.Atoi(value); err == nil && r.most > 0 && (n < max(1, r.least) || n > r.most) {
		return Usage("--%s %d: must be %d to %d", r.name, n, max(1, r.least), r.most)
	}
	if r.single && len(args) > 1 && strings.HasSuffix(cmd.Use, "...") {
		name := strings.TrimSuffix(strings.Fields(cmd.Use)[1], "...")
		return Usage("--%s is for 1 %s, %d given; give one", r.name, name, len(args))
	}
	if r.needs != nil && !given(cmd, r.needs.flag) && (r.needs != forWith || !given(cmd, forGuest.flag)) {
		name, _ := pflag.UnquoteUsage(cmd.Flags().Lookup(r.needs.flag))
		return Usage("--%s needs --%s %s, %s", r.name, r.needs.flag, name, r.needs.why)
	}
	for _, x := range r.excludes {
		if given(cmd, x.flag) {
			return Usage("--%s and --%s exclude each other: %s; leave out one of them", r.name, x.flag, x.why)
		}
	}
	return nil
}
