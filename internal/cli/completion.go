package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// offers is what the shell offers for an argument, by its name in help texts; nothing for all others.
func offers(name string) cobra.CompletionFunc {
	switch name {
	case "IMAGE", "SOURCE", "DISK", "DEST", "PATH", "FILE", "GLOB", "PROGRAM", "COMMAND":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	case "DIR":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	}
	return nil
}

// completePaths offers files and folders in the shell where a command takes them, and only there.
func completePaths(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	for _, cmd := range append(root.Commands(), root) {
		flag := func(f *pflag.Flag) {
			name, _ := pflag.UnquoteUsage(f)
			if _, chosen := cmd.GetFlagCompletionFunc(f.Name); chosen {
				return
			}
			if offer := offers(name); offer != nil {
				completeBy(cmd, f.Name, offer)
			}
		}
		cmd.Flags().VisitAll(flag)
		cmd.PersistentFlags().VisitAll(flag)
		if cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = offerArguments
		}
	}
}

// offerArguments offers what a command takes, as its usage says.
func offerArguments(cmd *cobra.Command, args []string, begun string) (
	[]cobra.Completion, cobra.ShellCompDirective,
) {
	names := strings.Fields(cmd.Use)[1:]
	if len(names) == 0 || (len(args) >= len(names) && !strings.HasSuffix(names[len(names)-1], "...")) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	name, _ := strings.CutSuffix(names[min(len(args), len(names)-1)], "...")
	if offer := offers(name); offer != nil {
		return offer(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
