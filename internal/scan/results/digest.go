package results

import (
	"crypto/sha256"
	"fmt"

	"github.com/trueup/trueup/internal/report"
)

// Digest returns a hash of the facts of a result that matter to users. Results with the same digest are the same:
// state, verdict, format, sizes, the class of the error, each file (name, size, inode, time of the last write), and
// each disk with the places, kinds, contents and verdicts of its partitions. Findings, plans, costs and texts are not
// in it, since a new version words them anew. A name counts as JSON has it, which replaces the bytes that are no UTF-8.
func Digest(i *Image) []byte {
	h := sha256.New()
	text := func(name string) string { return string([]rune(name)) }
	fmt.Fprintf(h, "%q %q %q %q %q %d %q %q\n", i.State, i.Verdict, i.Content, i.Format, i.Subformat, i.Size,
		codeOf(i.Error), i.Parents)
	for _, f := range i.Files {
		fmt.Fprintf(h, "file %q %d %d %d\n", text(f.Name), f.Size, f.Inode, f.Modified)
	}
	for _, d := range i.Disks {
		fmt.Fprintf(h, "disk %q %d %q %q %q %q\n", text(d.Member), d.Size, d.Table.Scheme, d.Verdict, d.Content,
			codeOf(d.Error))
		for _, p := range d.Partitions {
			volume, label := volumeOf(p)
			fmt.Fprintf(h, "%d %q %q %d %d %q %q %q\n", p.Number, p.Kind, p.Type, p.Start, p.Size, volume, text(label),
				p.Verdict)
		}
	}
	return h.Sum(nil)
}

func codeOf(e *report.Error) string {
	if e == nil {
		return ""
	}
	return e.Code
}

// volumeOf returns the kind and the label of the volume in a partition.
func volumeOf(p report.Partition) (kind, label string) {
	if p.Volume == nil {
		return "", ""
	}
	return p.Volume.Kind, p.Volume.Label
}
