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

// A copy that a judge finds to be wrong keeps its first name.
func TestSecondOpinion(t *testing.T) {
	k := newKitchen(t, "qemu-img")
	commands := strings.Join(k.follow("A second opinion before the name"), "")
	k.shell(commands)
	k.aligned("xp-judged.img")
	_, judge, _ := strings.Cut(commands, "&& ")
	k.shell("rm xp-judged.img && truncate -s 1M xp.new.img")
	require.Contains(k, k.shell("("+judge+") || echo failed with $?"), "failed with")
	k.shell("[ ! -e xp-judged.img ]")
}

// Both lines write the same copy.
func TestSlowCopy(t *testing.T) {
	k := newKitchen(t, "nbdkit", "ionice")
	commands := strings.Join(k.follow("A slow copy"), "")
	k.shell(commands)
	k.aligned("xp-slow.img")
	k.shell("cmp xp-slow.img xp-idle.img")
}

// The function gives its flags to scan alone, and those of a command line win.
func TestDefaults(t *testing.T) {
	k := newKitchen(t, "jq")
	commands := k.follow("Defaults of flags")
	k.shell(strings.Join(commands, ""))
	row := "head -n 1 scan.ndjson | jq -r .labels.room[0]; tail -n 1 scan.ndjson | jq .boundary_bytes"
	require.Equal(k, "2\n65536\n", k.shell(row))
	k.shell(commands[0] + "trueup scan --boundary 1M -o json . > scan.ndjson || [ $? = 3 ]")
	require.Equal(k, "2\n1048576\n", k.shell(row))
	k.shell(commands[0] + "trueup align xp.img xp-aligned.img")
}

// A run that ended is a line with its exit code.
func TestLog(t *testing.T) {
	k := newKitchen(t, "jq")
	commands := strings.Join(k.follow("A log to read"), "")
	require.Regexp(k, `(?m)^\d{4}-\S+\tinspect\t3\t$`, k.shell(commands))
}

func TestNightlyScan(t *testing.T) {
	k := newKitchen(t, "jq")
	commands := k.follow("A nightly scan")
	for range 2 {
		require.Contains(k, k.shell(strings.Join(commands, "")), " 1 63\n")
	}
	require.Contains(k, k.shell("jq -r .change last.ndjson"), "same\n")
	require.Contains(k, k.shell("cat library.html"), "</html>")
}
