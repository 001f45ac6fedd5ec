package boot_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// refAt is a reference in these places.
func refAt(kind string, at ...disk.Range) boot.Ref {
	return boot.Ref{Kind: kind, At: at, Target: 1, Encode: func(raw []byte, _ int64) ([]byte, error) {
		return raw,
			nil
	}}
}

// A file of two names has its positions once, also where they lie in two pieces.
func TestAReferenceThatIsFoundTwice(t *testing.T) {
	pieces := []disk.Range{{Off: 510, Len: 2}, {Off: 800, Len: 6}}
	kept, clash := boot.Distinct([]boot.Ref{
		refAt("a", pieces...), refAt("b", disk.Range{Off: 600, Len: 8}),
		refAt("a", pieces...), refAt("a", pieces...),
	})
	require.Nil(t, clash)
	require.Len(t, kept, 2)
	for _, r := range kept {
		require.True(t, r.Follows())
	}
}

// What lies under another reference stays, wherever in it, and so does that one.
func TestReferencesOverEachOther(t *testing.T) {
	kept, clash := boot.Distinct([]boot.Ref{
		refAt("region", disk.Range{Off: 0, Len: 1000}), refAt("first", disk.Range{Off: 100, Len: 8}),
		refAt("second", disk.Range{Off: 992, Len: 8}), refAt("behind", disk.Range{Off: 1000, Len: 8}),
	})
	require.NotNil(t, clash)
	require.Equal(t, ondisk.Unbootable, clash.Effect)
	require.Len(t, kept, 4)
	for _, r := range kept {
		require.Equal(t, r.Kind == "behind", r.Follows(), r.Kind)
	}
}

// Boot sectors that share a long map are compared once for each pair, and not once for each piece.
func TestReferencesOfManyPieces(t *testing.T) {
	var pieces []disk.Range
	for i := range int64(30_000) {
		pieces = append(pieces, disk.Range{Off: 1024 * i, Len: 512})
	}
	refs := make([]boot.Ref, 20)
	for i := range refs {
		refs[i] = refAt("map", pieces...)
	}
	kept, clash := boot.Distinct(refs)
	require.Nil(t, clash)
	require.Len(t, kept, 1)
}
