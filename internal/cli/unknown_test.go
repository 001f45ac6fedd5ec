package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

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
