//go:build linux || windows

// Package hostile has untrusted images: each is valid except for the fault in its row, with the expected message. They
// are forged without the decoders. T numbers are those of the threat list.
package hostile

import (
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// End is the expected result of an image.
type End int

// Ends.
const (
	Unread  End = iota // it cannot be read
	Refused            // a refusal: a referenced file is missing
	Broken             // the readable part is reported, with the error; a copy fails
	Kept               // it is reported, and cannot be copied
	Sound              // it is unusual, and moves
)

// Writer writes an image into a folder and returns its path.
type Writer func(t testing.TB, dir string) string

// Row is an image and its expected result.
type Row struct {
	Name   string
	Write  Writer
	Format string // format to open it with; empty: detect
	End    End
	Code   string   // of the JSON error
	Says   []string // all in the error, and in one finding of a report
	Finds  []string // in a finding, if that differs from the error
	Kind   string   // of its volume, if it is sound
}

func unread(name, code string, image Writer, says ...string) Row {
	return Row{Name: name, Code: code, Write: image, Says: says}
}

func refused(name string, image Writer, says ...string) Row {
	return Row{Name: name, Code: "reference", Write: image, Says: says, End: Refused}
}

func broken(name, code string, image Writer, says ...string) Row {
	return Row{Name: name, Code: code, Write: image, Says: says, End: Broken}
}

func odd(name, kind string, image Writer, says ...string) Row {
	return Row{Name: name, Kind: kind, Write: image, Says: says, End: Sound}
}

func kept(name, code string, image Writer, says ...string) Row {
	return Row{Name: name, Code: code, Write: image, Says: says, End: Kept}
}

// All returns every row except those of Nodes, OneGoodGPT and LUKSInImages.
func All() []Row {
	return slices.Concat(Files(), VMDK(), Qcow2(), VHD(), VHDX(), Tables(), OddGPTs(), Volumes(), Pools())
}

// classes of errors by their code in JSON.
var classes = map[string]error{
	"format": ondisk.ErrFormat, "limit": ondisk.ErrLimit, "unsupported": ondisk.ErrUnsupported,
	"reference": ondisk.ErrReference, "busy": ondisk.ErrBusy, "io": os.ErrNotExist,
}

// most limits the bytes that a reader may allocate for one image.
const most = 96 << 20

// Check writes each image and requires the expected result of a reader, which finds issues or fails. A row takes no
// more time than in a fuzzer, and less memory than most.
func Check(t *testing.T, rows []Row, read func(t *testing.T, path, format string) ([]ondisk.Issue, error)) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.Name, func(t *testing.T) {
			path := r.Write(t, t.TempDir())
			var issues []ondisk.Issue
			var err error
			spent := disktest.Spent()
			allocated := disktest.Allocated(func() { issues, err = read(t, path, r.Format) })
			require.Less(t, spent(), disktest.Slowest)
			require.Less(t, allocated, int64(most))
			r.require(t, issues, err)
		})
	}
}

func (r Row) require(t *testing.T, issues []ondisk.Issue, err error) {
	t.Helper()
	if r.End == Unread || r.End == Refused {
		require.Error(t, err)
		if refusal, refused := errors.AsType[*ondisk.Refusal](err); refused || r.End == Refused {
			require.True(t, refused, "%v", err)
			require.Equal(t, r.Code, refusal.Code)
		} else {
			require.ErrorIs(t, err, classes[r.Code])
		}
		r.requireText(t, err.Error())
		return
	}
	require.NoError(t, err)
	for _, i := range issues {
		require.True(t, r.End != Sound || i.Effect <= ondisk.BadVolume, i.Text)
	}
	effects := map[End][]ondisk.Effect{
		Broken: {ondisk.BadVolume, ondisk.Broken}, Kept: {ondisk.Unbootable, ondisk.Refuse},
		Sound: {ondisk.Note, ondisk.Warn, ondisk.BadVolume},
	}[r.End]
	for _, i := range issues {
		if r.Found(i.Text) {
			require.Contains(t, effects, i.Effect, i.Text)
			if r.End != Sound && (i.Err != nil || r.End == Broken) {
				require.ErrorIs(t, i.Err, classes[r.Code])
			} else if r.End == Kept {
				require.Equal(t, "unsupported", r.Code)
			}
			return
		}
	}
	require.Empty(t, r.Says, "none of %v", issues)
}

func (r Row) requireText(t *testing.T, text string) {
	t.Helper()
	for _, part := range r.Says {
		require.Contains(t, text, part)
	}
}

// Found reports whether one finding contains all texts.
func (r Row) Found(text string) bool {
	parts := r.Says
	if r.Finds != nil {
		parts = r.Finds
	}
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// Sectors is the size of the disk in most images: one partition at LBA 63, of an unknown kind.
const Sectors = 4096

// Disk returns that disk.
func Disk() forge.Bytes {
	disk := tableforge.NewMBR(Sectors, tableforge.Slot{Flag: 0x80, Type: 0x83, Start: 63, Sectors: 2000})
	data := make([]byte, 2000*512)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte("partition"))).Read(data) // never returns an error
	disk.Put(63*512, data)
	return disk
}

// writeText writes a text file, such as a descriptor, as the image.
func writeText(name, text string) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
}

// writeForged returns a function that writes a forged image to a file and returns its path.
func writeForged(name string, image forge.Bytes) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		image.Write(t, path)
		return path
	}
}
