package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// A copy with a limit takes the time that its bytes have, at least, and is the same copy.
func TestLimitRate(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 4)
	free, slow := filepath.Join(t.TempDir(), "free.raw"), filepath.Join(t.TempDir(), "slow.raw")
	type took struct {
		Seconds float64 `json:"duration_seconds"`
	}
	trueupJSON[took](t, 0, "align", "--allow-unbootable", source, free)
	got := trueupJSON[took](t, 0, "align", "--allow-unbootable", "--limit-rate", "2M", source, slow)
	require.GreaterOrEqual(t, got.Seconds, (time.Second * 3 / 2).Seconds(), "4 MiB, but for the last chunks")
	require.Equal(t, sha256Of(t, free), sha256Of(t, slow))
	for _, rate := range []string{"0", "1K", "fast"} {
		r := trueup(t, "align", "--limit-rate", rate, source, slow)
		require.Equal(t, 64, r.code)
		require.Contains(t, r.stderr, "bytes in a second")
	}
	r := trueup(t, "convert", "--limit-rate", "1M", "-", slow)
	require.Equal(t, 64, r.code)
	require.Contains(t, r.stderr, "SOURCE is a pipe")
}
