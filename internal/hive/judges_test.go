package hive

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// export returns hivexregedit's output for a hive: a line for each key, and one for each value after the path of its
// key, sorted.
func export(t testing.TB, path string) []string {
	t.Helper()
	t.Setenv("PERL_UNICODE", "O") // otherwise it prints Latin-1 text as text
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

// visit walks the keys of a hive, each with its values after it, up to the first error.
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

// atPlaces reads part of a value from its positions in the file.
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

// without returns the lines of a that b lacks. Both are sorted.
func without(a, b []string) (out []string) {
	for _, line := range a {
		if _, found := slices.BinarySearch(b, line); !found {
			out = append(out, line)
		}
	}
	return out
}

// Writing at the position of a value changes this value for other programs too, and nothing else in the hive.
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

// commas formats bytes like regedit.
func commas(b []byte) string { return strings.ReplaceAll(fmt.Sprintf("% x", b), " ", ",") }

// TestMarvin compares hashes with values that other programs computed. TestRandomHives proves their places.
func TestMarvin(t *testing.T) {
	counted := make([]byte, 32)
	for i := range counted {
		counted[i] = byte(i)
	}
	for _, tc := range []struct {
		data []byte
		want uint64
	}{
		{nil, 0xb39efca403966e08},
		{[]byte("abcd"), 0x20094fb11a6cd086},
		{make([]byte, 32), 0xda91a06ac5359223},
		{counted, 0xc64feee425c2e24c},
		{make([]byte, 472), 0xb16122d0c0639acc},
	} {
		m := marvinSeed
		m.write(tc.data)
		require.Equal(t, tc.want, m.sum(), hex.EncodeToString(tc.data))
	}
}

// recovered returns the hive bins in the state that Windows starts with.
func recovered(t testing.TB, r *Recovery) []byte {
	t.Helper()
	require.NoError(t, r.Certain())
	w := walker{Recovery: r, visit: func(*Hive) error { return nil }}
	w.begin()
	for _, l := range r.chains[len(r.chains)-1].logs {
		for _, e := range l.entries {
			require.NoError(t, w.apply(l, e))
		}
	}
	b, err := ondisk.Bytes(w.state, baseSize, int64(w.state.bins))
	require.NoError(t, err)
	return b
}

// others recovers a hive with another program, and returns its bins. The logs must be in their order.
func others(t testing.TB, program string, hive forge.Bytes, logs ...forge.Bytes) []byte {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	hive.Write(t, filepath.Join(dir, "hive"))
	script := disktest.DataFile(t, filepath.Join("testdata", "recover.py"))
	args := []string{script, program, filepath.Join(dir, "hive"), out}
	for i, l := range logs {
		path := filepath.Join(dir, fmt.Sprint("log", i))
		l.Write(t, path)
		args = append(args, path)
	}
	disktest.Run(t, disktest.Python(t), args...)
	b := disktest.ReadFile(t, out)
	return b[baseSize:]
}

// Our recovery of a hive with its logs equals that of other programs.
func TestRecoveryLikeOthers(t *testing.T) {
	h := hot(t)
	a, b, c := with(t, h, "aaaa"), with(t, h, "bbbb"), with(t, h, "cccc")
	grown := append(slices.Clone(b), hiveforge.New(5, hiveforge.Key{})[4096:]...)
	grown.U32(int64(len(b))+4, uint32(len(b)-4096))
	dirty := hiveforge.Dirty(h, 10)
	for name, logs := range map[string][]forge.Bytes{
		"one":     {hiveforge.Log(h, 9, a, elsewhere(b), c)},
		"two":     {hiveforge.Log(h, 9, a, elsewhere(a)), hiveforge.Log(elsewhere(a), 11, b, c)},
		"a gap":   {hiveforge.Log(h, 90, a), hiveforge.Log(a, 91, c)},
		"growing": {hiveforge.Log(h, 9, a, grown)},
	} {
		t.Run(name, func(t *testing.T) {
			ours := recovered(t, recovery(t, dirty, logs...))
			sameBins(t, others(t, "registry", dirty, logs...), ours)
			if name != "growing" { // regipy does not extend the file
				sameBins(t, others(t, "regipy", dirty, logs...), ours)
			}
			slices.Reverse(logs)
			sameBins(t, ours, recovered(t, recovery(t, dirty, logs...)))
		})
	}
	for i := range 3 { // neither a torn entry counts nor any after it
		log := hiveforge.Log(h, 9, a, elsewhere(b), c)
		for _, e := range recovery(t, dirty, log).chains[0].logs[0].entries[i:] {
			log[e.End()-1]++
			break
		}
		r := recovery(t, dirty, log)
		require.Equal(t, i, r.Applied)
		if i > 0 { // the other program needs one
			sameBins(t, others(t, "registry", dirty, log), recovered(t, r))
		}
	}
	old := hiveforge.OldLog(h, 1, elsewhere(a))
	sameBins(t, others(t, "regipy", dirty, old), recovered(t, recovery(t, dirty, old)))
}

// The hives are of Windows 7 and 10, and were not closed.
func TestRecoveryOfTheCorpus(t *testing.T) {
	for _, name := range []string{"regipy/SYSTEM_2.xz", "regipy/SYSTEM_WIN_10_1709.xz"} {
		t.Run(name, func(t *testing.T) {
			b := disktest.ReadFile(t, disktest.Corpus(t, name))
			h := forge.Bytes(b)
			number := binary.LittleEndian.Uint32(h[hiveforge.Sequence2:])
			end := int(baseSize + binary.LittleEndian.Uint32(h[hiveforge.BinsSize:]))
			var steps []forge.Bytes
			for i := range 5 {
				to := slices.Clone(h[:end])
				for at := 5000 + 70_000*i; at < end; at += 1_000_003 {
					to[at]++
				}
				steps = append(steps, to)
			}
			first, second := hiveforge.Log(h[:end], number, steps[:3]...), hiveforge.Log(steps[2], number+3,
				steps[3:]...)
			ours := recovered(t, recovery(t, h, second, first))
			require.Equal(t, []byte(steps[4][baseSize:]), ours)
			sameBins(t, others(t, "regipy", h, first, second), ours)
			sameBins(t, others(t, "registry", h, first, second), ours)
		})
	}
}

func sameBins(t testing.TB, want, got []byte) {
	t.Helper()
	require.GreaterOrEqual(t, len(want), len(got)) // the file can be longer than its bins
	for i := range got {
		if want[i] != got[i] {
			require.Equal(t, want[i], got[i], "byte %#x of the bins", i)
		}
	}
}
