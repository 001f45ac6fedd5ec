package results

import (
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// piecesCell returns the share of the data in fragmented files, of the volume that has most of it.
func piecesCell(i *Image) string {
	worst := -1.0
	for _, d := range i.Disks {
		for _, f := range d.Fragmentation {
			if f.Error == nil {
				worst = max(worst, f.Files.Share())
			}
		}
	}
	if worst < 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", worst)
}

// fragments returns what was counted in the volumes of a row; nil if nothing was.
func (r *csvRow) fragments() (all *report.Fragmentation) {
	if r.disk == nil {
		return nil
	}
	number := orZero(r.part).Number
	for _, f := range r.disk.Fragmentation {
		if f.Partition == number && f.Error == nil {
			all = all.With(f)
		}
	}
	return all
}

// fragmentFacts describes the volumes of an image whose files were counted.
func fragmentFacts(i *Image) (out []fact) {
	var texts []string
	for _, d := range i.Disks[:min(len(i.Disks), maxDisks)] {
		for _, f := range d.Fragmentation {
			where := "the disk"
			if f.Partition > 0 {
				where = fmt.Sprintf("partition %d", f.Partition)
			}
			if f.Name != "" {
				where = safe(f.Name) + " in " + where
			}
			if f.Error != nil {
				texts = append(texts, where+": not counted")
				continue
			}
			s := fmt.Sprintf("%s: %d of %s in pieces, with %.1f %% of the data", where, f.Files.Fragmented,
				units.Counted(f.Files.Number, "file"), f.Files.Share())
			if f.Free != nil {
				s += ", free space in " + units.Counted(f.Free.Pieces, "piece")
			}
			texts = append(texts, s)
		}
	}
	if len(texts) == 0 {
		return nil
	}
	if n := len(texts); n > maxFiles {
		texts = append(texts[:maxFiles], fmt.Sprintf("and %d more", n-maxFiles))
	}
	return []fact{{"Fragmentation", strings.Join(texts, "; ")}}
}
