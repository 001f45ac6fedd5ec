// Package scan inspects many images: it walks folders, finds which files are images and which are parts of one, has
// workers judge each image, and hands over rows. A bad image can only fail its own row. Task is the whole as a value.
package scan

import (
	"context"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// Job is one image to judge.
type Job struct {
	Path string `json:"-"` // absolute
	// Package is set for an OVA or OVF.
	Package bool `json:"package,omitempty"`
	// Beside lists the files around it; nil: the judge looks.
	Beside *image.Beside `json:"beside,omitempty"`
	// Doubt is set if the file has neither the format nor the name of an image: it is one only if a table or a volume
	// is found, or if it is an archive with an image.
	Doubt bool `json:"doubt,omitempty"`
	// Packed is set for a compressed file.
	Packed bool `json:"packed,omitempty"`
}

// Judge identifies and judges files. It runs in a worker, and may die of their bytes.
type Judge interface {
	// Identify identifies the file at an absolute path.
	Identify(path string) (image.Identity, error)
	// Image judges an image. It returns nil for a Doubt that was right.
	Image(j Job) *results.Image
	// Classify returns the code and the text of an error, as reports have them.
	Classify(err error) report.Error
}

// Options of a run.
type Options struct {
	Paths []string // files and folders, as the user wrote them
	// Wanted reports whether a file counts, by its path from the root that it was found under, and as it is shown; nil:
	// all do.
	Wanted func(rel, shown string) bool
	// Spare are files that are never read, such as the report, by device and inode.
	Spare func(device, inode uint64) bool
	// Flags are those of the command line that a copy of an image would need.
	Flags []string
	// Shard is the share of the images that have rows.
	Shard Shard
	// Exchange finds out for each row with a priority what is against trueup replace.
	Exchange bool

	Jobs int
	Pool *Pool
	// Settings are the build and the options that results depend on: rows have them, for a later scan that takes rows
	// over. Empty: rows are not for that.
	Settings string
	Started  time.Time // of the run

	earlier *earlier // nil: nothing is taken over

	// Found receives how many more images will have a row. After Walked, it receives corrections only. Row receives
	// each row, Unreadable each place that could not be read. They are called one at a time. An error of Row ends the
	// run. Corrections are files that turn out to be no images, and images that turn out not to be parts of another.
	Found      func(n int)
	Walked     func()
	Row        func(i *results.Image) error
	Unreadable func(u results.Unreadable)
}

// Result is the outcome of a run beside its rows.
type Result struct {
	Found   int  // images: each has a row when the run is complete
	Skipped int  // files that are no images
	Walked  bool // everything was looked at
	// Temporary counts the files that runs have not completed, or not removed yet.
	Temporary int
	Leftover  string // the path of the first of these, in the order of their paths
	Links     int    // symbolic links in folders, which are not followed
	Others    int    // images that are in other shards
}

// search is one walk at work.
type search struct {
	Options
	classify func(error) report.Error
	mu       sync.Mutex // of the functions of Options
	found    int
	pending  int // the walk, and folders whose images were not counted
	skipped  atomic.Int64
	// temporary counts files as Result does.
	temporary atomic.Int64
	leftover  string       // as in Result
	links     atomic.Int64 // symbolic links in folders
	systems   sync.Map     // UUIDs of file systems, by the numbers of their devices
	others    atomic.Int64 // images of other shards
	seen      inodes       // files that have a row, or a place in one: those with several names
	turns     *turns
}

// Scan inspects everything below the paths. If ctx ends it returns early, with the error of ctx.
func Scan(ctx context.Context, o Options) (Result, error) {
	r := &search{Options: o, classify: o.Pool.judge.Classify, pending: 1, turns: newTurns()}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, o.Jobs) + 2)
	err := r.walk(gctx, func(f *folder) {
		r.mu.Lock()
		r.pending++
		r.mu.Unlock()
		g.Go(func() error { return r.folder(gctx, f) })
	})
	if err == nil {
		r.announce()
	}
	if ferr := g.Wait(); ferr != nil {
		err = ferr // the walk ended for it
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return Result{
		Found: r.found, Skipped: int(r.skipped.Load()), Temporary: int(r.temporary.Load()), Walked: err == nil,
		Others: int(r.others.Load()), Links: int(r.links.Load()), Leftover: r.leftover,
	}, err
}

// left counts a file that a run has not completed.
func (r *search) left(path string) {
	r.temporary.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leftover == "" || path < r.leftover {
		r.leftover = path
	}
}

// more counts images that will have a row; n is below 0 for one that turned out to be none.
func (r *search) more(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found += n
	if n != 0 {
		r.Found(n)
	}
}

// announce ends the count of a folder, or the walk.
func (r *search) announce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending--; r.pending == 0 {
		r.Walked()
	}
}

// row hands a row over.
func (r *search) row(i *results.Image) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i.Change = r.earlier.compare(i)
	return r.Row(i)
}

// unreadable reports a place that could not be looked at, and goes on.
func (r *search) unreadable(shown string, err error) {
	r.report(results.Unreadable{Path: shown, Error: r.classify(err)})
}

func (r *search) report(u results.Unreadable) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Unreadable(u)
}

// rootsOf are the places that workers must be able to read, absolute and without links: folders with all that is in
// them, and the folder of a file that is named itself. A device is a place of its own: a folder of devices has those of
// others.
func rootsOf(paths []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, p := range paths {
		real, kind, err := resolve(p)
		if err != nil {
			continue // the walk reports it
		}
		if kind.IsRegular() {
			real = filepath.Dir(real)
		}
		if !seen[real] {
			seen[real] = true
			out = append(out, real)
		}
	}
	return out
}

// allowedOf are the folders in which parents may lie: those that the user named, with all below.
func allowedOf(paths []string) (out []string) {
	for _, p := range paths {
		if _, all, err := gate.Allow([]string{p}); err == nil {
			out = append(out, all...)
		}
	}
	return out
}

// besideKey returns a hash of the files around an image that its row depends on; empty if there are none. work are
// those that runs have left open.
func besideKey(b *image.Beside, work string) string {
	if b != nil && len(b.Locks)+len(b.Children) > 0 {
		work = fmt.Sprintf("%q %q%s", b.Locks, b.Children, work)
	}
	if work == "" {
		return ""
	}
	key := sumOf(work)
	return hex.EncodeToString(key[:])
}
