package sandbox_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/scan/sandbox"
)

// outcome is the report of a process that confined itself.
type outcome struct {
	Isolation sandbox.Isolation
	Answers   map[string]string
	Took      time.Duration // of Confine
}

// confine is the main function of a process that confines itself. A request with the prefix "worker " is for a worker
// of the process.
func confine(access string, requests []string) error {
	var a sandbox.Access
	if err := json.Unmarshal([]byte(access), &a); err != nil {
		return err
	}
	if how := os.Getenv("KERNEL"); how != "" {
		runtime.LockOSThread()
		if err := age(how); err != nil {
			return err
		}
	}
	before := time.Now()
	iso := sandbox.Confine(a)
	o := outcome{Isolation: iso, Answers: map[string]string{}, Took: time.Since(before)}
	handle, err := begin(nil)
	if err != nil {
		return err
	}
	for _, request := range requests {
		if rest, ok := strings.CutPrefix(request, "worker "); ok {
			o.Answers[request], err = ofWorker(rest)
		} else {
			o.Answers[request] = string(handle([]byte(request)))
		}
		if err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(o)
}

// ofWorker returns the answer of a new worker, which may read nothing, after its isolation.
func ofWorker(request string) (string, error) {
	w, err := sandbox.Start(context.Background(), sandbox.Options{Args: []string{asWorker}, Level: sandbox.Sandbox})
	if err != nil {
		return "", err
	}
	answer, err := w.Call(context.Background(), []byte(request))
	if err != nil {
		return "", err
	}
	return string(w.Isolation().Achieved) + ": " + string(answer), w.Close()
}

// inConfinement runs requests in a process with the given access, on a kernel that lacks a feature.
func inConfinement(t testing.TB, kernel string, a sandbox.Access, requests ...string) outcome {
	t.Helper()
	access, err := json.Marshal(a)
	require.NoError(t, err)
	cmd := exec.Command("/proc/self/exe", append([]string{confined, string(access)}, requests...)...)
	cmd.Env = append(os.Environ(), "KERNEL="+kernel)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	require.NoError(t, cmd.Run(), said.String())
	var o outcome
	require.NoError(t, json.Unmarshal(out.Bytes(), &o), out.String())
	if kernel == "" && o.Isolation.Achieved != sandbox.Sandbox {
		t.Skipf("this kernel has not all layers: %s", o.Isolation.Note)
	}
	return o
}

// answers requires the end of each answer.
func (o outcome) answers(t *testing.T, want map[string]string) {
	t.Helper()
	for request, end := range want {
		require.True(t, strings.HasSuffix(o.Answers[request], end), "%s: %s, want %s", request, o.Answers[request], end)
	}
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	return out
}

func TestConfineToFiles(t *testing.T) {
	dir := t.TempDir()
	image, beside := write(t, dir, "in", "a.vmdk"), write(t, dir, "in", "sub", "b.vmdk")
	other := write(t, dir, "other", "c.vmdk")
	single, neighbour := write(t, dir, "single", "d.vmdk"), write(t, dir, "single", "e.vmdk")
	old := write(t, dir, "out", "old")
	want := map[string]string{
		"read " + image:                              "done",
		"read " + beside:                             "done",
		"list " + filepath.Dir(image):                "done",
		"append " + image:                            permission,
		"remove " + image:                            permission,
		"truncate " + image:                          permission,
		"read " + other:                              permission,
		"read " + single:                             "done",
		"read " + neighbour:                          permission,
		"list " + filepath.Dir(single):               "done",
		"create " + filepath.Join(dir, "out", "new"): "done",
		"append " + old:                              "done",
		"create " + filepath.Join(dir, "new"):        permission,
		"read /etc/passwd":                           permission,
		"append /dev/null":                           permission,
		"exec /bin/true":                             operation,
		"execself /bin/true":                         operation,
		"socket":                                     operation,
		"unixsocket":                                 operation,
		"mount":                                      operation,
		"ptrace":                                     operation,
		"fork":                                       operation,
		"kill " + strconv.Itoa(os.Getpid()):          operation,
		"clone3":                                     "function not implemented",
	}
	o := inConfinement(t, "", sandbox.Access{
		Read:  []string{filepath.Dir(image), single, filepath.Join(dir, "gone")},
		Write: []string{filepath.Join(dir, "out"), filepath.Join(dir, "gone")},
	}, keys(want)...)
	o.answers(t, want)
	require.Equal(t, sandbox.Sandbox, o.Isolation.Wanted)
	require.Regexp(t, `^\[no-new-privs landlock-\d+ seccomp\]$`, o.Isolation.Layers)
	require.Empty(t, o.Isolation.Note)
}

// A process that starts workers can read, write and run its files only; its workers have the whole sandbox.
func TestConfineAParentOfWorkers(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "a.vmdk")
	want := map[string]string{
		"read " + file:        "done",
		"read /etc/passwd":    "done",
		"append " + file:      "done",
		"socket":              operation,
		"unixsocket":          operation,
		"mount":               operation,
		"exec /bin/true":      "done",
		"worker echo x":       "sandbox: x",
		"worker read " + file: permission,
		"worker burn":         "sandbox: burnt",
	}
	inConfinement(t, "", sandbox.Access{Workers: true}, keys(want)...).answers(t, want)
}

// A missing kernel feature is reported, and the rest applies.
func TestConfineOnOldKernels(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "a.vmdk")
	newest := inConfinement(t, "", sandbox.Access{}).Isolation.Layers[1]
	for kernel, c := range map[string]struct {
		layers []string
		note   string
		read   string
		socket string
	}{
		noLandlock: {[]string{"no-new-privs", "seccomp"}, "landlock: the kernel has none", "done", operation},
		landlockOff: {
			[]string{"no-new-privs", "seccomp"},
			"landlock: the kernel has it switched off", "done",
			operation,
		},
		noSeccomp: {[]string{"no-new-privs", newest}, "seccomp: the kernel has none", permission, "done"},
		nothing: {
			[]string{"no-new-privs"},
			"landlock: the kernel has none; seccomp: the kernel has none", "done",
			"done",
		},
	} {
		t.Run(kernel, func(t *testing.T) {
			o := inConfinement(t, kernel, sandbox.Access{}, "read "+file, "socket")
			require.Equal(t, c.layers, o.Isolation.Layers)
			require.Equal(t, sandbox.None, o.Isolation.Achieved)
			require.True(t, strings.HasPrefix(o.Isolation.Note, c.note), o.Isolation.Note)
			o.answers(t, map[string]string{"read " + file: c.read, "socket": c.socket})
		})
	}
	for _, version := range []string{"1", "2", "3", "4"} {
		o := inConfinement(t, oldLandlock+version, sandbox.Access{Write: []string{dir}}, "append "+file,
			"read /etc/passwd")
		require.Equal(t, sandbox.Sandbox, o.Isolation.Achieved, o.Isolation.Note)
		o.answers(t, map[string]string{"append " + file: "done", "read /etc/passwd": permission})
	}
}
