//go:build linux || windows

package disktest

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

// A budget of processor time is meant for a quiet machine. A shared processor, a hypervisor that takes a part of it, or
// a slower one makes every program slower, so that long runs are compared with work of known size.
const (
	// yardstickUsual is what yardstick takes on the machine that the budgets are meant for.
	yardstickUsual = 100 * time.Millisecond
	// leastBudget is below every budget: what takes less is not worth a comparison.
	leastBudget = 250 * time.Millisecond
)

// Scaled returns what a processor time would be on a quiet machine, by a yardstick that is timed now.
func Scaled(spent time.Duration) time.Duration {
	if spent < leastBudget {
		return spent
	}
	return scaledBy(spent, yardstickTime())
}

func scaledBy(spent, yardstick time.Duration) time.Duration {
	return time.Duration(float64(spent) * float64(yardstickUsual) / float64(max(yardstick, yardstickUsual)))
}

func yardstickTime() time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	for range 4 {
		runtime.KeepAlive(yardstick())
	}
	return threadTime() - before
}

// yardstick is work as programs do it: it allocates, sorts and looks up.
func yardstick() map[uint64]int {
	const n = 1 << 18
	random := rand.New(rand.NewPCG(1, 2))
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = random.Uint64()
	}
	slices.Sort(keys)
	places := map[uint64]int{}
	for i, key := range keys[:n/4] {
		places[key] = i
	}
	return places
}
