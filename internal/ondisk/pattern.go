// This part of the package has regular expressions that are compiled when they are first used. Most runs of the
// program use few of them, and an expression with counts costs more than the rest of a start.

package ondisk

import (
	"regexp"
	"sync"
)

// LazyPattern returns a function that returns the expression. A wrong one panics there.
func LazyPattern(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
