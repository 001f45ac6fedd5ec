package results

import (
	"crypto/sha256"
	"fmt"
)

// Digest returns a hash of the facts of a result that matter to users. Results with the same digest are the same:
// state, verdict, format, sizes, the class of the error, each file (name, size, inode, time of the last write), and
// each disk with the places, kinds, contents and verdicts of its partitions. Findings, plans, costs and texts are not
// in it, since a new version words them anew. A name counts as JSON has it, which replaces the bytes that are no UTF-8.
func Digest(i *Image) []byte {
	h := sha256.New()
	text := func(name string) string { return string([]rune(name)) }
	fmt.Fprintf(h, "%q %q %q %q %q %d %q %q\n", i.State, i.Verdict, i.Content, i.Format, i.Subformat, i.Size,
		orZero(i.Error).Code, i.Parents)
	for _, f := range i.Files {
		fmt.Fprintf(h, "file %q %d %d %d\n", text(f.Name), f.Size, f.Inode, f.Modified)
	}
	for _, d := range i.Disks {
		fmt.Fprintf(h, "disk %q %d %q %q %q %q\n", text(d.Member), d.Size, d.Table.Scheme, d.Verdict, d.Content,
			orZero(d.Error).Code)
		for _, p := range d.Partitions {
			v := orZero(p.Volume)
			fmt.Fprintf(h, "%d %q %q %d %d %q %q %q\n", p.Number, p.Kind, p.Type, p.Start, p.Size, v.Kind,
				text(v.Label), p.Verdict)
		}
	}
	return h.Sum(nil)
}
