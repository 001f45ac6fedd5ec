package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestScanOfAnUnfinishedDisk has an exchange that was killed: the row of the disk is an error, whichever of its names
// stands for it, and it is looked at again when the exchange is complete.
func TestScanOfAnUnfinishedDisk(t *testing.T) {
	t.Parallel()
	for name, source := range map[string]string{"one file": sampleDisk(t), "two files": flatDisk(t, t.TempDir(), "x")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, last := filepath.Dir(source), filepath.Join(t.TempDir(), "last.ndjson")
			killed := run(t, disktest.Tool(t, "strace"), "-f", "-o", filepath.Join(t.TempDir(), "log"), "-e",
				"trace=renameat", "-e", "inject=renameat:signal=KILL:when=1", builtPath, "replace", source)
			require.Equal(t, 128+9, killed.code, killed.stderr)
			for range 2 {
				require.Equal(t, 1, scan(t, append(since(last), dir)...).code)
				r := trueup(t, "scan", "--since", last, dir)
				require.Equal(t, 1, r.code, "%s%s", r.stdout, r.stderr)
				require.Contains(t, r.stdout, "was interrupted; trueup resume")
				require.NotRegexp(t, `(?m)\.(partial|exchange)$`, r.stdout, "it is part of the interrupted work")
				require.NotContains(t, r.stdout, "trueup align")
				require.Regexp(t, "Passed over [1-3] files? that runs of trueup have not completed", r.stdout)
			}
			require.Equal(t, 0, trueup(t, "resume", source).code)
			r := trueup(t, "scan", "--since", last, dir)
			require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
		})
	}
}
