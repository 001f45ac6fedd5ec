// Package fleet says what a job of a fleet of hosts is, what is known of it, and which jobs a scan leads to. It is
// pure: it opens no files and knows no queue.
package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Kind is what a job does.
type Kind string

// Kinds.
const (
	Scan     Kind = "scan"     // judges the images below a folder
	Align    Kind = "align"    // writes an aligned copy beside an image
	Exchange Kind = "exchange" // gives the aligned copy the names of the image
)

// Job is work on one image, or on a folder of them.
type Job struct {
	Kind      Kind   `json:"kind"`
	Datastore string `json:"datastore"`
	Path      string `json:"path"` // below the datastore
	Options
	// Identity is that of the image when it was scanned: its size and time, as IdentityOf makes them; empty if nothing
	// is known.
	Identity string `json:"identity,omitempty"`
	// Files are the further files of the image that are in its folder.
	Files []File `json:"files,omitempty"`
}

// File is a file of an image, when that was scanned.
type File struct {
	Name     string `json:"name"`
	Identity string `json:"identity"`
}

// Options are those of trueup that a job can have.
type Options struct {
	Suffix          string `json:"suffix,omitempty"` // of the name of a copy
	Boundary        string `json:"boundary,omitempty"`
	SkipFree        bool   `json:"skip_free,omitempty"`
	DataOnly        bool   `json:"data_only,omitempty"`
	AllowUnbootable bool   `json:"allow_unbootable,omitempty"`
	Flatten         bool   `json:"flatten,omitempty"`
	Shard           string `json:"shard,omitempty"` // of a scan
	// Again tells scans of one folder apart, which are wanted each time.
	Again string `json:"again,omitempty"`
}

// DefaultSuffix ends the name of a copy, before its extension.
const DefaultSuffix = "-aligned"

// Bounds of what a job names, in bytes.
const (
	maxPath  = 4096
	maxName  = 255
	maxShort = 64
	maxFiles = 256 // of an image
)

// Names that are a token of a subject, a part of a key, and a name of a consumer.
var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// CheckName checks the name of a datastore.
func CheckName(name string) error {
	if !names.MatchString(name) {
		return fmt.Errorf("datastore %.80q: must be 1 to 64 letters, digits, _ or -", name)
	}
	return nil
}

var (
	suffixes   = regexp.MustCompile(`^[A-Za-z0-9_.+-]{1,32}$`)
	boundaries = regexp.MustCompile(`^([0-9]{1,12}[KMG]?|auto)$`)
	shards     = regexp.MustCompile(`^[0-9]{1,6}/[0-9]{1,6}$`)
)

// Check refuses a job that no worker could take: what is in a queue may come from anyone.
func (j *Job) Check() error {
	short := len(j.Identity) <= maxShort && len(j.Again) <= maxShort
	switch {
	case j.Kind != Scan && j.Kind != Align && j.Kind != Exchange:
		return fmt.Errorf("job %.40q: must be scan, align or exchange", j.Kind)
	case CheckName(j.Datastore) != nil:
		return CheckName(j.Datastore)
	case !filepath.IsLocal(j.Path) || !utf8.ValidString(j.Path) || strings.ContainsRune(j.Path, 0) ||
		len(j.Path) > maxPath || filepath.Clean(j.Path) != j.Path:
		return fmt.Errorf("path %.256q: must be in UTF-8, below the datastore, and plain: no .. or //, no ./ before "+
			"it, no / after it", j.Path)
	case j.Kind != Scan && (j.Path == "." || j.Shard != "" || j.Again != ""):
		return fmt.Errorf("%s of %.256q: must be an image, without a shard", j.Kind, j.Path)
	case j.Kind == Align != (j.Suffix != ""), j.Suffix != "" && !suffixes.MatchString(j.Suffix):
		return fmt.Errorf("suffix %.40q of a copy: must be letters, digits, _, ., + or -", j.Suffix)
	case j.Boundary != "" && !boundaries.MatchString(j.Boundary):
		return fmt.Errorf("boundary %.40q: must be a size such as 64K", j.Boundary)
	case j.Shard != "" && !shards.MatchString(j.Shard):
		return fmt.Errorf("shard %.40q: must be K/N", j.Shard)
	case len(j.Files) > maxFiles || slices.ContainsFunc(j.Files, File.strange):
		return fmt.Errorf("files of %.256q: must be at most %d, in its folder", j.Path, maxFiles)
	case !short:
		return errors.New("identity of an image that is too long")
	}
	return nil
}

// strange reports whether a file does not lie beside an image.
func (f File) strange() bool {
	return !filepath.IsLocal(f.Name) || filepath.Base(f.Name) != f.Name || f.Name == "." || len(f.Name) > maxName ||
		!utf8.ValidString(f.Name) || strings.ContainsRune(f.Name, 0) || len(f.Identity) > maxShort
}

// ID returns the hash of what the job does: the same work is the same job.
func (j *Job) ID() string {
	b, err := json.Marshal(j)
	if err != nil {
		panic(err) // plain values: our own bug
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Key returns the key of its record: the datastore and the ID.
func (j *Job) Key() string { return j.Datastore + "." + j.ID() }

// Dest returns where an aligned copy goes: beside the image.
func (j *Job) Dest() string {
	ext := filepath.Ext(j.Path)
	return strings.TrimSuffix(j.Path, ext) + j.Suffix + ext
}

// Flags returns the options as flags of trueup.
func (o *Options) Flags() (out []string) {
	if o.Boundary != "" {
		out = append(out, "--boundary", o.Boundary)
	}
	if o.Shard != "" {
		out = append(out, "--shard", o.Shard)
	}
	for _, f := range []struct {
		on   bool
		name string
	}{
		{o.SkipFree, "--skip-free"},
		{o.DataOnly, "--data-only"},
		{o.AllowUnbootable, "--allow-unbootable"},
		{o.Flatten, "--flatten"},
	} {
		if f.on {
			out = append(out, f.name)
		}
	}
	return out
}

// IdentityOf returns the identity of an image whose main file has a size in bytes, and a time in ns since 1970.
func IdentityOf(size, modified int64) string { return fmt.Sprintf("%d@%d", size, modified) }
