package scan

import "sync"

// turns lets folders that are looked at at once do something in the order of the walk. Each of them must finish.
type turns struct {
	mu    sync.Mutex
	cond  *sync.Cond
	next  int // the first one that has not finished
	ready map[int]bool
}

func newTurns() *turns {
	t := &turns{ready: map[int]bool{}}
	t.cond = sync.NewCond(&t.mu)
	return t
}

// wait returns when all turns before n have finished.
func (t *turns) wait(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.next < n {
		t.cond.Wait()
	}
}

// finish ends a turn, once or again.
func (t *turns) finish(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n < t.next {
		return
	}
	t.ready[n] = true
	for t.ready[t.next] {
		delete(t.ready, t.next)
		t.next++
	}
	t.cond.Broadcast()
}
