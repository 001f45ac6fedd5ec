package identify

import (
	"cmp"
	"sync"

	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/volume"
)

// Probers lists all probers. All of them run on every partition.
var Probers = append([]volume.Prober{ntfs.Prober, fat.Prober, ext.Prober}, volume.Probers...)

// Kinds yields all kinds: those of probers, those that have a magic number only, and those that no content shows. A
// kind of several probers comes for each.
func Kinds(yield func(*volume.Traits) bool) {
	for _, p := range Probers {
		for i := range p.Kinds {
			if !yield(&p.Kinds[i]) {
				return
			}
		}
	}
	for i := range magics {
		if !yield(&magics[i].Traits) {
			return
		}
	}
	_ = yield(&dynamicPartition) && yield(&unknown)
}

// Kinds that no content shows.
var (
	unknown = volume.Traits{Kind: volume.Unknown}
	// dynamicPartition is a partition of a dynamic disk of Windows, known by its type in the partition table.
	dynamicPartition = volume.Traits{Kind: volume.LDM, Title: "dynamic disk (LDM)", Data: "first volume"}
)

// Traits returns the traits of a kind, with the defaults filled in.
func Traits(k volume.Kind) volume.Traits {
	if t, ok := traits.Load(k); ok {
		return t.(volume.Traits)
	}
	for known := range Kinds {
		if known.Kind == k {
			t := filled(*known)
			traits.Store(k, t)
			return t
		}
	}
	return filled(volume.Traits{Kind: k})
}

// traits are those of kinds that were asked for, which is done for each partition and row.
var traits sync.Map

// filled returns traits with their defaults.
func filled(t volume.Traits) volume.Traits {
	t.Title = cmp.Or(t.Title, t.Slices, string(t.Kind))
	t.Unit = cmp.Or(t.Unit, "block")
	if t.Data == "" {
		t.Data = "first block of the data of " + string(t.Kind)
	}
	t.Realign = cmp.Or(t.Realign, "to align its data, make the volume again and copy them")
	return t
}

// Sliced reports whether a kind is a table inside of a partition, or one of another machine than a PC over the whole
// disk.
func Sliced(k volume.Kind) bool { return Traits(k).Slices != "" }
