package cli

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
)

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
