// Package sandbox runs worker processes that read untrusted bytes, and limits their rights, and the rights of each
// command that decodes an image. It treats requests and answers as plain bytes.
//
// A worker is the same program, started once more (/proc/self/exe) with an empty environment, in its own process group,
// and communicates over its standard input and output. It restricts itself before the first request, and cannot undo
// that. The layers, and the danger that each protects against:
//
//   - Its own process: a panic, a fatal error of the runtime, an exit or a kill ends the worker and nothing else. The
//     parent names the cause (Death) and starts another one. A worker ends as soon as its parent is gone, since its
//     input ends.
//   - The parent's clock and SIGKILL: a request that hangs, in a slow read or in a wait.
//   - RLIMIT_CPU, renewed for each request: a request that computes forever.
//   - RLIMIT_DATA: memory. A worker that exceeds the limit dies, and the machine does not.
//   - Close-on-exec for all open files of the parent: files, pipes and sockets that the parent itself was started with.
//     The kernel does not check access to an open file again.
//   - RLIMIT_FSIZE 0, RLIMIT_CORE 0, RLIMIT_NOFILE: files that grow; customers' data in a core file; descriptors.
//   - No-new-privileges: programs with the set-user-ID bit grant no rights.
//   - Landlock: only the files and folders of Options.Roots can be read, nothing can be written or executed, and if the
//     kernel supports it there is no TCP, no signal and no abstract socket to the outside. The existence of a path
//     remains visible.
//   - Seccomp, in every thread: no sockets, programs, processes, namespaces, mounts, tracing, keys, BPF, io_uring, or
//     calls of another architecture. It also forbids writing, to protect files on kernels without Landlock.
//   - A bounded answer in a frame of a fixed form: allocations of the parent. Anything else on the pipe counts as a
//     crash of the worker.
//
// Layers that the kernel lacks are omitted with a note (Isolation), never silently. A compromised worker can still lie
// in the current answer and all later ones: the parent must check them.
package sandbox

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Level is a degree of isolation.
type Level string

// Levels. Each includes the one before.
const (
	None    Level = "none"    // no worker; the caller does the work itself
	Process Level = "process" // a worker with limits of its resources
	Sandbox Level = "sandbox" // a worker that can only read its roots
)

// Names of layers in Isolation. The name of Landlock is followed by the version of the kernel's interface:
// "landlock-7".
const (
	layerLimits    = "rlimits"
	layerPrivilege = "no-new-privs"
	layerLandlock  = "landlock"
	layerSeccomp   = "seccomp"
)

// Isolation is the level and the layers that a worker achieved.
type Isolation struct {
	Wanted   Level    `json:"wanted"`
	Achieved Level    `json:"achieved"` // Sandbox needs Landlock, seccomp and all limits
	Layers   []string `json:"layers"`   // in force, in order of activation
	Note     string   `json:"note,omitempty"`
}

// has reports whether a layer is in force.
func (i *Isolation) has(layer string) bool {
	return slices.ContainsFunc(i.Layers, func(l string) bool { return named(l, layer) })
}

// named reports whether an entry of Isolation.Layers names a layer, with or without a version.
func named(l, layer string) bool { return l == layer || strings.HasPrefix(l, layer+"-") }

// lacks adds a note on a layer, or a part of one, that is not in force, with the reason.
func (i *Isolation) lacks(what string, err error) {
	if i.Note != "" {
		i.Note += "; "
	}
	i.Note += what + ": " + line(err.Error())
}

// setLevel sets the level that follows from the layers.
func (i *Isolation) setLevel() {
	i.Achieved = Process
	if i.has(layerLandlock) && i.has(layerSeccomp) && i.has(layerLimits) {
		i.Achieved = Sandbox
	}
}

// Limits holds the limits of one worker and of each of its requests. A zero stands for the default.
type Limits struct {
	Data   int64         // most bytes of memory of the worker (RLIMIT_DATA); 256 MiB
	CPU    time.Duration // most CPU time for one request, in whole seconds; 10 s
	Wall   time.Duration // longest wait for the answer of one request; 30 s
	Files  int           // most open descriptors of the worker; 64
	Answer int64         // most bytes of one answer; 32 MiB
}

// orDefault replaces zeros with the limits for an inspection.
func (l Limits) orDefault() Limits {
	return Limits{
		Data:   cmp.Or(l.Data, 256<<20),
		CPU:    cmp.Or(l.CPU, 10*time.Second),
		Wall:   cmp.Or(l.Wall, 30*time.Second),
		Files:  cmp.Or(l.Files, 64),
		Answer: cmp.Or(l.Answer, 32<<20),
	}
}

// Access lists the files that remain accessible to a process after Confine. Missing paths are ignored.
type Access struct {
	Read  []string // folders with all below, or single files with the names in their folders
	Write []string // folders in which files can be read, created, changed, renamed and removed
	// Serves is set if the process accepts clients on a socket that is already open. It can then remove the files and
	// empty folders of Remove, and others of their kind in the same folders.
	Serves bool
	Remove []string
	// Workers is set if only workers read, which restrict themselves. Access to files and the right to run programs are
	// then unchanged: each thread would get a Landlock domain of its own, and could not inspect the workers of another
	// thread.
	Workers bool
}

