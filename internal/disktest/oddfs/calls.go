package oddfs

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// EachFails runs a function without a fault, and then again for each of its operations, which fails in turn; Failed
// returns that operation. An operation between the same neighbours has the same reason, and fails only once, except for
// opendir: different callers read the same list. Of these, disktest.Share fail.
func (j *Journal) EachFails(run func(fails bool)) { j.eachFails(false, run) }

// EachFailsByName is EachFails, but the same operation after an operation on another name counts as another one.
func (j *Journal) EachFailsByName(run func(fails bool)) { j.eachFails(true, run) }

func (j *Journal) eachFails(byName bool, run func(fails bool)) {
	defer j.End()
	j.End()
	run(false)
	all := append(append([]string{""}, j.Done()...), "")
	seen := map[string]bool{}
	named := ""
	for i := 1; i < len(all)-1; i++ {
		if byName && strings.Contains(all[i], " ") {
			named = all[i]
		}
		around := strings.Join([]string{named, all[i-1], all[i], all[i+1]}, ", ")
		if all[i] == "opendir" {
			around += fmt.Sprint(", ", i)
		}
		if !seen[around] && disktest.Share(around) {
			seen[around] = true
			j.End()
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

// Ignored records that the failure of the last start had no effect. Calls that the kernel makes at its own discretion,
// and closing a file, are not recorded.
func (j *Journal) Ignored() {
	kind, _, _ := strings.Cut(j.Failed(), " ")
	if slices.Contains([]string{"", "lookup", "getattr", "flush"}, kind) {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	nth := 0
	for _, op := range j.done[:j.fail] {
		if strings.HasPrefix(op, kind) {
			nth++
		}
	}
	if j.ignored == nil {
		j.ignored = map[string]map[int]bool{}
	}
	if j.ignored[kind] == nil {
		j.ignored[kind] = map[int]bool{}
	}
	j.ignored[kind][nth] = true
}

// RequireNoticed requires that no more calls of a kind fail without effect than a test expects.
func (j *Journal) RequireNoticed(t testing.TB, most map[string]int) {
	t.Helper()
	tooMany := maps.Clone(j.ignored)
	maps.DeleteFunc(tooMany, func(kind string, calls map[int]bool) bool { return len(calls) <= most[kind] })
	require.Empty(t, tooMany, "calls that fail without an effect")
}

// answersEnv makes a test the answering process.
const answersEnv = "TRUEUP_TEST_ANSWERS"

// failed is whether a part of a test has failed.
var failed atomic.Bool

// Asker starts a process that runs the same test, and returns a function that sends requests to it. The test begins
// with Answered. A process cannot wait for a file system that it serves itself, and starting one for each call takes
// longer than the call.
func Asker[Question, Answer any](t testing.TB) func(Question) Answer {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	cmd := exec.Command(os.Args[0], "-test.run=^"+name+"$")
	cmd.Env = append(os.Environ(), answersEnv+"=1", "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	questions, answers := json.NewEncoder(in), json.NewDecoder(out)
	rest := func() string {
		text, _ := io.ReadAll(io.MultiReader(answers.Buffered(), out)) // an error says less than what was read
		return string(text)
	}
	t.Cleanup(func() {
		if t.Failed() {
			failed.Store(true)
		}
		require.NoError(t, in.Close())
		said := rest()
		require.NoError(t, cmd.Wait(), said)
	})
	return func(q Question) (a Answer) {
		t.Helper()
		if failed.Load() && flag.Lookup("test.failfast").Value.String() == "true" {
			t.Skip("another part has failed")
		}
		err := questions.Encode(q)
		if err == nil {
			err = answers.Decode(&a)
		}
		if err != nil {
			require.NoError(t, err, rest())
		}
		return a
	}
}

// Answered reports whether the process was started by an Asker, and answers its requests until the Asker ends. Nothing
// else writes to its output. An answer must close the files that it opens, also after an error.
func Answered[Question, Answer any](t testing.TB, answer func(Question) Answer) bool {
	t.Helper()
	if os.Getenv(answersEnv) == "" {
		return false
	}
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var q Question
		err := questions.Decode(&q)
		if errors.Is(err, io.EOF) {
			return true
		}
		require.NoError(t, err)
		before := disktest.OpenFiles(t)
		a := answer(q)
		require.Equal(t, before, disktest.OpenFiles(t), "files that are open before and after %v: %v", q, a)
		require.NoError(t, answers.Encode(a))
	}
}
