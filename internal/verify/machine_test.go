package verify_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/verify"
)

// naming returns a layout that names these bytes of another disk.
func naming(offs ...int64) *layout.Layout {
	l := &layout.Layout{Boot: &boot.Result{Code: boot.Empty}}
	for _, off := range offs {
		encode := func(_ []byte, _ int64) ([]byte, error) { return nil, nil }
		l.Boot.Refs = append(l.Boot.Refs, boot.Ref{Kind: "drive letter D:", Disk: 7, Points: off, Encode: encode})
	}
	return l
}

// What a copy says about disks that are not at hand must make sense: a place has one new place, of its own, where a
// partition can have been moved to.
func TestPlacesOnDisksThatAreNotAtHand(t *testing.T) {
	for name, c := range map[string]struct {
		was, is []int64
		wrong   string
	}{
		"nothing moves":                 {[]int64{32256, 512}, []int64{32256, 512}, ""},
		"both move":                     {[]int64{32256, 512, 32256}, []int64{1 << 20, 4096, 1 << 20}, ""},
		"an old one where one is moved": {[]int64{32256, 1 << 20}, []int64{1 << 20, 1 << 20}, ""},
		"one place, two new ones": {
			[]int64{32256, 32256},
			[]int64{1 << 20, 2 << 20},
			"of the same place to byte 1048576",
		},
		"two places, one new one": {
			[]int64{32256, 64512},
			[]int64{1 << 20, 1 << 20},
			"no partition was moved there",
		},
		"a place where none can have moved":  {[]int64{32256}, []int64{32257}, "no partition was moved there"},
		"the place in front of all of them":  {[]int64{32256}, []int64{0}, "no partition was moved there"},
		"a reference more, which is no copy": {[]int64{32256}, []int64{32256, 1}, ""},
		"one less":                           {[]int64{32256, 512}, []int64{32256}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := verify.Elsewhere(naming(c.was...), naming(c.is...))
			if c.wrong != "" {
				require.ErrorIs(t, err, verify.ErrDifferent)
				require.ErrorContains(t, err, c.wrong)
				return
			}
			require.NoError(t, err)
			for i, off := range c.was[:min(len(c.was), len(c.is))] {
				to, ok := m.To(boot.Place{Disk: 7, Off: off})
				require.True(t, ok || len(c.was) != len(c.is))
				require.True(t, !ok || to == c.is[i])
			}
		})
	}
}

// Only what follows to the same other disk tells where a partition of it went.
func TestReferencesThatTellNothing(t *testing.T) {
	for name, change := range map[string]func(was, is *boot.Ref){
		"to this disk":       func(was, is *boot.Ref) { was.Disk, is.Disk = 0, 0 },
		"stays as found":     func(was, _ *boot.Ref) { was.Encode = nil },
		"to a different one": func(_, is *boot.Ref) { is.Disk = 8 },
	} {
		before, after := naming(32256), naming(32257)
		change(&before.Boot.Refs[0], &after.Boot.Refs[0])
		_, err := verify.Elsewhere(before, after)
		require.NoError(t, err, name)
	}
}
