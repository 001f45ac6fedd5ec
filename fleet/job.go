// Package fleet defines jobs, their records, and the jobs that follow from a scan. It opens no files and has no queue.
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

// Kind is the kind of a job.
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
	Path      string `json:"path"` // relative to the datastore
	Options
	// Identity is the identity of the image at the time of the scan (see IdentityOf), or empty if unknown.
	Identity string `json:"identity,omitempty"`
	// Files lists the further files of the image in the same folder.
	Files []File `json:"files,omitempty"`
}

// File is a file of an image at the time of the scan.
type File struct {
	Name     string `json:"name"`
	Identity string `json:"identity"`
}

// Options are the options of trueup for a job.
type Options struct {
	Suffix          string `json:"suffix,omitempty"` // of the copy's name
	Boundary        string `json:"boundary,omitempty"`
	SkipFree        bool   `json:"skip_free,omitempty"`
	DataOnly        bool   `json:"data_only,omitempty"`
	AllowUnbootable bool   `json:"allow_unbootable,omitempty"`
	Flatten         bool   `json:"flatten,omitempty"`
	Shard           string `json:"shard,omitempty"` // K/N of a scan
	// Again distinguishes repeated scans of a folder.
	Again string `json:"again,omitempty"`
}

// DefaultSuffix is the default suffix of a copy's name, before the extension.
const DefaultSuffix = "-aligned"

// Limits, in bytes.
const (
	maxPath  = 4096
	maxName  = 255
	maxShort = 64
	maxFiles = 256 // files of an image
)

// names matches datastore names: they become tokens of subjects, parts of keys, and names of consumers.
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

// Check refuses a job that no worker could run. Jobs in a queue are untrusted.
func (j *Job) Check() error {
	short := len(j.Identity) <= maxShort && len(j.Again) <= maxShort
	switch {
	case j.Kind != Scan && j.Kind != Align && j.Kind != Exchange:
		return fmt.Errorf("job %.40q: must be scan, align or exchange", j.Kind)
	case CheckName(j.Datastore) != nil:
		return CheckName(j.Datastore)
	case !filepath.IsLocal(j.Path) || !utf8.ValidString(j.Path) || strings.ContainsRune(j.Path, 0) ||
		len(j.Path) > maxPath || filepath.Clean(j.Path) != j.Path:
		return fmt.Errorf("path %.256q: must be UTF-8 and below the datastore, without .., //, a leading ./ or a "+
			"trailing /", j.Path)
	case j.Kind != Scan && (j.Path == "." || j.Shard != "" || j.Again != ""):
		return fmt.Errorf("%s of %.256q: must be one image, without a shard", j.Kind, j.Path)
	case j.Kind == Align != (j.Suffix != ""), j.Suffix != "" && !suffixes.MatchString(j.Suffix):
		return fmt.Errorf("suffix %.40q of a copy: must be letters, digits, _, ., + or -", j.Suffix)
	case j.Boundary != "" && !boundaries.MatchString(j.Boundary):
		return fmt.Errorf("boundary %.40q: must be a size such as 64K", j.Boundary)
	case j.Shard != "" && !shards.MatchString(j.Shard):
		return fmt.Errorf("shard %.40q: must be K/N", j.Shard)
	case len(j.Files) > maxFiles || slices.ContainsFunc(j.Files, File.strange):
		return fmt.Errorf("files of %.256q: must be at most %d files, in its folder", j.Path, maxFiles)
	case !short:
		return errors.New("the identity of the image is too long")
	}
	return nil
}

// strange reports whether a file is not beside its image.
func (f File) strange() bool {
	return !filepath.IsLocal(f.Name) || filepath.Base(f.Name) != f.Name || f.Name == "." || len(f.Name) > maxName ||
		!utf8.ValidString(f.Name) || strings.ContainsRune(f.Name, 0) || len(f.Identity) > maxShort
}

// ID returns the hash of a job's content: the same work is the same job.
func (j *Job) ID() string {
	b, err := json.Marshal(j)
	if err != nil {
		panic(err) // cannot fail for plain values
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// Key returns the key of the job's record: datastore and ID.
func (j *Job) Key() string { return j.Datastore + "." + j.ID() }

// Dest returns the path of the aligned copy, beside the image.
func (j *Job) Dest() string {
	ext := filepath.Ext(j.Path)
	return strings.TrimSuffix(j.Path, ext) + j.Suffix + ext
}

// Flags returns the options as command-line flags of trueup.
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

// IdentityOf returns the identity of an image, from the size of its main file in bytes and its time in ns since 1970.
func IdentityOf(size, modified int64) string { return fmt.Sprintf("%d@%d", size, modified) }
