package recipes

import (
	"strings"
	"testing"
	"time"

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

// Both lines write the same copy, and a lower rate takes its time.
func TestSlowCopy(t *testing.T) {
	k := newKitchen(t, "nbdkit", "ionice")
	commands := strings.Join(k.follow("A copy that leaves room for others"), "")
	k.shell(commands)
	k.aligned("xp-slow.img")
	k.shell("cmp xp-slow.img xp-idle.img")

	start := time.Now()
	limited, _, _ := strings.Cut(strings.Replace(commands, "rate=160M", "rate=4M", 1), "\n")
	k.shell("rm xp-slow.img && " + limited)
	require.Greater(k, time.Since(start), time.Second, "844 KiB, but for the first burst")
}
