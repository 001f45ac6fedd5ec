package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFlagsOfTheNextCommands(t *testing.T) {
	require.Empty(t, (&scanFlags{}).again())
	f := scanFlags{
		include: []string{"*.vmdk", "a b"}, exclude: []string{"old/**"}, ignore: "accepted.txt",
		catalog: "it's.db", changed: true,
	}
	require.Equal(t, `--include '*.vmdk' --include 'a b' --exclude 'old/**' --ignore accepted.txt --catalog 'it'\''s.db'`,
		f.again())
}
