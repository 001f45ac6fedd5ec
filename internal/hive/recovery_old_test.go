package hive

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

func TestOldLogs(t *testing.T) {
	h := hot(t)
	a, b := with(t, h, "aaaa"), with(t, h, "bbbb")
	dirty := hiveforge.Dirty(h, 10)
	late := slices.Clone(a)
	late.U64(12, 5)
	hiveforge.Seal(late)
	own := seen{"0000", []int{0}}
	for name, tc := range map[string]struct {
		hive    forge.Bytes
		logs    []forge.Bytes
		want    []seen
		refused string
	}{
		"one": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 1, a)},
			want: []seen{own, {"aaaa", []int{1}}},
		},
		"of Windows 2000": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 2, a)},
			want: []seen{own, {"aaaa", []int{1}}},
		},
		"two": {hive: dirty, logs: []forge.Bytes{
			nil, hiveforge.OldLog(h, 1, a),
			hiveforge.OldLog(h, 1, b),
		}, want: []seen{own, {"bbbb", []int{3}}, own, {"aaaa", []int{2}}}},
		"of another time": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 1, late)}, want: []seen{own}, refused: "no log fits",
		},
		"one of two": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 1, late), hiveforge.OldLog(h, 1, b)},
			want: []seen{own, {"bbbb", []int{2}}},
		},
		"cut off": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 1, a)[:1024]}, want: []seen{own},
			refused: "no log fits",
		},
		"no DIRT": {
			hive: dirty, logs: []forge.Bytes{undirty(hiveforge.OldLog(h, 1, a))}, want: []seen{own},
			refused: "no log fits",
		},
		"half written hive": {
			hive: ruined(t, dirty), logs: []forge.Bytes{hiveforge.OldLog(ruined(t, dirty), 1, a)},
			want: []seen{{"aaaa", []int{1}}},
		},
		"sectors of 1 KiB": {
			hive: dirty, logs: []forge.Bytes{factor(hiveforge.OldLog(h, 1, a))}, want: []seen{own},
			refused: "sectors of 1024 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := recovery(t, tc.hive, tc.logs...)
			got, err := states(r)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			if tc.refused == "" {
				require.NoError(t, r.Certain())
			} else {
				require.ErrorContains(t, r.Certain(), tc.refused)
			}
		})
	}
}

func undirty(log forge.Bytes) forge.Bytes {
	log.Text(512, "dirt")
	return log
}

func factor(log forge.Bytes) forge.Bytes {
	log.U32(44, 2)
	hiveforge.Seal(log)
	return log
}

// ruined is a hive that was being written: the key of the value is half there.
func ruined(t testing.TB, f forge.Bytes) forge.Bytes {
	t.Helper()
	f = slices.Clone(f)
	at := bytes.Index(f, []byte("MountedDevices")) - 76
	require.Positive(t, at)
	clear(f[at : at+76])
	return f
}

// A state in which the guest starts must be readable.
func TestEndThatCannotBeRead(t *testing.T) {
	h := hot(t)
	a := with(t, h, "aaaa")
	r := recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, a, ruined(t, a)))
	_, err := states(r)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	got, err := states(recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, ruined(t, a), a)))
	require.NoError(t, err, "a state on the way")
	require.Equal(t, []seen{{"0000", []int{0}}, {"aaaa", []int{1}}}, got)
}

// Entries that change nothing of what was read cost no walk.
func TestStatesThatReadAlike(t *testing.T) {
	h := hiveforge.New(5, hiveforge.Key{
		Keys:   numbered(3),
		Values: []hiveforge.Value{{Name: "big", Type: 3, Data: make([]byte, 900_000)}},
	})
	var steps []forge.Bytes
	for i := range 51 {
		to := slices.Clone(h)
		to[500_000] = byte(i + 1)
		steps = append(steps, to)
	}
	visits := 0
	r := recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, steps...))
	require.NoError(t, r.Each(func(h *Hive) error {
		visits++
		root, err := h.root()
		require.NoError(t, err)
		return walkKeys(root)
	}))
	require.Equal(t, 51, r.Applied)
	require.Equal(t, 1, visits)
}
