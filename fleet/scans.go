package fleet

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// generation is a set of scans of one folder that were submitted together: its shards.
type generation struct {
	scans []*Record
	waits bool   // a scan has not ended
	done  bool   // a scan is done
	first uint64 // lowest sequence number of finished scans; messages are numbered in the order of submission
}

// generations groups scans by folder and submission.
func generations(scans []*Record) map[string]map[string]*generation {
	folders := map[string]map[string]*generation{}
	for _, r := range scans {
		folder := r.Datastore + "/" + r.Path
		if folders[folder] == nil {
			folders[folder] = map[string]*generation{}
		}
		g := folders[folder][r.Again]
		if g == nil {
			g = &generation{first: math.MaxUint64}
			folders[folder][r.Again] = g
		}
		g.scans = append(g.scans, r)
		g.waits = g.waits || !r.State.Ended()
		if r.State == Done {
			g.done, g.first = true, min(g.first, r.Seq)
		}
	}
	return folders
}

// lastOf returns the last complete generation, otherwise the last one with results, or nil.
func lastOf(folder map[string]*generation) (last *generation) {
	for _, g := range folder {
		if g.done && (last == nil || last.waits && !g.waits || last.waits == g.waits && last.first < g.first) {
			last = g
		}
	}
	return last
}

// LastScans returns the scans of the last complete generation of each folder, otherwise of the last one with results.
func LastScans(scans []*Record) (out []*Record) {
	folders := generations(scans)
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if last := lastOf(folders[folder]); last != nil {
			slices.SortFunc(last.scans, func(a, b *Record) int { return cmp.Compare(a.Key(), b.Key()) })
			out = append(out, last.scans...)
		}
	}
	return out
}

// Superseded returns ended scans that are older than all scans of LastScans in their folder.
func Superseded(scans []*Record) (out []*Record) {
	for _, folder := range generations(scans) {
		last := lastOf(folder)
		for _, g := range folder {
			if last != nil && !last.waits && !g.waits && g.first < last.first {
				out = append(out, g.scans...)
			}
		}
	}
	return out
}