// Options holds the options of a worker.
type Options struct {
	Args  []string // arguments that make the program call Serve
	Level Level    // Process or Sandbox
	// Roots lists the absolute paths that a Sandbox may read: a folder with all below it, or a single file, with the
	// names in its folder. Missing paths are ignored.
	Roots  []string
	Limits Limits
	Hello  []byte // for the worker's start function
}

// Handle answers one request. A panic kills the worker, since its state is no longer reliable.
type Handle func(request []byte) []byte

// Serve runs a worker over its standard input and output: it restricts the whole process as requested by the parent,
// calls start with the parent's hello, and answers requests until its input ends. Nothing else may use out. It ends the
// process if the input ends during a request, or if a request exceeds its CPU time.
func Serve(in *os.File, out io.Writer, start func(hello []byte) (Handle, error)) error {
	requests := bufio.NewReader(polled(in))
	first, err := readFrame(requests, 0, mostRequest)
	if err != nil {
		return fmt.Errorf("first request of a worker: %w", err)
	}
	var s setup
	if err := json.Unmarshal(first, &s); err != nil {
		return fmt.Errorf("first request of a worker: %w", err)
	}
	handle, err := begin(out, s, start)
	if err != nil {
		return err
	}
	return serve(requests, out, s.Limits, handle)
}

// begin restricts the worker and answers the first request.
func begin(out io.Writer, s setup, start func(hello []byte) (Handle, error)) (Handle, error) {
	r := ready{Isolation: restrict(s)}
	watchCPU()
	handle, failed := start(s.Hello)
	if failed != nil {
		r.Error = line(failed.Error())
	}
	answer, err := json.Marshal(r)
	if err == nil {
		err = writeFrame(out, 0, answer)
	}
	return handle, errors.Join(failed, err)
}

// serve answers requests. Another goroutine reads them, to notice the end of the input at once.
func serve(in io.Reader, out io.Writer, limits Limits, handle Handle) error {
	var waiting atomic.Int32
	requests := make(chan []byte, MostRequests)
	go listen(in, requests, &waiting)
	for number := uint32(1); ; number++ {
		request, more := <-requests
		if !more {
			return nil
		}
		if err := renewCPU(limits.CPU); err != nil {
			return err
		}
		answer := handle(request)
		if int64(len(answer)) > limits.Answer {
			panic(fmt.Sprintf("answer of %d bytes, at most %d", len(answer), limits.Answer))
		}
		waiting.Add(-1)
		if err := writeFrame(out, number, answer); err != nil {
			return err
		}
	}
}

// listen passes requests on, and counts the unanswered ones. The input ends when the parent is gone or has finished;
// listen then does not wait for the current request.
func listen(in io.Reader, requests chan<- []byte, waiting *atomic.Int32) {
	for number := uint32(1); ; number++ {
		request, err := readFrame(in, number, mostRequest)
		if err != nil {
			if waiting.Load() > 0 {
				os.Exit(1)
			}
			close(requests)
			return
		}
		waiting.Add(1)
		requests <- request
	}
}

// A frame is a header and its payload. Header, big endian: magic u32, number of the request u32, bytes of the payload
// u32.
const (
	frameMagic  = 0x1e74750a // RS "tu" LF: no text begins so
	frameHeader = 12
)

// MostRequests is the number of requests that a worker may have at a time: it reads one while it processes another, and
// never waits for its parent.
const MostRequests = 2

// mostRequest bounds the requests of the parent, which a worker trusts. The longest one is the list of its roots.
const mostRequest = 1 << 30

// errFrame marks bytes on a pipe that are not the expected frame.
var errFrame = errors.New("not a frame")

func writeFrame(w io.Writer, number uint32, payload []byte) error {
	if int64(len(payload)) > mostRequest {
		return fmt.Errorf("frame of %d bytes, at most %d", len(payload), mostRequest)
	}
	// A single write, since each write wakes the other side.
	frame := make([]byte, frameHeader, frameHeader+len(payload))
	binary.BigEndian.PutUint32(frame, frameMagic)
	binary.BigEndian.PutUint32(frame[4:], number)
	binary.BigEndian.PutUint32(frame[8:], uint32(len(payload))) //nolint:gosec // see above
	_, err := w.Write(append(frame, payload...))
	return err
}

// readFrame reads the frame of one request. The error is io.EOF at the end of the input, wraps errFrame for any other
// frame or one with more than most bytes, and is the error of the pipe otherwise. It allocates memory for received
// bytes, not for the announced size.
func readFrame(r io.Reader, number uint32, most int64) ([]byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	if magic := binary.BigEndian.Uint32(header[:]); magic != frameMagic {
		return nil, fmt.Errorf("%w: begins with 0x%08x, want 0x%08x", errFrame, magic, uint32(frameMagic))
	}
	if got := binary.BigEndian.Uint32(header[4:]); got != number {
		return nil, fmt.Errorf("%w: number %d, want %d", errFrame, got, number)
	}
	size := int64(binary.BigEndian.Uint32(header[8:]))
	if size > most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errFrame, size, most)
	}
	var payload bytes.Buffer
	_, err := io.CopyN(&payload, r, size)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return payload.Bytes(), err
}
