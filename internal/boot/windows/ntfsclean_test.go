package windows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot/boottest"
	"github.com/trueup/trueup/internal/boot/windows"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
)

// restartPage is one of the two pages at the start of $LogFile. Spec: Linux fs/ntfs/logfile.h.
func restartPage(lsn uint64, inUse, flags uint16) forge.Bytes {
	p := make(forge.Bytes, 4096)
	p.Text(0, "RSTR")
	p.U32(0x10, 4096)
	p.U16(0x18, 0x30)
	p.U64(0x30, lsn)
	p.U16(0x3c, inUse)
	p.U16(0x3e, flags)
	return p
}

// A log is open when it is in use and the volume is not marked clean; the newer page decides.
func TestLogOfNTFS(t *testing.T) {
	const closed, clean = 0xffff, 2
	damaged := restartPage(9, 0, clean)
	damaged.U16(0x18, 0xfff0)
	for name, tc := range map[string]struct {
		pages   []forge.Bytes
		open    bool
		unknown bool
	}{
		"new":                       {[]forge.Bytes{{0xff, 0xff, 0xff, 0xff}}, false, false},
		"closed":                    {[]forge.Bytes{restartPage(1, closed, 0), restartPage(2, closed, 0)}, false, false},
		"open, and marked clean":    {[]forge.Bytes{restartPage(1, 0, clean), restartPage(2, 0, clean)}, false, false},
		"open":                      {[]forge.Bytes{restartPage(1, 0, 0), restartPage(2, 0, 0)}, true, false},
		"newer page is closed":      {[]forge.Bytes{restartPage(1, 0, 0), restartPage(2, closed, 0)}, false, false},
		"newer page is open":        {[]forge.Bytes{restartPage(3, 0, 0), restartPage(2, closed, 0)}, true, false},
		"no page":                   {[]forge.Bytes{make(forge.Bytes, 8192)}, false, true},
		"restart area behind page":  {[]forge.Bytes{damaged, damaged}, false, true},
		"nothing at all":            {nil, false, true},
		"second page is not a page": {[]forge.Bytes{restartPage(1, closed, 0), make(forge.Bytes, 4096)}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			log := []byte{}
			for _, p := range tc.pages {
				log = append(log, p...)
			}
			// The reader of the log does not care what file system it lies in.
			image := windowsDisk(t, map[string][]byte{"LOGFILE": log})
			open, err := windows.LogOpen(t, boottest.Disk(image), fatStart, "LOGFILE")
			require.Equal(t, tc.open, open)
			if tc.unknown {
				require.ErrorIs(t, err, ondisk.ErrUnsupported)
				return
			}
			require.NoError(t, err)
		})
	}
}
