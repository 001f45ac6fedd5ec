package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
)

// storage has the flags for the storage below the images.
type storage struct {
	align.Storage        // set by find
	named         bool   // by the user
	name          string // of a profile, or a size
	profiles      string // file of profiles
}

// String returns the argument.
func (s *storage) String() string { return s.name }

// Set takes the argument of --storage. What it means depends on --profiles.
func (s *storage) Set(name string) error {
	s.name, s.named = name, true
	return nil
}

// Type is the word that help texts show for the argument.
func (s *storage) Type() string { return "STORAGE" }

// add adds --storage and --profiles.
func (s *storage) add(cmd *cobra.Command) {
	names := align.Profiles{}.Names()
	s.name = names[0]
	cmd.Flags().Var(s, "storage",
		"storage below, for the costs: a size from 512 to 4M, or one of "+strings.Join(names, ", ")+
			"; +OFFSET is where its blocks start")
	complete(cmd, "storage", names...)
	cmd.Flags().StringVar(&s.profiles, "profiles", "", "read more storages for --storage from `FILE`, in TOML")
}

// find finds the storage that the flags name.
func (s *storage) find() error {
	var known align.Profiles
	if s.profiles != "" {
		in, err := os.Open(s.profiles)
		if err != nil {
			return ondisk.In(ondisk.ErrUsage, "--profiles: %w", err)
		}
		defer in.Close()
		text, err := io.ReadAll(io.LimitReader(in, align.MaxProfiles+1))
		if err != nil {
			return fmt.Errorf("--profiles %s: %w", s.profiles, err)
		}
		if known, err = align.ParseProfiles(text); err != nil {
			return ondisk.In(ondisk.ErrUsage, "--profiles %s: %w", s.profiles, err)
		}
	}
	var err error
	if s.Storage, err = known.Parse(s.name); err != nil {
		return ondisk.In(ondisk.ErrUsage, "--storage: %w", err)
	}
	return nil
}
