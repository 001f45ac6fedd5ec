package results

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Limits of one row. trueup inspect shows the rest.
const (
	maxDisks    = 64 // of a package
	maxFindings = 16 // of a disk
	maxParts    = 64
	maxLenses   = 4
	maxNames    = 16 // of files, parents and moves
)

// list is a value for the script of the page: its items are texts that are not yet safe, numbers, bools and lists. The
// script takes them apart by their order.
type list []any

func listOf[T any](all []T, most int, item func(T) list) (out list) {
	for _, v := range all[:min(len(all), most)] {
		out = append(out, item(v))
	}
	return out
}

func pageRow(i *Image) list {
	folder, name := path.Split(safe(i.Path))
	parent, last := path.Split(strings.TrimSuffix(folder, "/"))
	stem := strings.TrimSuffix(name, path.Ext(name))
	p := orZero(i.Priority)
	return list{
		list{parent, last, folder[len(parent)+len(last):]},
		name,
		p.Rank, classesOf(i), i.Format, i.Subformat, i.Size, i.Stored, extraPercent(p.Cost), noteOf(i),
		splitAt(safe(i.command()), folder+stem), p.Reason, pageFindings("", i.Findings),
		listOf(i.Disks, maxDisks, pageDisk), max(0, len(i.Disks)-maxDisks),
		splitAt(safe(filesText(i)), stem), listed(i.Parents),
	}
}

// splitAt splits a text at each name, so that rows share the rest. A blank at the end keeps the last item from being
// empty.
func splitAt(text, name string) (out list) {
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text+" ", cmp.Or(name, "\n")) {
		out = append(out, part)
	}
	return out
}

// filesText lists the files of an image, unless its path names the only one.
func filesText(i *Image) string {
	if len(i.Files) == 1 && strings.HasSuffix(i.Path, i.Files[0].Name) {
		return ""
	}
	var out []string
	for _, f := range i.Files {
		out = append(out, f.Name+" ("+units.Format(f.Size)+")")
	}
	return listed(out)
}

// listed joins the first of several texts.
func listed(all []string) string {
	text := strings.Join(all[:min(len(all), maxNames)], ", ")
	if more := len(all) - maxNames; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}

// pageFindings returns the first of several findings, and the number of further ones. word replaces their severity.
func pageFindings(word align.Severity, all []align.Finding) list {
	return list{listOf(all, maxFindings, func(f align.Finding) list {
		return list{string(cmp.Or(word, f.Severity)), f.Subject, f.Text, f.Remedy}
	}), max(0, len(all)-maxFindings)}
}

// ofError returns an error as a finding.
func ofError(word align.Severity, e *report.Error) []align.Finding {
	if e == nil {
		return nil
	}
	return []align.Finding{{Severity: word, Subject: e.Code, Text: e.Message}}
}

func pageDisk(d Disk) list {
	parts := worst(d.Partitions, min(len(d.Partitions), maxParts))
	shown, rest := lenses(d, parts)
	refusals, moves := pageFindings("no plan", ofError("", d.Unplanned)), ""
	if d.Fix != nil && d.Unplanned == nil {
		refusals, moves = pageFindings("refused", d.Fix.Refusals), movesText(d.Fix, d.Sector())
	}
	return list{
		d.Member, diskFacts(d), guestText(d.Guest), d.Size, d.Sector(), listOf(parts, maxParts, pagePartition),
		len(d.Partitions) - len(parts), shown, refusals,
		pageFindings("", slices.Concat(ofError("error", d.Error), rest)),
		orZero(d.Advice).Text, moves,
	}
}

func pagePartition(p report.Partition) list {
	v := orZero(p.Volume)
	return list{
		p.Number, p.Active, verdictLooks[p.Verdict].class, p.StartLBA, units.Short(p.Alignment), p.Size,
		cmp.Or(p.TypeName, p.Type), v.Kind, p.Name, v.Label,
	}
}

func guestText(g *report.Guest) string {
	if g == nil {
		return ""
	}
	text, by := "Guest: "+string(g.State), ": "
	for _, s := range g.Signs[:min(len(g.Signs), maxNames)] {
		if s.State == g.State && s.State != boot.ShutDown {
			text, by = text+by+s.Text, "; "
			if s.OnMove != "" {
				text += " (" + s.OnMove + ")"
			}
		}
	}
	return text + "."
}

func movesText(f *Fix, sector int64) string {
	if len(f.Moves) == 0 {
		return ""
	}
	var moves []string
	for _, m := range f.Moves {
		moves = append(moves, fmt.Sprintf("partition %d from LBA %d to %d", m.Partition, m.From/sector, m.To/sector))
	}
	size := "keeps the size"
	if f.NewSize > f.OldSize {
		size = "is " + units.Format(f.Grows()) + " larger"
	}
	return fmt.Sprintf("An aligned copy moves %s, to multiples of %s; its disk %s.",
		listed(moves), f.Boundary.Text(), size)
}

