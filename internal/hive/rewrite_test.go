package hive

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// rewrite puts bytes into a value of the hive at path, where Where says, and into nothing else.
func rewrite(t testing.TB, path string, v *Value, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	places, err := v.Where(off, int64(len(b)))
	require.NoError(t, err)
	for _, r := range places {
		_, err := f.WriteAt(b[:r.Len], r.Off)
		require.NoError(t, err)
		b = b[r.Len:]
	}
	require.Empty(t, b)
	require.NoError(t, f.Close())
}

// without are the lines of a that b has not. Both are sorted.
func without(a, b []string) (out []string) {
	for _, line := range a {
		if _, found := slices.BinarySearch(b, line); !found {
			out = append(out, line)
		}
	}
	return out
}

// What is written where a value lies changes this value for other programs too, and nothing else in the hive.
func TestRewriteLikeHivex(t *testing.T) {
	forged := func(minor uint32) func(t testing.TB) string {
		return func(t testing.TB) string {
			t.Helper()
			path := filepath.Join(t.TempDir(), "hive")
			hiveforge.New(minor, all()).Write(t, path)
			return path
		}
	}
	corpus := func(name string) func(t testing.TB) string {
		return func(t testing.TB) string {
			t.Helper()
			return disktest.Corpus(t, "regipy/"+name+".xz")
		}
	}
	eight := []byte{0, 0, 0x10, 0, 0, 0, 0, 0xa5}
	for name, tc := range map[string]struct {
		hive func(t testing.TB) string
		path []string
		name string
		off  int64
		data []byte
	}{
		"device of BCD": {
			corpus("BCD"),
			[]string{"Objects", "{733b62de-f608-11eb-825c-c112f60133ab}", "Elements", "11000001"},
			"Element", 0x20, eight,
		},
		"C: of Windows 7":        {corpus("SYSTEM_2"), []string{"MountedDevices"}, `\DosDevices\C:`, 4, eight},
		"inline":                 {forged(5), []string{"sizes"}, "4", 1, []byte{0xa5, 0x5a}},
		"one cell":               {forged(5), []string{"sizes"}, "12", 4, eight},
		"the last bytes":         {forged(5), []string{"sizes"}, "13", 5, eight},
		"over two segments":      {forged(5), []string{"sizes"}, "long", 3*segmentSize - 3, eight},
		"one cell, however long": {forged(3), []string{"sizes"}, "long", 3*segmentSize - 3, eight},
	} {
		t.Run(name, func(t *testing.T) {
			path := tc.hive(t)
			before := export(t, path)
			raw := disktest.ReadFile(t, path)
			k, err := open(t, raw).Key(tc.path...)
			require.NoError(t, err)
			v, err := k.Value(tc.name)
			require.NoError(t, err)
			want, err := v.Data()
			require.NoError(t, err)
			copy(want[tc.off:], tc.data)
			rewrite(t, path, v, tc.off, tc.data)

			after := export(t, path)
			require.Len(t, without(before, after), 1)
			changed := without(after, before)
			require.Len(t, changed, 1)
			require.True(t, strings.HasSuffix(changed[0], fmt.Sprintf("hex(%x):%s", v.Type, commas(want))), "%s",
				cut(changed[0]))
			require.Equal(t, string(want), disktest.Output(t, "hivexget", path, `\`+strings.Join(tc.path, `\`),
				tc.name))
			rewritten := disktest.ReadFile(t, path)
			differ := 0
			for i := range raw {
				if raw[i] != rewritten[i] {
					differ++
				}
			}
			require.LessOrEqual(t, differ, len(tc.data))
			require.Equal(t, want, atPlaces(t, bytes.NewReader(rewritten), v, 0, v.Size))
		})
	}
}

// commas are bytes as regedit writes them.
func commas(b []byte) string { return strings.ReplaceAll(fmt.Sprintf("% x", b), " ", ",") }
