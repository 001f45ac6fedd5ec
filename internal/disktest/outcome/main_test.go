package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// stream is the output of `go test -json` of a package with a test of each outcome, shortened.
const stream = `{"Action":"start","Package":"m/a"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"chatter\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestTool/x","Output":"    tool.go:50: the program sgdisk is missing\n"}
{"Action":"output","Package":"m/a","Test":"TestTool/x","Output":"    testscript.go:609: WORK=$WORK\n"}
{"Action":"output","Package":"m/a","Test":"TestTool/x","Output":"    x_test.go:1: the end of a test\n"}
{"Action":"output","Package":"m/a","Test":"TestTool/x","Output":"--- SKIP: TestTool/x (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestTool/x"}
{"Action":"output","Package":"m/a","Test":"TestGuest/dos","Output":"    tool.go:4: guestfish runs in make test-all\n"}
{"Action":"skip","Package":"m/a","Test":"TestGuest/dos"}
{"Action":"output","Package":"m/a","Test":"TestGuest/linux","Output":"    tool.go:4: guestfish runs in make test-all\n"}
{"Action":"skip","Package":"m/a","Test":"TestGuest/linux"}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:7: 2 is not 3\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad"}
{"Action":"output","Package":"m/a","Output":"FAIL\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.1s\n"}
{"Action":"fail","Package":"m/a","Elapsed":0.1}
{"Action":"build-output","ImportPath":"m/b","Output":"b.go:1:1: expected 'package'\n"}
{"Action":"fail","Package":"m/b","FailedBuild":"m/b"}
{"Action":"output","Package":"m/c","Output":"?   \tm/c\t[no test files]\n"}
{"Action":"skip","Package":"m/c"}
not of JSON
`

const printed = `    a_test.go:7: 2 is not 3
FAIL
FAIL	m/a	0.1s
b.go:1:1: expected 'package'
FAIL	m/b [build failed]
not of JSON
5 tests and parts of tests, 3 of them skipped
     2  guestfish runs in make test-all
     1  the program sgdisk is missing
To install what is missing (Debian, as root): make tools
`

func TestOutcome(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c := newCollector(&out)
	require.NoError(t, c.read(strings.NewReader(stream)))
	c.summarize()
	require.Equal(t, printed, out.String())
	require.Equal(t, "m/a ^(TestGuest)$\n", c.later())
}

func TestExitCodeOfTheCommand(t *testing.T) {
	t.Parallel()
	later := filepath.Join(t.TempDir(), "later")
	code, err := run(later, []string{disktest.Tool(t, "sh"), "-c", "exit 3"})
	require.NoError(t, err)
	require.Equal(t, 3, code)
	require.Empty(t, disktest.ReadFile(t, later))
	_, err = run("", []string{"/no/such/program"})
	require.Error(t, err)
}
