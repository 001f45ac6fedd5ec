package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Announcement is how a worker announces itself.
type Announcement struct {
	Worker     string    `json:"worker"`
	Version    string    `json:"version"`
	Began      time.Time `json:"began"`
	Datastores []string  `json:"datastores"`
	Slots      int       `json:"jobs"`             // of each datastore that it does at once
	Window     string    `json:"window,omitempty"` // in which it begins jobs; empty: always
}

// maxDatastores bounds those of one worker.
const maxDatastores = 1000

// Key returns the key under which a worker announces itself: its name need not be one.
func (a *Announcement) Key() string {
	sum := sha256.Sum256([]byte(a.Worker))
	return hex.EncodeToString(sum[:16])
}

// ParseAnnouncement reads an announcement.
func ParseAnnouncement(b []byte) (*Announcement, error) {
	var a Announcement
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, fmt.Errorf("announcement of a worker: %w", err)
	}
	if len(a.Datastores) > maxDatastores || max(len(a.Worker), len(a.Version), len(a.Window)) > maxName {
		return nil, errors.New("announcement of a worker that is too long")
	}
	for _, name := range a.Datastores {
		if err := CheckName(name); err != nil {
			return nil, err
		}
	}
	return &a, nil
}

// Backlog is what waits for the workers of a datastore, and their limits.
type Backlog struct {
	Waiting   uint64 // messages that no worker has
	Delivered int    // messages that workers have, or that wait for another try
	AtOnce    int    // jobs that run at a time
}
