package ondisk

import "fmt"

// Effect is the meaning of an issue for a copy.
type Effect int

// Effects, mildest first.
const (
	Note       Effect = iota // worth knowing
	Warn                     // worth acting on; a copy is made all the same
	Unbootable               // a copy is refused unless the user accepts that it may not boot
	BadVolume                // a malformed volume: a move fails unless the user accepts opaque bytes
	Refuse                   // a copy is refused
	Broken                   // malformed: a copy fails
)

// Issue is a remark of a reader of on-disk structures beside its values. It is a value and no log line, so that the
// verdict is made in one place (package align) and one broken part does not hide the rest.
type Issue struct {
	Code      string // stable, for scripts: "ntfs-hidden-sectors"
	Effect    Effect
	OnMove    bool // matters only when the partition (or, for partition 0, any partition) moves
	Partition int  // number of the partition, 0 for the disk
	DiskWide  bool // matters when any partition moves; a volume does not know its number
	Text      string
	Remedy    string
	Err       error // for Broken: the error that a copy ends with; for Refuse: its class, ErrUnsupported when it is nil
}

// Refusal is the error of a job that is understood and would be unsafe.
//
//nolint:errname // "refusal" is the word of the product contract
type Refusal struct {
	Code   string // error code of the JSON output: "unsupported", "busy", "reference", "format"
	Reason string
	Remedy string
}

func (r *Refusal) Error() string {
	if r.Remedy == "" {
		return "refused: " + r.Reason
	}
	return fmt.Sprintf("refused: %s; %s", r.Reason, r.Remedy)
}
