package disktest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGoroutinesFindsALeak(t *testing.T) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		<-end
	}()
	leaks := func() int {
		found := 0
		for _, stack := range goroutines() {
			if strings.Contains(stack, "TestGoroutinesFindsALeak.func1") {
				found++
			}
		}
		return found
	}
	require.Equal(t, 1, leaks())
	close(end)
	<-ended
	WaitFor(t, "the end of the goroutine", func() bool { return leaks() == 0 })
}
