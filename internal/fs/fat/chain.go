package fat

import (
	"fmt"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

func (f *fileSystem) allowed() string { return fmt.Sprintf("a cluster from 2 to %d", f.Clusters+1) }

// step is the cost of following one entry of the FAT besides the reads, in bytes of the budget.
const step = 32

// next returns the cluster behind one; end is true at the end of the chain.
func (f *fileSystem) next(cluster int64) (n int64, end bool, err error) {
	v, mask, err := f.value(f.table, cluster)
	if err != nil || v >= mask-7 {
		return 0, true, err
	}
	if n = int64(v); !f.has(n) {
		return 0, false, f.broken(cluster, n, f.allowed())
	}
	return n, false, nil
}

// value returns the entry of a cluster in the FAT at a place, and the bits that it can have.
func (f *fileSystem) value(table, cluster int64) (v, mask uint32, err error) {
	if err := f.meter.Budget.Spend(step); err != nil {
		return 0, 0, err
	}
	v, err = f.meter.Pages.U32(table + cluster*f.Bits/8)
	mask = 0x0fffffff // the upper bits of FAT32 are reserved
	switch f.Bits {
	case 12:
		v, mask = v>>(cluster%2*4), 0xfff
	case 16:
		mask = 0xffff
	}
	return v & mask, mask, err
}

// sameInAll requires a chain that was followed to its end to be the same in all FATs.
func (f *fileSystem) sameInAll(first int64) error {
	for c, end := first, false; !end; {
		used, _, err := f.value(f.table, c)
		if err != nil {
			return err
		}
		for i := range int64(f.FATs) {
			at := f.FAT.Off + i*f.FAT.Len
			switch other, _, err := f.value(at, c); {
			case err != nil:
				return err
			case other != used:
				field := fmt.Sprintf("entry of cluster %d in FAT %d", c, i+1)
				return ondisk.Field("fat", field, at+c*f.Bits/8, other, fmt.Sprintf("%d, as in the FAT in use", used))
			}
		}
		if c, end, err = f.next(c); err != nil {
			return err
		}
	}
	return nil
}

func (f *fileSystem) broken(cluster, got int64, want string) error {
	field := fmt.Sprintf("entry of cluster %d", cluster)
	return ondisk.Field("fat", field, f.table+cluster*f.Bits/8, got, want)
}

// chain follows a file from its first cluster to the end mark, which proves that no cluster comes twice. It has least
// to most clusters: a file may keep clusters behind its end.
func (f *fileSystem) chain(first, most, least int64) ([]guestfile.Run, error) {
	var runs []guestfile.Run
	err := f.follow(first, most, least, func(cluster int64) error {
		if runs = f.join(runs, cluster); len(runs) > guestfile.MaxRuns {
			return fmt.Errorf("fat chain from cluster %d: %w of %d runs", first, ondisk.ErrLimit, guestfile.MaxRuns)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return runs, nil
}

// follow visits the clusters of a chain. See chain.
func (f *fileSystem) follow(first, most, least int64, visit func(cluster int64) error) error {
	if !f.has(first) {
		return ondisk.Field("fat folder entry", "first cluster", 0x1a, first, f.allowed())
	}
	// Brent's algorithm: a chain that comes back to a cluster passes the saved one sooner or later.
	saved, power, steps := first, int64(1), int64(0)
	for c, n := first, int64(1); ; n++ {
		if n > most {
			return fmt.Errorf("fat chain from cluster %d: %w of %d clusters", first, ondisk.ErrLimit, most)
		}
		if err := visit(c); err != nil {
			return err
		}
		to, end, err := f.next(c)
		switch {
		case err != nil:
			return err
		case n == f.Clusters && !end:
			return f.broken(c, to, "the end of the chain, which has had all clusters")
		case end && n < least:
			return f.broken(c, n, fmt.Sprintf("%d clusters before the end of the chain from %d", least, first))
		case end:
			return nil
		case to == saved:
			return f.broken(c, to, "a cluster that the chain has not passed")
		}
		if steps++; steps == power {
			saved, power, steps = to, power*2, 0
		}
		c = to
	}
}

// join adds a cluster to the end of the runs.
func (f *fileSystem) join(runs []guestfile.Run, cluster int64) []guestfile.Run {
	at, off := f.at(cluster), int64(0)
	if k := len(runs) - 1; k >= 0 {
		if r := &runs[k]; r.At+r.Len == at {
			r.Len += f.Cluster
			return runs
		}
		off = runs[k].Off + runs[k].Len
	}
	return append(runs, guestfile.Run{Off: off, Len: f.Cluster, At: at})
}
