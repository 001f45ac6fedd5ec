package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A scan gives way to other programs unless told otherwise, and a copy when told so.
func TestIdle(t *testing.T) {
	t.Parallel()
	strace, source := disktest.Tool(t, "strace"), sampleDisk(t)
	for _, c := range []struct {
		args []string
		idle bool
	}{
		{[]string{"scan", "--allow-unknown", source}, true},
		{[]string{"scan", "--idle=false", source}, false},
		{[]string{"align", "--idle", source, filepath.Join(t.TempDir(), "a.vmdk")}, true},
		{[]string{"convert", source, filepath.Join(t.TempDir(), "b.vmdk")}, false},
		{[]string{"align", "--idle", "--in-place", noisyDisk(t, 2)}, true},
		{[]string{"align", "--idle", "--replace", sampleDisk(t)}, true},
	} {
		log := filepath.Join(t.TempDir(), "log")
		r := run(t, strace, append([]string{"-f", "--seccomp-bpf", "-o", log, "-e", "trace=ioprio_set", builtPath},
			c.args...)...)
		require.Contains(t, []int{0, 3}, r.code, r.stderr) // the verdict of a scan
		calls := disktest.ReadFile(t, log)
		require.Equal(t, c.idle, strings.Contains(string(calls), "IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0)) = 0"),
			"%q: %s", c.args, calls)
	}
}
