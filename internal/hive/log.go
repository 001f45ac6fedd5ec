package hive

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// Places in a log. Spec: "Format of transaction log files".
const (
	logSector     = 512 // a base block takes one, and entries start at a multiple
	typeOldLog    = 1   // until Windows 8: one set of changed pages
	typeOldLog2   = 2   // the same, of a second log
	typeNewLog    = 6   // since Windows 8.1: entries one after the other
	maxLogEntries = 1 << 16
)

// logEntry begins an entry of a new log.
type logEntry struct {
	Signature [4]byte // "HvLE"
	Size      uint32  // bytes
	Flags     uint32
	Sequence  uint32
}

// LogPending reports whether a log (SYSTEM.LOG, .LOG1, .LOG2) holds changes that are newer than the hive although the
// hive is clean.
//
// Windows marks the hive as dirty before it relies on a log, and ignores newer entries beside a clean one (spec: "Dirty
// state of a hive"), so this should never happen. If it does, hive and log are from different moments, and which of
// them is right is unknown: then it is better to change nothing. An entry with the number of the hive itself has been
// applied. Checksums of entries do not matter: a torn one would have been newer, too. Without a valid base block the
// log proves nothing.
func (h *Hive) LogPending(log ondisk.Source) (bool, error) {
	if log.Size() < logSector {
		return false, nil // empty, as .LOG is beside .LOG1
	}
	var base baseBlock
	raw, err := ondisk.Decode(log, 0, &base)
	if err != nil {
		return false, err
	}
	if string(base.Signature[:]) != "regf" || base.Checksum != checksum(raw) {
		return false, nil
	}
	switch base.FileType {
	case typeOldLog, typeOldLog2:
		return base.Sequence1 == base.Sequence2 && h.older(base.Sequence1), nil
	case typeNewLog:
		return h.entryPending(log)
	}
	return false, nil
}

// older reports whether the hive is older than a sequence number, which may have started again from 0.
func (h *Hive) older(sequence uint32) bool {
	ahead := sequence - h.base.Sequence1
	return ahead != 0 && ahead < 1<<31
}

// entryPending walks the entries of a new log: numbers need not rise, since old entries stay behind newer ones.
func (h *Hive) entryPending(log ondisk.Source) (bool, error) {
	const size = 16
	at := int64(logSector)
	for range maxLogEntries {
		if at+size > log.Size() {
			return false, nil
		}
		var e logEntry
		raw := make([]byte, size)
		if err := ondisk.ReadFull(log, raw, at); err != nil {
			return false, err
		}
		if err := ondisk.Fill(raw, binary.LittleEndian, &e); err != nil {
			return false, err
		}
		switch {
		case string(e.Signature[:]) != "HvLE":
			return false, nil
		case h.older(e.Sequence):
			return true, nil
		}
		at += max(logSector, (int64(e.Size)+logSector-1)/logSector*logSector)
	}
	return false, fmt.Errorf("registry log: %w of %d entries", ondisk.ErrLimit, maxLogEntries)
}
