// Package mutant switches one deletion on. It only exists in builds with mutants.
package mutant

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"sync"
)

var (
	on, _   = strconv.Atoi(os.Getenv("TRUEUP_MUTANT"))
	trace   = open(os.Getenv("TRUEUP_MUTANT_TRACE"))
	reached sync.Map
)

func open(name string) *os.File {
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	return f
}

// is reports whether a mutant is switched on, at a point where it makes a difference.
func is(n int) bool {
	if trace != nil {
		if _, known := reached.LoadOrStore(n, true); !known {
			fmt.Fprintf(trace, "%d\n", n)
		}
	}
	return n == on
}

// Never returns false in place of a condition.
func Never(n int, c bool) bool { return c && !is(n) }

// Always returns true in place of a condition.
func Always(n int, c bool) bool { return c || is(n) }

// Without returns old, the list before an append, if mutant n is on. Otherwise it returns with.
func Without[S any](n int, old, with S) S {
	if is(n) {
		return old
	}
	return with
}

// Skip returns a function without effect and with zero results. A result that is a function has no effect either.
func Skip[F any](n int, f F) F {
	if !is(n) {
		return f
	}
	return nothing(reflect.TypeOf(f)).Interface().(F)
}

func nothing(t reflect.Type) reflect.Value {
	return reflect.MakeFunc(t, func([]reflect.Value) []reflect.Value {
		out := make([]reflect.Value, t.NumOut())
		for i := range out {
			out[i] = reflect.Zero(t.Out(i))
			if t.Out(i).Kind() == reflect.Func {
				out[i] = nothing(t.Out(i))
			}
		}
		return out
	})
}
