package recipes

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A refused copy runs no command, and a scan runs one for each image that is off 4 KiB.
func TestCommandAfterACopy(t *testing.T) {
	k := newKitchen(t, "jq")
	commands := strings.Join(k.follow("A command after a copy"), "")
	planned := k.shell(commands)
	require.Contains(k, planned, "\nxp.img: raw, ")
	require.Equal(k, 1, strings.Count(planned, "This was a dry run"), planned)
	k.aligned("xp-aligned.img")
	k.shell("sha256sum -c xp-aligned.sha256")

	copied, _, _ := strings.Cut(commands, "\n")
	k.shell("rm xp-aligned.* && truncate -s 1M xp.img")
	require.Contains(k, k.shell("("+copied+") || echo failed with $?"), "failed with")
	k.shell("[ ! -e xp-aligned.sha256 ]")
}
