package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Announcement describes a worker.
type Announcement struct {
	Worker     string    `json:"worker"`
	Version    string    `json:"version"`
	Began      time.Time `json:"began"`
	Datastores []string  `json:"datastores"`
	Slots      int       `json:"jobs"`             // concurrent jobs of each datastore
	Window     string    `json:"window,omitempty"` // hours in which it starts jobs; empty for always
}

// maxDatastores limits the datastores of one worker.
const maxDatastores = 1000

// Key returns the key of an announcement: a hash, because the name of a worker may not be a valid key.
func (a *Announcement) Key() string {
	sum := sha256.Sum256([]byte(a.Worker))
	return hex.EncodeToString(sum[:16])
}

// ParseAnnouncement decodes an announcement.
func ParseAnnouncement(b []byte) (*Announcement, error) {
	var a Announcement
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, fmt.Errorf("announcement of a worker: %w", err)
	}
	if len(a.Datastores) > maxDatastores || max(len(a.Worker), len(a.Version), len(a.Window)) > maxName {
		return nil, errors.New("the announcement of a worker is too long")
	}
	for _, name := range a.Datastores {
		if err := CheckName(name); err != nil {
			return nil, err
		}
	}
	return &a, nil
}

// Backlog is the number of waiting and running jobs of a datastore, and their limit.
type Backlog struct {
	Waiting   uint64 // messages not yet delivered
	Delivered int    // messages held by workers, or waiting for another try
	AtOnce    int    // limit of concurrent jobs
}
