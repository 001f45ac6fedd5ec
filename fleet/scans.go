package fleet

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// generation are the scans of one folder that were submitted at once: its shards.
type generation struct {
	scans []*Record
	waits bool   // for a scan
	done  bool   // a scan of it
	first uint64 // message of its scans that are done: messages have the order in which they were queued
}

// generations returns those of each folder, by what tells them apart.
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

// lastOf returns the last of the generations that has come to an end, or else the last that has results; nil for none.
func lastOf(folder map[string]*generation) (last *generation) {
	for _, g := range folder {
		if g.done && (last == nil || last.waits && !g.waits || last.waits == g.waits && last.first < g.first) {
			last = g
		}
	}
	return last
}

// LastScans returns the scans of the last generation of each folder that has come to an end, or else of the last that
// has results.
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

// Superseded returns the scans that have ended and were followed by all of those that LastScans returns.
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