func diskFacts(d Disk) string {
	var out []string
	switch scheme := d.Table.Scheme; {
	case scheme != "" && scheme != "none":
		out = append(out, strings.ToUpper(scheme))
	case d.Volume != nil:
		out = append(out, "no table: "+d.Volume.Kind+" on the whole disk")
	case d.Error == nil:
		out = append(out, "no partition table")
	}
	if n := len(d.Partitions); n > 0 {
		out = append(out, units.Counted(n, "partition"))
	}
	if d.Boot.Text != "" {
		out = append(out, "boot code: "+d.Boot.Text)
	}
	if d.Boundary != (align.Boundary{}) {
		out = append(out, "judged by "+d.Boundary.Text())
	}
	return strings.Join(out, " · ")
}

// lenses returns a magnified start of a partition for each distinct offset from the boundary, to be shown beside blocks
// of the storage: verdict, block size, text, and the offset as a share of the block. rest holds the other findings of
// the disk.
func lenses(d Disk, parts []report.Partition) (out list, rest []align.Finding) {
	rest = slices.Clone(d.Findings)
	seen := map[[2]int64]bool{}
	for _, p := range parts {
		unit := map[align.Verdict]align.Boundary{
			align.Misaligned: align.SmallestBoundary, align.BelowBoundary: d.Boundary,
		}[p.Verdict]
		if unit == (align.Boundary{}) || p.Start < 0 {
			continue
		}
		start, _ := startOf(p)
		past := unit.Past(start)
		way := [2]int64{unit.Bytes(), past}
		if seen[way] || len(out) == maxLenses {
			continue
		}
		seen[way] = true
		text := fmt.Sprintf("Partition %d starts %s past a multiple of %s.", p.Number, units.Format(past), unit.Text())
		subject := fmt.Sprintf("partition %d", p.Number)
		at := slices.IndexFunc(rest, func(f align.Finding) bool {
			return f.Subject == subject && (f.Code == "misaligned" || f.Code == "below-boundary")
		})
		if at >= 0 {
			text = fmt.Sprintf("Partition %d %s.", p.Number, rest[at].Text)
			rest = slices.Delete(rest, at, at+1)
		}
		out = append(out, list{verdictLooks[p.Verdict].class, unit.Text(), text, share(past, unit.Bytes())})
	}
	return out, rest
}

// rowData writes the rows as JSON for the script: a list without empty items at its end, an empty value as 0, and a
// text or list that was written before as a negative number, -1 for the first of listShared.
type rowData struct {
	images iter.Seq[*Image]
	seen   []uint64 // a bit for each sum of a value
	at     map[string]int
	shared []string
}

const (
	maxPlain  = 1000 // rows without the script
	maxShared = 1 << 18
	seenBits  = 24
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newRowData(images iter.Seq[*Image]) *rowData {
	return &rowData{images: images, seen: make([]uint64, 1<<seenBits/64), at: map[string]int{}}
}

// plain yields the rows that the page shows without its script.
func (d *rowData) plain(yield func(*Image) bool) {
	n := 0
	for i := range d.images {
		if n++; n > maxPlain || !yield(i) {
			return
		}
	}
}

// list yields the rows.
func (d *rowData) list(yield func(json.RawMessage) bool) {
	var out []byte
	for i := range d.images {
		if out = d.appendList(out[:0], pageRow(i)); !yield(out) {
			return
		}
	}
}

// listShared yields the values that the rows before it share.
func (d *rowData) listShared(yield func(json.RawMessage) bool) {
	for _, text := range d.shared {
		if !yield(json.RawMessage(text)) {
			return
		}
	}
}

func (d *rowData) appendList(out []byte, all list) []byte {
	out = append(out, '[')
	end := len(out)
	for _, v := range all {
		start := len(out)
		if out = d.append(out, v); string(out[start:]) != "0" {
			end = len(out)
		}
		out = append(out, ',')
	}
	return append(out[:end], ']')
}

func (d *rowData) append(out []byte, value any) []byte {
	start := len(out)
	switch v := value.(type) {
	case string:
		if v == "" {
			return append(out, '0')
		}
		out, _ = jsontext.AppendQuote(out, safe(v)) // safe returns valid UTF-8
	case list:
		if out = d.appendList(out, v); len(out) == start+len("[]") {
			return append(out[:start], '0')
		}
	case bool:
		if v {
			return append(out, '1')
		}
		return append(out, '0')
	case percent:
		return strconv.AppendFloat(out, float64(v), 'g', 6, 64)
	case int:
		return d.append(out, int64(v))
	case int64:
		if v >= 0 && v < 1<<53 { // exact in a script
			return strconv.AppendInt(out, v, 10)
		}
		return append(strconv.AppendInt(append(out, '"'), v, 10), '"')
	}
	return d.share(out, start)
}

// share replaces the value at the end of out by its number if it was written before.
func (d *rowData) share(out []byte, start int) []byte {
	value := out[start:]
	if len(value) < len("-12345") {
		return out
	}
	n, known := d.at[string(value)]
	if !known {
		sum := crc32.Checksum(value, castagnoli) >> (32 - seenBits)
		seen, bit := &d.seen[sum/64], uint64(1)<<(sum%64)
		if *seen&bit == 0 || len(d.shared) == maxShared {
			*seen |= bit
			return out
		}
		n = len(d.shared)
		d.shared = append(d.shared, string(value))
		d.at[d.shared[n]] = n
	}
	return strconv.AppendInt(out[:start], int64(-1-n), 10)
}
