package hive

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// Hashes are those that others computed of entries of Windows.
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
	empty := make(forge.Bytes, 512)
	empty.Text(0, "HvLE")
	empty.U32(4, 512)
	empty.U32(12, 7)
	empty.U32(16, 4096)
	hash1, hash2 := hashes(empty)
	require.Equal(t, [2]uint64{0xb16122d0c0639acc, 0x3585eae310c9def1}, [2]uint64{hash1, hash2})
	long := make(forge.Bytes, 8192)
	long.Text(0, "HvLE")
	for at, v := range map[int64]uint32{4: 8192, 8: 1, 12: 0x10, 16: 8192, 20: 1, 40: 4096, 44: 4096} {
		long.U32(at, v)
	}
	for i := range 4096 {
		long[48+i] = byte(i)
	}
	hash1, hash2 = hashes(long)
	require.Equal(t, [2]uint64{0xcc875905f96b5048, 0x959e3f1b98b335f4}, [2]uint64{hash1, hash2})
	Reseal(long)
	forged := slices.Clone(long)
	hiveforge.SealEntry(forged)
	require.Equal(t, forged, long)
}

// recovered gives the hive bins in the state that Windows starts with.
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

// others lets other programs recover a hive, and gives its bins as they left them. The logs are in their order.
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

// What we make of a hive and its logs is what others make of them.
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
	for i := range 3 { // no entry counts that is torn, and none behind it
		log := hiveforge.Log(h, 9, a, elsewhere(b), c)
		for _, e := range recovery(t, dirty, log).chains[0].logs[0].entries[i:] {
			log[e.End()-1]++
			break
		}
		r := recovery(t, dirty, log)
		require.Equal(t, i, r.Applied)
		if i > 0 { // the other program wants one
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
