package align

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume/identify"
)

// ioSizes lists the I/O sizes of an Impact, in bytes: from a log record to a backup stream. 72 KiB is the size of
// writes of some backup programs; larger blocks do not divide it.
var ioSizes = []int64{
	units.KiB, 4 * units.KiB, 8 * units.KiB, 16 * units.KiB, 32 * units.KiB, 64 * units.KiB, 72 * units.KiB,
	128 * units.KiB,
}

// Touched is the average cost of one I/O in storage blocks: the touched blocks, plus those a write reads first
// (Storage.Rewrites). Random and Sequential are reads. Caches, read-ahead and I/O merging, which hide the cost, and
// read-modify-write latency, which adds to it, are not modelled.
type Touched struct {
	Size            int64  `json:"size_bytes"` // of the I/O
	Random          Change `json:"random"`
	Sequential      Change `json:"sequential"`
	RandomWrite     Change `json:"random_write"`
	SequentialWrite Change `json:"sequential_write"`
}

// Change is a number of blocks: now, and if the partition started on a multiple of the storage block. Both are exact: a
// block is a power of two.
type Change struct {
	Now     float64 `json:"now"`
	Aligned float64 `json:"aligned"`
}

// More returns the ratio of Now to Aligned: 2 for twice as much.
func (c Change) More() float64 { return c.Now / c.Aligned }

// Worse reports whether the start of the partition has a cost.
func (c Change) Worse() bool { return c.Now > c.Aligned }

// Impact is the cost of the start of one partition on one storage.
type Impact struct {
	Storage Storage
	// Data is the byte of the disk at which the blocks of the volume begin, or of a file that the storage sees shifted.
	Data    int64
	Block   int64 // of the volume; bytes
	Assumed bool  // Block is a guess: the volume has no known block size
	inside  int64 // from the start of the partition to Data
	word    string
}

// ImpactOf computes the cost of the start of p.
func ImpactOf(p boot.Partition, s Storage) Impact {
	at, o := data(p)
	i := Impact{
		Storage: s, Data: at, inside: o.inside, Block: o.v.BlockSize, word: identify.Traits(o.v.Kind).Unit,
	}
	if i.Block <= 0 {
		i.Block, i.Assumed = Block, true
	}
	return i
}

// Table returns the blocks touched for all I/O sizes.
func (i Impact) Table() []Touched {
	var out []Touched
	for _, n := range ioSizes {
		out = append(out, i.Touched(n))
	}
	return out
}

// Touched returns the cost of an I/O of n bytes in storage blocks. Random I/O starts at any block of the volume with
// equal probability; I/O smaller than a block starts at any multiple of its size. Sequential I/O starts at the
// beginning of the data, and each I/O starts at the end of the previous one. A block that two of them touch counts
// twice, because nothing is cached.
func (i Impact) Touched(n int64) Touched {
	step := min(i.Block, n)
	random, sequential := series{i.Storage, n, step}, series{i.Storage, n, n}
	return Touched{
		n, i.change(random.touched), i.change(sequential.touched), i.change(random.written),
		i.change(sequential.written),
	}
}

// change calls count for the present start of the data and for the start after a move, and converts the results to
// blocks.
func (i Impact) change(count func(first int64) int64) Change {
	block := i.Storage.Block
	from := block - i.Storage.Offset // keeps it from falling below 0
	blocks := func(first int64) float64 { return float64(count(first+from)) / float64(block) }
	return Change{blocks(i.Data), blocks(i.inside)}
}

// series is a series of I/Os of size bytes that start at first, first+step, first+2*step, … Averages over one period
// are counted in bytes of blocks.
//
// Modulo block the starts are r, r+g, r+2g, … with g = gcd(step, block), all of them equally often. An I/O from r
// touches 1 + ⌊(r+size-1)/block⌋ blocks. The sum of these floors over the block/g starts is ⌊(r+size-1)/g⌋ by Hermite's
// identity.
type series struct {
	on         Storage
	size, step int64
}

