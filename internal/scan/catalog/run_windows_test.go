package catalog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRootsOfWindows(t *testing.T) {
	require.Equal(t, []string{`C:\a`, `C:\a-b`, `D:\`, `\\server\share\a`},
		roots([]string{`C:\a\b\c`, `C:\a-b`, `C:\a`, `D:\`, `D:/x`, `\\server\share\a`, `\\server\share\a\b`}))
}

// What is gone is looked for below the roots of a run, and nowhere else.
func TestRemovedOnWindows(t *testing.T) {
	c := fresh(t)
	r := begin(t, c, `C:\lib`)
	for n, p := range []string{`C:\lib\a`, `C:\lib\deep\b`, `C:\lib-old\e`, `C:\library\c`} {
		save(t, r, p, image(p, 65536, file("x", uint64(n))))
	}
	finish(t, r)
	r = begin(t, c, `C:\lib`)
	require.Equal(t, []string{`C:\lib\a`, `C:\lib\deep\b`}, removed(t, r))
	finish(t, r)
}
