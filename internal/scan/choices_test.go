package scan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFlagsOfTheNextCommands(t *testing.T) {
	require.Empty(t, (&Choices{}).Again(""))
	c := Choices{
		Include: []string{"*.vmdk", "a b"}, Exclude: []string{"old/**"}, Ignore: "accepted.txt",
		Catalog: "it's.db", Changed: true,
	}
	require.Equal(t,
		`--include '*.vmdk' --include 'a b' --exclude 'old/**' --ignore accepted.txt --catalog 'it'\''s.db'`,
		c.Again(""))
}