// touched returns the blocks that are read or written at least in part.
func (s series) touched(first int64) int64 {
	g := gcd(s.step, s.on.Block)
	return (first%g+s.size-1)/g*g + s.on.Block
}

// filled returns the blocks that are written completely: ⌊(r+size)/block⌋ blocks end in or after the I/O, and one of
// them starts before it unless r is 0. An I/O smaller than a block fills none.
func (s series) filled(first int64) int64 {
	if s.size < s.on.Block {
		return 0
	}
	g := gcd(s.step, s.on.Block)
	filled := (first%g+s.size)/g*g - s.on.Block
	if first%g == 0 {
		filled += g
	}
	return filled
}

// written returns the blocks written, plus the blocks that a write reads first.
func (s series) written(first int64) int64 {
	touched := s.touched(first)
	if s.on.Rewrites {
		return 2*touched - s.filled(first)
	}
	return touched
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Text returns the cost of the start as a clause, or "" if there is none.
func (i Impact) Text() string {
	own, stream := i.Touched(i.Block).Random, i.Touched(i.Storage.Block).Sequential
	unit, block := i.unit(), units.Format(i.Storage.Block)
	switch {
	case own.Worse() && i.Block > i.Storage.Block:
		return fmt.Sprintf("each %s touches %s blocks of %s of the storage instead of %s", unit, number(own.Now),
			block, number(own.Aligned))
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
			number(own.Now), block, number(own.Aligned))
	case stream.Worse():
		return fmt.Sprintf("each of a stream of %s I/Os touches two %s blocks of the storage instead of one", block,
			block)
	}
	if loads, _ := i.Loads(); len(loads) > 0 {
		return fmt.Sprintf("%s: %s blocks of %s of the storage each on average instead of %s", loads[0].Name,
			number(loads[0].Now), block, number(loads[0].Aligned))
	}
	return ""
}

// streamSize is the I/O size of sequential bulk transfers, in bytes: copies by Windows to 2003, many backups.
const streamSize = 64 * units.KiB

// Load is one kind of I/O and its cost.
type Load struct {
	Name string // "random reads of 4 KiB"
	What string // "random reads"
	Change
}

// Loads returns the I/O to name if the start has a cost. Usual loads are random I/O of one volume block, and a stream.
// If they have no extra cost, Loads returns a stream of storage blocks, or the first load of the table with a cost.
func (i Impact) Loads() (loads []Load, usual bool) {
	own := i.Touched(i.Block)
	loads = slices.Concat(worse("random", own.Size, own.Random, own.RandomWrite), i.Touched(streamSize).stream())
	usual = len(loads) > 0
	if !usual {
		loads = i.Touched(i.Storage.Block).stream()
	}
	for _, t := range i.Table() {
		if len(loads) == 0 {
			loads = slices.Concat(worse("random", t.Size, t.Random, t.RandomWrite), t.stream())
		}
	}
	return loads, usual
}

func (t Touched) stream() []Load { return worse("sequential", t.Size, t.Sequential, t.SequentialWrite) }

// worse returns the reads and writes of one size that cost more than aligned ones.
func worse(order string, size int64, read, write Change) (out []Load) {
	load := func(what string, c Change) Load {
		what = order + " " + what
		return Load{fmt.Sprintf("%s of %s", what, units.Format(size)), what, c}
	}
	if read == write {
		out = []Load{load("I/O", read)}
	} else {
		out = []Load{load("reads", read), load("writes", write)}
	}
	return slices.DeleteFunc(out, func(l Load) bool { return !l.Worse() })
}

// unit returns the size and the name of a block of the volume, for messages.
func (i Impact) unit() string {
	if i.Assumed {
		return units.Format(i.Block) + " block (assumed size: the content states none)"
	}
	return units.Format(i.Block) + " " + i.word
}

func number(n float64) string { return strconv.FormatFloat(math.Round(1000*n)/1000, 'f', -1, 64) }
