package fleet_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
)

// A report covers the last complete scan of each folder, with all of its shards and no others.
func TestLastScans(t *testing.T) {
	t.Parallel()
	scan := func(path, again, shard string, state fleet.State, seq uint64) *fleet.Record {
		j := fleet.Job{Kind: fleet.Scan, Datastore: "ds1", Path: path}
		j.Again, j.Shard = again, shard
		return &fleet.Record{Job: j, State: state, Seq: seq}
	}
	for name, tc := range map[string]struct {
		scans []*fleet.Record
		want  []string
		old   []string // superseded
	}{
		"none": {nil, nil, nil},
		"fewer shards than before": {[]*fleet.Record{
			scan("a", "x", "1/2", fleet.Done, 1), scan("a", "x", "2/2", fleet.Done, 2),
			scan("a", "y", "", fleet.Done, 3),
		}, []string{"y "}, []string{"x 1/2", "x 2/2"}},
		"a text that sorts before": {[]*fleet.Record{
			scan("a", "x.1", "", fleet.Done, 1), scan("a", "x", "", fleet.Done, 2),
		}, []string{"x "}, []string{"x.1 "}},
		"a shard that failed": {[]*fleet.Record{
			scan("a", "x", "", fleet.Done, 1), scan("a", "y", "1/2", fleet.Done, 2),
			scan("a", "y", "2/2", fleet.Dead, 3),
		}, []string{"y 1/2", "y 2/2"}, []string{"x "}},
		"one that still runs": {[]*fleet.Record{
			scan("a", "x", "", fleet.Done, 1), scan("a", "y", "1/2", fleet.Done, 2),
			scan("a", "y", "2/2", fleet.Running, 3),
		}, []string{"x "}, nil},
		"only one that runs": {[]*fleet.Record{
			scan("a", "y", "1/2", fleet.Done, 2), scan("a", "y", "2/2", fleet.Running, 3),
		}, []string{"y 1/2", "y 2/2"}, nil},
		"nothing is done": {[]*fleet.Record{scan("a", "y", "", fleet.Queued, 0)}, nil, nil},
		"a shard again": {[]*fleet.Record{
			scan("a", "x", "1/2", fleet.Done, 1), scan("a", "x", "2/2", fleet.Done, 9),
			scan("a", "y", "", fleet.Done, 3),
		}, []string{"y "}, []string{"x 1/2", "x 2/2"}},
	} {
		var got, old []string
		for _, r := range fleet.LastScans(tc.scans) {
			got = append(got, r.Again+" "+r.Shard)
		}
		require.ElementsMatch(t, tc.want, got, name)
		for _, r := range fleet.Superseded(tc.scans) {
			old = append(old, r.Again+" "+r.Shard)
		}
		require.ElementsMatch(t, tc.old, old, name)
	}
}
