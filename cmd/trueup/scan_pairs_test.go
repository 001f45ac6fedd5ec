package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestScanOfPairs scans exchanged disks. Their kept originals are no findings, in each report, until the journal that
// vouches for them is gone; also beside the results of an earlier scan.
func TestScanOfPairs(t *testing.T) {
	t.Parallel()
	dir, last := t.TempDir(), filepath.Join(t.TempDir(), "last.ndjson")
	sparse := filepath.Join(dir, "xp.vmdk")
	disktest.Run(t, "cp", sampleDisk(t), sparse)
	flat := flatDisk(t, dir, "flat")
	scan := func(code int, args ...string) string {
		t.Helper()
		r := trueup(t, append([]string{"scan", dir}, args...)...)
		require.Equal(t, code, r.code, "%s%s", r.stdout, r.stderr)
		return r.stdout
	}
	keep := func(code int) {
		t.Helper()
		scan(code, append(since(last), "-o", "json")...)
	}
	keep(3)
	for _, disk := range []string{sparse, flat} {
		require.Equal(t, 0, trueup(t, "replace", disk).code)
	}
	for _, more := range [][]string{
		nil, {"--since", last}, {"--since", last}, {"--check"}, {"--isolation", "none"},
	} {
		out := scan(0, more...)
		keep(0)
		require.Contains(t, out, `it is the original of "xp.vmdk", kept`)
		require.Contains(t, out, "2  original  of an exchanged disk, kept")
		require.NotContains(t, out, "can be realigned")
	}
	for format, says := range map[string]string{
		"json":       `"state":"original"`,
		"csv":        `,original,vmdk,`,
		"html":       "of exchanged disks, kept",
		"junit":      `<skipped type="original"`,
		"prometheus": `verdict="original"} 2`,
	} {
		require.Contains(t, scan(0, "-o", format), says, format)
	}
	for line := range strings.Lines(scan(0, "--json")) {
		validate(t, line)
	}

	originals := []string{filepath.Join(dir, "xp.orig.vmdk"), filepath.Join(dir, "flat.orig.vmdk")}
	only := trueup(t, append([]string{"scan"}, originals...)...)
	require.Equal(t, 1, only.code)
	require.Contains(t, only.stderr, "no image was judged")
	require.Equal(t, 0, trueup(t, append([]string{"scan", "--allow-empty"}, originals...)...).code)

	away := filepath.Join(t.TempDir(), "journal")
	require.NoError(t, os.Rename(sparse+".trueup", away))
	require.Contains(t, scan(3, "--since", last), "xp.orig-aligned.vmdk")
	keep(3)
	require.NoError(t, os.Rename(away, sparse+".trueup"))
	keep(0)
	require.Equal(t, 0, trueup(t, "undo", sparse).code)
	require.Contains(t, scan(3, "--since", last), "1  original")
}

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
