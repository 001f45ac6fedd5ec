package hive

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
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

// exported says the same of a hive as we read it, and that the bytes at Where are Data.
func exported(t testing.TB, src *bytes.Reader) []string {
	t.Helper()
	h, err := Open(src)
	require.NoError(t, err)
	root, err := h.root()
	require.NoError(t, err)
	var out []string
	type at struct {
		key  *Key
		path string
	}
	for todo := []at{{root, ""}}; len(todo) > 0; {
		k := todo[0]
		todo = todo[1:]
		line := "[" + k.path + "]"
		if k.path == "" {
			line = `[\]`
		}
		out = append(out, line)
		for v, err := range k.key.Values() {
			require.NoError(t, err, k.path)
			out = append(out, line+" "+exportedValue(t, src, v))
		}
		for sub, err := range k.key.Subkeys() {
			require.NoError(t, err, k.path)
			todo = append(todo, at{sub, k.path + `\` + sub.Name})
		}
	}
	slices.Sort(out)
	return out
}

// exportedValue is the line of hivexregedit for a value: it knows numbers of 32 bits, and shows all others in hex.
func exportedValue(t testing.TB, src io.ReaderAt, v *Value) string {
	t.Helper()
	data, err := v.Data()
	require.NoError(t, err, v.Name)
	require.Len(t, data, int(v.Size))
	require.Equal(t, data, atPlaces(t, src, v, 0, v.Size), v.Name)
	name := "@"
	if v.Name != "" {
		name = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v.Name) + `"`
	}
	if v.Type == 4 && len(data) == 4 {
		return fmt.Sprintf("%s=dword:%02x%02x%02x%02x", name, data[3], data[2], data[1], data[0])
	}
	return fmt.Sprintf("%s=hex(%x):%s", name, v.Type, commas(data))
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
