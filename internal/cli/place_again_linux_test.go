package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What a killed run left goes with the next one. What another run is writing stays, and so does what was never a
// report.
func TestUnfinishedReportsGo(t *testing.T) {
	own(t)
	put(t, ".report.4194305.partial", []byte("half a rep"))
	put(t, ".report.4194306.partial", nil)
	put(t, ".report.4194307.partial", []byte("at work"))
	put(t, ".report.4194308.partial", tiny())
	put(t, ".report.x.partial", []byte("another's"))
	put(t, ".reports.4194305.partial", []byte("another's"))
	require.NoError(t, os.Chmod(".report.4194306.partial", 0o444)) // as the report that it was to replace
	f, err := os.OpenFile(".report.4194307.partial", os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK,
		&unix.Flock_t{Type: unix.F_WRLCK, Start: 1 << 62, Len: 1}))
	require.Zero(t, trueup(t, "inspect", "src.img", "--out", "report").code)
	names, err := filepath.Glob(".report*")
	require.NoError(t, err)
	require.Equal(t, []string{
		".report.4194307.partial", ".report.4194308.partial", ".report.x.partial",
		".reports.4194305.partial",
	}, names)
}
