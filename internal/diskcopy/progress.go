package diskcopy

// Progress receives how far the work on a copy is, phase by phase.
type Progress interface {
	Begin(phase string, total int64) // what is done from now on, and with how many bytes
	Add(n int64)                     // bytes of the phase that are done, from any goroutine
}

// Phases of the work on a copy.
const (
	PhaseCopy   = "copy"   // writing
	PhaseFlush  = "flush"  // what was written, to the storage
	PhaseProve  = "prove"  // reading it again, and comparing it with what was to be written
	PhaseDigest = "digest" // reading for the digests of a manifest
)
