package cli

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/image"
)

// The mark of an unfinished copy is no content that a user could accept as unknown.
func TestUnfinishedCopyIsNotAccepted(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "marked.img", append(image.Mark(512), make([]byte, 1<<20)...))
	put(t, "unknown.img", append([]byte("unknown"), make([]byte, 1<<20-7)...))
	for _, args := range [][]string{{"inspect"}, {"inspect", "--json"}, {"scan", "--isolation", "none", "--json"}} {
		require.Equal(t, 0, trueup(t, append(args, "--allow-unknown", "unknown.img")...).code)
		for _, more := range [][]string{{"marked.img"}, {"--allow-unknown", "marked.img"}} {
			r := trueup(t, append(args, more...)...)
			require.Equal(t, 1, r.code, r.stdout)
			require.Contains(t, r.stdout, "unfinished copy")
		}
	}
}

// A file that a killed run was writing is no disk, whatever stands in it, unless it has another name; the commands that
// go on from open work say what to do with it.
func TestPartialFileIsNoDisk(t *testing.T) {
	t.Chdir(t.TempDir())
	disk := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Start: 2048, Sectors: 4096})
	for _, name := range []string{"x.raw", ".x.raw.partial", "y.partial", ".y.raw.part"} {
		put(t, name, disk)
	}
	put(t, ".x.raw.trial", nil)
	require.NoError(t, os.Symlink(".x.raw.partial", "link.raw"))
	for _, args := range [][]string{
		{"inspect"},
		{"inspect", "--allow-unknown"},
		{"plan"},
		{"align", "--skip-aligned"},
		{"convert"},
		{"verify", "x.raw"},
	} {
		for path, code := range map[string]int{".x.raw.partial": 4, "link.raw": 4, "y.partial": 0, ".y.raw.part": 0} {
			line := append(slices.Clone(args), path)
			if args[0] == "align" || args[0] == "convert" {
				line = append(line, "dest.raw")
			}
			r := trueup(t, line...)
			require.Equal(t, code, r.code, "%q: %s", line, r.stderr)
			_ = os.Remove("dest.raw")
			if code != 0 {
				require.Contains(t, r.stderr, `it is an unfinished copy, of which trueup makes "x.raw"`)
			}
		}
	}
	r := trueup(t, "scan", "--isolation", "none", "--json", ".x.raw.partial")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "unfinished copy")
	r = trueup(t, "scan", "--isolation", "none", ".")
	require.Contains(t, r.stdout, "Passed over 2 files that runs of trueup have not completed (such as .x.raw.partial)")
	for _, command := range []string{"undo", "resume", "finish"} {
		r := trueup(t, command, "x.raw")
		require.Equal(t, 64, r.code)
		require.Contains(t, r.stderr, `the hidden file ".x.raw.partial" and 1 more in the folder: give the same `)
	}
}
