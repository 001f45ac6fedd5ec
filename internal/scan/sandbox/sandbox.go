// Package sandbox runs worker processes that read untrusted bytes, and limits what such a worker may do. Requests and
// answers are bytes to it.
//
// A worker is the same program, started once more (/proc/self/exe) with an empty environment, in its own process group,
// talking over its standard input and output. It restricts itself before the first request, and cannot undo that. The
// layers, and what each protects against:
//
//   - Its own process: a panic, a fatal error of the runtime, an exit or a kill ends the worker and nothing else. The
//     parent names the cause (Death) and starts another one. A worker ends as soon as its parent is gone, since its
//     input ends.
//   - The parent's clock and SIGKILL: a request that hangs, in a slow read or in a wait.
//   - RLIMIT_CPU, renewed for each request: a request that computes for ever.
//   - RLIMIT_DATA: memory. A worker that wants more dies of it, and the machine does not.
//   - Close-on-exec for all that the parent has open: a file, pipe or socket that the parent itself was started with.
//     The kernel asks nothing more of its holder.
//   - RLIMIT_NOFILE, RLIMIT_FSIZE 0, RLIMIT_CORE 0: descriptors; files that grow; customers' data in a core file.
//   - No-new-privileges: a program with the set-user-ID bit gives nothing.
//   - Landlock: only the files and folders of Options.Roots can be read, nothing can be written or run, and where the
//     kernel has it there is no TCP, no signal and no abstract socket to the outside. Whether a path exists can still
//     be seen.
//   - Seccomp, in every thread: no sockets, programs, processes, namespaces, mounts, tracing, keys, BPF, io_uring, or
//     calls of another architecture; and once more no writing, so that it is kept from files where a kernel lacks
//     Landlock, too.
//   - A bounded answer in a frame of a fixed form: what the parent allocates. Anything else on the pipe is a
//     crash of the worker.
//
// What a kernel lacks is left out with a note (Isolation), never in silence. A worker that was taken over can still lie
// in its answers, these and all later ones: the parent has to check them.
package sandbox

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Level is how far work is kept apart.
type Level string

// Levels, each with all that the one before has.
const (
	None    Level = "none"    // no worker: the caller does the work itself
	Process Level = "process" // a worker with limits of its resources
	Sandbox Level = "sandbox" // a worker that can read its roots and do nothing else
)

// Layers, as Isolation names them. Landlock's has the version of the kernel's interface behind it: "landlock-7".
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
	Layers   []string `json:"layers"`   // in force, in the order in which they were put on
	Note     string   `json:"note,omitempty"`
}

// has reports whether a layer is in force.
func (i *Isolation) has(layer string) bool {
	return slices.ContainsFunc(i.Layers, func(l string) bool { return named(l, layer) })
}

// named reports whether an entry of Isolation.Layers is that layer, with or without a version.
func named(l, layer string) bool { return l == layer || strings.HasPrefix(l, layer+"-") }

// lacks notes why a layer, or a part of one, is not in force.
func (i *Isolation) lacks(what string, err error) {
	if i.Note != "" {
		i.Note += "; "
	}
	i.Note += what + ": " + line(err.Error())
}

// settle sets the level that the layers amount to.
func (i *Isolation) settle() {
	i.Achieved = Process
	if i.has(layerLandlock) && i.has(layerSeccomp) && i.has(layerLimits) {
		i.Achieved = Sandbox
	}
}

// Limits of one worker and of each of its requests. A zero stands for the default.
type Limits struct {
	Data   int64         // most bytes of memory that the worker may use (RLIMIT_DATA); 256 MiB
	CPU    time.Duration // most computing for one request, in whole seconds; 10 s
	Wall   time.Duration // longest wait for the answer of one request; 30 s
	Files  int           // most open descriptors of the worker; 64
	Answer int64         // most bytes of one answer; 32 MiB
}

// orDefault puts the budgets of an inspection where none is given.
func (l Limits) orDefault() Limits {
	return Limits{
		Data:   cmp.Or(l.Data, 256<<20),
		CPU:    cmp.Or(l.CPU, 10*time.Second),
		Wall:   cmp.Or(l.Wall, 30*time.Second),
		Files:  cmp.Or(l.Files, 64),
		Answer: cmp.Or(l.Answer, 32<<20),
	}
}

// Access lists the files that a process which confines itself may still use. Paths that are not there are left out.
type Access struct {
	Read  []string // folders with all below, or single files with the names in their folders
	Write []string // folders in which files can be read, made, changed, renamed and removed
	// Serves is set if clients are accepted, on a socket that is open already. The files and empty folders of Remove
	// can then be removed, and others of their kind beside them.
	Serves bool
	Remove []string
	// Workers is set if only workers read, which restrict themselves. Files are as before then, and programs can be
	// run: each thread gets a domain of Landlock of its own, and none may look at the workers of another.
	Workers bool
}

// Options of a worker.
type Options struct {
	Args  []string // of the program, behind its name: those that make it call Serve
	Level Level    // Process or Sandbox
	// Roots are the files that a Sandbox may read: a folder with all below it, or a single file, with the names in its
	// folder. A path that is not there is left out.
	Roots  []string
	Limits Limits
	Hello  []byte // for the worker's start function
}

func (o *Options) check() error {
	if o.Level != Process && o.Level != Sandbox {
		return fmt.Errorf("isolation %q has no worker: want %s or %s", o.Level, Process, Sandbox)
	}
	for _, root := range o.Roots {
		if !filepath.IsAbs(root) {
			return fmt.Errorf("worker root %q is relative, and a worker has another working folder: want an "+
				"absolute path", root)
		}
	}
	return nil
}
