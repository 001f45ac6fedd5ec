package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// words completes arguments. What it reads of an image is read as a command reads it.
type words struct{ *Base }

// offers is what the shell offers for an argument, by its name in help texts; nothing for all others.
func (w words) offers(name string) cobra.CompletionFunc {
	switch name {
	case "IMAGE", "SOURCE", "DISK":
		return w.offerImages
	case "DEST", "PATH", "FILE", "GLOB", "PROGRAM", "COMMAND":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	case "DIR":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	}
	return nil
}

// CompletePaths offers files, folders and disks of packages in the shell where a command takes them, and only there.
func CompletePaths(c *Base, root *cobra.Command) {
	w := words{c}
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	for _, cmd := range append(root.Commands(), root) {
		flag := func(f *pflag.Flag) {
			name, _ := pflag.UnquoteUsage(f)
			if _, chosen := cmd.GetFlagCompletionFunc(f.Name); chosen {
				return
			}
			if offer := w.offers(name); offer != nil {
				completeBy(cmd, f.Name, offer)
			}
		}
		cmd.Flags().VisitAll(flag)
		cmd.PersistentFlags().VisitAll(flag)
		if cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = w.offerArguments
		}
	}
}

// offerArguments offers what a command takes, as its usage says.
func (w words) offerArguments(cmd *cobra.Command, args []string, begun string) (
	[]cobra.Completion, cobra.ShellCompDirective,
) {
	names := strings.Fields(cmd.Use)[1:]
	if len(names) == 0 || (len(args) >= len(names) && !strings.HasSuffix(names[len(names)-1], "...")) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	name, _ := strings.CutSuffix(names[min(len(args), len(names)-1)], "...")
	if offer := w.offers(name); offer != nil {
		return offer(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// offerImages offers files, and behind a package and "!" its disks. A name that a shell would not take as it stands
// is left out: a package of strangers could have commands in it.
func (w words) offerImages(
	cmd *cobra.Command, _ []string, begun string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	at := strings.LastIndexByte(begun, '!')
	if at < 0 || realign.IsRemote(begun) || w.Confine(cmd.Context(), io.Discard, []string{begun}, nil) != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	p, err := realign.OpenPackage(begun[:at])
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	defer p.Close()
	var out []cobra.Completion
	for _, d := range p.Images() {
		if shell.Quote(d.Member) == d.Member {
			out = append(out, begun[:at+1]+d.Member)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completePartitions offers for a flag the numbers of the partitions of the image that the command line names first.
func completePartitions(c *Base, cmd *cobra.Command, flag string, r *realign.Reading) {
	completeBy(cmd, flag, func(cmd *cobra.Command, args []string, begun string) (
		out []cobra.Completion, _ cobra.ShellCompDirective,
	) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if len(args) == 0 || realign.IsRemote(args[0]) ||
			c.Confine(cmd.Context(), io.Discard, slices.Concat(args[:1], r.Allow), nil) != nil {
			return nil, none
		}
		s, err := realign.Open(args[0], *r)
		if err != nil {
			return nil, none
		}
		defer s.Close()
		before := begun[:strings.LastIndexByte(begun, ',')+1]
		for _, p := range s.Layout.Partitions {
			number := strconv.Itoa(p.Number)
			if slices.Contains(strings.Split(before, ","), number) {
				continue
			}
			about := fmt.Sprintf("%s from LBA %d", units.Format(p.Len), p.Off/s.Layout.SectorSize)
			out = append(out, cobra.CompletionWithDesc(before+number, about))
		}
		return out, none
	})
}
