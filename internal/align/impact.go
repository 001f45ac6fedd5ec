package align

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume/identify"
)

// ioSizes lists the I/O of an Impact, in bytes: from a log record to a backup stream. 72 KiB is the size that some
// backup programs write; it is no multiple of larger blocks.
var ioSizes = []int64{
	units.KiB, 4 * units.KiB, 8 * units.KiB, 16 * units.KiB, 32 * units.KiB, 64 * units.KiB, 72 * units.KiB,
	128 * units.KiB,
}

// Touched is how many blocks of the storage one I/O touches on average. The numbers are exact.
type Touched struct {
	Size       int64 // of the I/O; bytes
	Random     Change
	Sequential Change
}

// Change is a number of blocks now, and when the partition starts on a block of the storage. Both are counted in bytes,
// so that no fraction of a block is lost.
type Change struct{ now, aligned, block int64 }

// Now returns the number of blocks today.
func (c Change) Now() *big.Rat { return big.NewRat(c.now, c.block) }

// Aligned returns the number of blocks when the partition is aligned.
func (c Change) Aligned() *big.Rat { return big.NewRat(c.aligned, c.block) }

// More returns how much larger Now is than Aligned: 2 for twice as much.
func (c Change) More() float64 { return float64(c.now) / float64(c.aligned) }

// Worse reports whether the start of the partition costs anything.
func (c Change) Worse() bool { return c.now > c.aligned }

// Impact is the cost of the start of one partition on one storage.
type Impact struct {
	Partition int
	Storage   Storage
	// Data is the byte of the disk from which the blocks of the volume are counted.
	Data    int64
	Block   int64 // of the volume; bytes
	Assumed bool  // the volume has no block size, or none that is known
	inside  int64 // from the start of the partition to Data
	word    string
}

// ImpactOf computes what the start of p costs.
func ImpactOf(p boot.Partition, s Storage) Impact {
	v := p.Volume
	i := Impact{
		Partition: p.Number, Storage: s, Block: v.BlockSize, inside: v.DataStart,
		word: identify.Traits(v.Kind).Unit,
	}
	if i.Block <= 0 {
		i.Block, i.Assumed = Block, true
	}
	if i.inside < 0 || i.inside > p.Len {
		i.inside = 0
	}
	i.Data = p.Off + i.inside
	if at, name := Start(p, s.Block); name != "" {
		i.Data, i.inside = at, 0
	}
	return i
}

// Table returns the blocks touched for all I/O sizes.
func (i Impact) Table() []Touched {
	var out []Touched
	for _, n := range ioSizes {
		out = append(out, i.Of(n))
	}
	return out
}

// Of returns the blocks that an I/O of n bytes touches. Random: it starts at any block of the volume, each as likely as
// the others, and one that is smaller than a block at any multiple of its own size. Sequential: the first starts where
// the data begin, and each one where the last ended; what two of them touch counts twice, since nothing is cached in
// between.
func (i Impact) Of(n int64) Touched {
	step := min(i.Block, n)
	return Touched{n, i.change(n, step), i.change(n, n)}
}

func (i Impact) change(n, step int64) Change {
	block := i.Storage.Block
	return Change{touched(i.Data, n, step, block), touched(i.inside, n, step, block), block}
}

// touched returns the average over one period of I/Os of n bytes that start at first, first+step, first+2*step, …, in
// bytes of the blocks.
//
// Modulo block the starts are r, r+g, r+2g, … with g = gcd(step, block), all of them equally often, and an I/O from r
// touches 1 + ⌊(r+n-1)/block⌋ blocks. The sum of these floors over the block/g starts is ⌊(r+n-1)/g⌋ by Hermite's
// identity.
func touched(first, n, step, block int64) int64 {
	g := gcd(step, block)
	return (first%g+n-1)/g*g + block
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Text describes what the start costs in one part of a sentence, "" if it costs nothing.
func (i Impact) Text() string {
	own, stream := i.Of(i.Block).Random, i.Of(i.Storage.Block).Sequential
	unit, block := i.unit(), units.Format(i.Storage.Block)
	switch {
	case own.Worse() && i.Block > i.Storage.Block:
		return fmt.Sprintf("each %s touches %s blocks of %s of the storage instead of %s", unit, number(own.Now()), block,
			number(own.Aligned()))
	case own.Worse() && i.Block == i.Storage.Block:
		return fmt.Sprintf("each %s touches two %s blocks of the storage instead of one", unit, block)
	case own.Worse() && i.Storage.Block%i.Block == 0:
		text := fmt.Sprintf("one %s in %d lies across two %s blocks of the storage instead of in one", unit,
			i.Storage.Block/i.Block, block)
		if stream.Worse() {
			text += fmt.Sprintf(", and each of a stream of %s I/Os touches two", block)
		}
		return text
	case own.Worse():
		return fmt.Sprintf("I/O of one %s touches %s blocks of %s of the storage on average instead of %s", unit,
			number(own.Now()), block, number(own.Aligned()))
	case stream.Worse():
		return fmt.Sprintf("each of a stream of %s I/Os touches two %s blocks of the storage instead of one", block, block)
	}
	if what, c, ok := i.Costly(); ok {
		return fmt.Sprintf("%s touches %s blocks of %s of the storage on average instead of %s", what, number(c.Now()), block,
			number(c.Aligned()))
	}
	return ""
}

// Costly returns the I/O to name if the start costs something: of the volume's own blocks, of those of the storage, or
// else the first of the table.
func (i Impact) Costly() (what string, c Change, ok bool) {
	random := func(n int64) (string, Change) { return "random I/O of " + units.Format(n), i.Of(n).Random }
	sequential := func(n int64) (string, Change) { return "sequential I/O of " + units.Format(n), i.Of(n).Sequential }
	if what, c = random(i.Block); c.Worse() {
		return what, c, true
	}
	if what, c = sequential(i.Storage.Block); c.Worse() {
		return what, c, true
	}
	for _, n := range ioSizes {
		for _, of := range []func(int64) (string, Change){random, sequential} {
			if what, c = of(n); c.Worse() {
				return what, c, true
			}
		}
	}
	return "", c, false
}

// unit returns a block of the volume in words.
func (i Impact) unit() string {
	if i.Assumed {
		return units.Format(i.Block) + " block (a size that is assumed: the content names none)"
	}
	return units.Format(i.Block) + " " + i.word
}

func number(r *big.Rat) string {
	return strings.TrimRight(strings.TrimRight(r.FloatString(3), "0"), ".")
}
