package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A place that does not fit its file costs the recovery system, and no more: Windows starts all the same, so the disk
// is aligned, and its user is told.
func TestWindowsWithoutRoomForItsRecoverySystem(t *testing.T) {
	t.Parallel()
	c := windows7(t, "ntfs")
	was := c.disk.starts()
	text := recoveryText(was[1], "")
	c.disk.volumes[1].files[recoveryFile] = hostFile(t, text)
	source, dest := c.disk.make(t), filepath.Join(t.TempDir(), "dest.raw")
	goldenPlan(t, t.Name(), source)
	r := trueup(t, "align", source, dest)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout, "so the recovery system may be disabled")
	require.Contains(t, r.stdout, "run reagentc /disable and reagentc /enable")
	now := was
	for _, p := range trueupJSON[jsonInspect](t, 0, "inspect", dest).Partitions {
		now[p.Number] = p.StartBytes
	}
	for _, s := range c.stored {
		c.check(t, s, dest, now)
	}
	after := disktest.ReadFile(t, readGuestFile(t, dest, c.disk.volume(2), now[2], recoveryFile))
	require.Equal(t, text, string(after))
	r = trueup(t, "verify", source, dest)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
}
