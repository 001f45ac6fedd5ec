package hive

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// export is what hivexregedit says about a hive: a line for each key, and one for each value behind the path of its
// key, sorted.
func export(t testing.TB, path string) []string {
	t.Helper()
	t.Setenv("PERL_UNICODE", "O") // or it prints what fits into Latin-1 as that
	var out []string
	key := ""
	for line := range strings.Lines(disktest.Output(t, "hivexregedit", "--export", path, `\`)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "["):
			key = line
			out = append(out, key)
		case line != "" && key != "":
			out = append(out, key+" "+line)
		}
	}
	slices.Sort(out)
	return out
}

// exported lists a hive as read by this package in the same format, and requires Data at the offset Where. hivexregedit
// prints 32-bit numbers as such, and all other values in hex.
func exported(t testing.TB, src *bytes.Reader) []string {
	t.Helper()
	h, err := Open(src)
	require.NoError(t, err)
	var out []string
	line := ""
	require.NoError(t, visit(h, func(path string) {
		line = "[" + cmp.Or(path, `\`) + "]"
		out = append(out, line)
	}, func(_ string, v *Value) error {
		data, err := v.Data()
		require.NoError(t, err, v.Name)
		require.Len(t, data, int(v.Size))
		require.Equal(t, data, atPlaces(t, src, v, 0, v.Size), v.Name)
		name := "@"
		if v.Name != "" {
			name = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v.Name) + `"`
		}
		said := fmt.Sprintf("hex(%x):%s", v.Type, commas(data))
		if v.Type == 4 && len(data) == 4 {
			said = fmt.Sprintf("dword:%02x%02x%02x%02x", data[3], data[2], data[1], data[0])
		}
		out = append(out, line+" "+name+"="+said)
		return nil
	}))
	slices.Sort(out)
	return out
}

// visit goes through the keys of a hive, each with its values behind it, up to the first error.
func visit(h *Hive, key func(path string), value func(path string, v *Value) error) error {
	root, err := h.root()
	if err != nil {
		return err
	}
	type node struct {
		key  *Key
		path string
	}
	for todo := []node{{root, ""}}; len(todo) > 0; todo = todo[1:] {
		path := todo[0].path
		key(path)
		for v, err := range todo[0].key.Values() {
			if err == nil {
				err = value(path, v)
			}
			if err != nil {
				return err
			}
		}
		for sub, err := range todo[0].key.Subkeys() {
			if err != nil {
				return err
			}
			todo = append(todo, node{sub, path + `\` + sub.Name})
		}
	}
	return nil
}

// atPlaces reads part of a value from where it lies in the file.
func atPlaces(t testing.TB, src io.ReaderAt, v *Value, off, n int64) []byte {
	t.Helper()
	out := []byte{}
	if n == 0 {
		return out
	}
	places, err := v.Where(off, n)
	require.NoError(t, err)
	for _, r := range places {
		b := make([]byte, r.Len)
		_, err := src.ReadAt(b, r.Off)
		require.NoError(t, err)
		out = append(out, b...)
	}
	return out
}

// sameLines compares without printing megabytes.
func sameLines(t testing.TB, want, got []string) {
	t.Helper()
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			require.Equal(t, cut(want[i]), cut(got[i]), "line %d", i)
			require.FailNow(t, "lines differ behind their begin", "%s", cut(want[i]))
		}
	}
	require.Len(t, got, len(want))
}

// Every key and value of hives of Windows, as another program reads them.
func TestCorpusLikeHivex(t *testing.T) {
	for name, least := range map[string]int{"BCD": 200, "SYSTEM_2": 60_000, "SYSTEM_WIN_10_1709": 100_000} {
		t.Run(name, func(t *testing.T) {
			path := disktest.Corpus(t, "regipy/"+name+".xz")
			want := export(t, path)
			require.Greater(t, len(want), least)
			raw := disktest.ReadFile(t, path)
			sameLines(t, want, exported(t, bytes.NewReader(raw)))
		})
	}
}

func cut(s string) string { return s[:min(len(s), 200)] }

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
			v := valueOf(t, open(t, raw), tc.name, tc.path...)
			want, err := v.Data()
			require.NoError(t, err)
			copy(want[tc.off:], tc.data)
			places, err := v.Where(tc.off, int64(len(tc.data)))
			require.NoError(t, err)
			left := tc.data
			for _, r := range places {
				disktest.WriteAt(t, path, r.Off, left[:r.Len])
				left = left[r.Len:]
			}
			require.Empty(t, left)

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
