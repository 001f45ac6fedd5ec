//go:build linux && !386

package oddfs

// EachFails runs something without a fault, and then again for each of its operations, which fails in turn; Failed says
// which it was. An operation between the same others as before is made for the same reason, and fails once.
func (j *Journal) EachFails(run func(fails bool)) {
	defer j.Restart(0)
	j.Restart(0)
	run(false)
	all := append(append([]string{""}, j.Done()...), "")
	seen := map[[3]string]bool{}
	for i := 1; i < len(all)-1; i++ {
		if around := [3]string(all[i-1 : i+2]); !seen[around] {
			seen[around] = true
			j.Restart(i)
			run(true)
		}
	}
}

// Failed returns the operation that failed since the last start, empty when none did.
func (j *Journal) Failed() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.fail == 0 || len(j.done) < j.fail {
		return ""
	}
	return j.done[j.fail-1]
}
