package scan

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// TestShardsAreAllOfAScan shares out images of several files, such that a broken one names, links, and paths that lead
// nowhere.
func TestShardsAreAllOfAScan(t *testing.T) {
	tr := newTrial(t)
	files := map[string]string{
		"two/a-broken": "disk\nhas flat\nhas disk2", "two/b-broken": "pack\nhas disk2\nhas disk3", "two/flat": "bare",
		"two/disk2": "disk\nhas e2", "two/e2": "extent", "two/disk3": "disk", "two/lost": "extent",
		"ring/x": "pack\nhas y", "ring/y": "pack\nhas x",
	}
	for n := range 40 {
		files[fmt.Sprintf("many/%d.vmdk", n)] = fmt.Sprintf("disk\nhas %d-s1\nhas %d-s2\nof %d.vmdk", n, n, n/2)
		files[fmt.Sprintf("many/%d-s1", n)], files[fmt.Sprintf("many/%d-s2", n)] = "extent", "extent"
	}
	tr.put(files)
	tr.link("many/3.vmdk", "away/linked")
	tr.link("many/5.vmdk", "more/linked")
	paths := []string{tr.dir, tr.path("no1"), tr.path("no2"), tr.path("no3")}
	tr.scanned(paths...)
	whole := tr.shown()
	require.Greater(t, len(whole), 45)
	for _, n := range []int{1, 2, 3, 16} {
		var union []string
		for k := range n {
			tr.shard = Shard{k + 1, n}
			res := tr.scanned(paths...)
			require.Equal(t, n > 1, res.Others > 0, "shard %s", tr.shard)
			mine := tr.shown()
			union = append(union, mine...)
			require.Equal(t, res.Others, tr.scanned(paths...).Others)
			require.Equal(t, mine, tr.shown(), "shard %s has the same images each time", tr.shard)
		}
		slices.Sort(union)
		require.Equal(t, whole, union, "%d shards", n)
	}
}

func TestShardsAreParsed(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"1/1", "3/16", "65536/65536"} {
		got, err := ParseShard(s)
		require.NoError(t, err)
		require.Equal(t, s, got.String())
	}
	for _, s := range []string{
		"0/4", "5/4", "4", "/", "1/", "/4", "-1/4", "1/4/4", "1/65537", "1/4294967297", "a/b", " 1/4", "1.5/4", "1/0",
	} {
		_, err := ParseShard(s)
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, "must be K/N, such as 3/16")
	}
}

// The share of an image is part of the contract. printf %s /library/xp.vmdk | sha256sum begins with 041884714170afdc,
// which is 12 modulo 16.
func TestShareOfAPath(t *testing.T) {
	t.Parallel()
	for k := range 16 {
		require.Equal(t, k == 12, Shard{k + 1, 16}.Has("/library/xp.vmdk"))
	}
	require.True(t, Shard{}.Has("/library/xp.vmdk"))
}
