package fleetcmd

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/fleet"
)

// complete adds shell completion of flag values, selected by the placeholder in the flag's help. Nothing else completes
// to files: job paths are relative to a datastore, and job IDs come from a server.
func complete(cmd *cobra.Command) {
	offer := func(f *pflag.Flag) {
		name, _ := pflag.UnquoteUsage(f)
		if by := offers(name); by != nil {
			if err := cmd.RegisterFlagCompletionFunc(f.Name, by); err != nil {
				panic(err) // only for an unknown flag, which is a bug
			}
		}
	}
	cmd.LocalNonPersistentFlags().VisitAll(offer)
	cmd.PersistentFlags().VisitAll(offer)
	for _, below := range cmd.Commands() {
		complete(below)
	}
}

func offers(name string) cobra.CompletionFunc {
	switch name {
	case "FILE":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)
	case "DIR":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	case "STATE":
		var states []cobra.Completion
		for _, s := range fleet.States {
			states = append(states, string(s))
		}
		return cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)
	case "NAME=DIR", "NAME[=DIR]":
		return func(_ *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if strings.Contains(begun, "=") {
				return nil, cobra.ShellCompDirectiveFilterDirs
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
	return nil
}
