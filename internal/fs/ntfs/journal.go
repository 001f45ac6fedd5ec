// This part of the package reads the log of an NTFS volume ($LogFile), and reports which bytes its replay may write.
//
// It exists for one question: would Windows, when it replays an open log, change what is patched in the volume? It
// replays nothing. Where the log leaves a choice, a write is assumed; what is not understood is refused.
//
// Facts are those of the sources below, held against logs that Windows wrote. Spec:
// https://github.com/msuhanov/dfir_ntfs, dfir_ntfs/LogFile.py; ntfs-3g, include/ntfs-3g/logfile.h; Linux,
// fs/ntfs3/fslog.c; libfsntfs, "New Technologies File System (NTFS)", "Metadata transaction journal".

package ntfs

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of what is read. Beyond them a log is refused with ErrLimit.
const (
	maxLog       = 256 << 20 // bytes of a log; Windows makes 64 MiB at most by itself
	maxLogRecord = 4 << 20   // bytes of one record: tables of open attributes and dirty pages are the largest
	maxWrites    = 1 << 17   // of a replay; Windows writes a checkpoint every five seconds
	maxPlaces    = 1 << 20   // of those writes in the volume
	maxOwners    = 1 << 8    // of a record of the MFT, and attributes of an index, in the time that a replay covers
	maxSteps     = 1 << 23   // records read, some of them several times
	maxRead      = 1 << 30   // bytes of pages and of records
)

// State is how a log was left.
type State int

// States of a log.
const (
	Empty   State = iota // new: filled with 0xff
	Checked              // chkdsk wrote it; Windows resets it
	Closed               // no client: Windows 2000 and earlier, shut down
	Clean                // in use, and marked clean: Windows XP and later, shut down, or a shadow copy
	OpenLog              // the volume was in use
)

func (s State) String() string {
	return [...]string{"empty", "reset by chkdsk", "closed", "clean", "open"}[s]
}

// LogVolume is the volume of a log.
type LogVolume struct {
	ondisk.Source       // the volume itself: index blocks hold the LSN of their last change
	Cluster       int64 // bytes
	Record        int64 // bytes of a record of the MFT

	// MFT returns a record of the MFT with its fix-ups undone, nil where no valid one is stored. It need not be in use.
	MFT func(number int64) ([]byte, error)
}

// Log is the state of a log, and the writes that a replay may make.
type Log struct {
	State        State
	Major, Minor uint16  // version of the log itself: 1.1, or 2.0 while Windows 8 and later have it mounted
	Current      uint64  // LSN of the newest checkpoint
	Since        uint64  // LSN of the first record that a replay reads, 0 if none
	End          uint64  // LSN of the last record
	Writes       []Write // of a replay, in its order
}

// Read reads the log src of volume v. A log that is broken before its newest checkpoint is a FormatError.
// ErrUnsupported: a version or a size of pages that was never seen. ErrLimit: more than any Windows leaves.
func Read(src ondisk.Source, v LogVolume) (*Log, error) {
	if src.Size() > maxLog {
		return nil, fmt.Errorf("$LogFile of %d bytes: %w of %d bytes", src.Size(), ondisk.ErrLimit, maxLog)
	}
	blank, err := blank(src)
	if err != nil {
		return nil, err
	}
	if blank {
		return &Log{State: Empty}, nil
	}
	page, err := newest(src)
	if err != nil {
		return nil, err
	}
	l := &Log{State: page.state(), Major: page.Major, Minor: page.Minor, Current: page.area.CurrentLSN}
	if l.State == Checked || l.State == Closed {
		return l, nil
	}
	if err := l.analyse(src, page, v); err != nil {
		understood := errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) ||
			errors.Is(err, ondisk.ErrLimit)
		if l.State == Clean && understood {
			return &Log{State: Clean, Major: page.Major, Minor: page.Minor}, nil // Linux and ntfs-3g trust the mark
		}
		return nil, err
	}
	if l.State == Clean && len(l.Writes) > 0 {
		return nil, ondisk.Field("$LogFile restart area", "flags", page.at, "clean",
			fmt.Sprintf("no mark with %d writes pending from LSN %d on", len(l.Writes), l.Writes[0].LSN))
	}
	return l, nil
}

// Look reads how a log was left from its restart pages alone.
func Look(src ondisk.Source) (State, error) {
	if blank, err := blank(src); err != nil || blank {
		return Empty, err
	}
	page, err := newest(src)
	if err != nil {
		return Empty, err
	}
	return page.state(), nil
}

// analyse finds what a replay may write.
func (l *Log) analyse(src ondisk.Source, page *restartPage, v LogVolume) error {
	r, err := newReader(src, page)
	if err != nil {
		return err
	}
	a := analysis{reader: r, volume: v, slots: map[int][]Target{}, transactions: map[uint32]*transaction{}}
	return a.run(l)
}
