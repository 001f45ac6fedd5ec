package image_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// served is a file of a server.
type served struct {
	*bytes.Reader
	name    string
	device  bool
	changed error
	closed  int
}

func (s *served) Name() string     { return s.name }
func (*served) ID() string         { return "x://y" }
func (*served) Forget()            {}
func (s *served) Device() bool     { return s.device }
func (s *served) Unchanged() error { return s.changed }
func (s *served) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, s.Size()-off)}}, nil
}

func (s *served) Close() error {
	s.closed++
	return nil
}

// An image of a server has nothing beside it, and says when it changes.
func TestOpenAlone(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 8192)
	f := &served{Reader: bytes.NewReader(qcow2forge.New(content, 16).Bytes), name: "disk"}
	img, err := image.OpenAlone(f, "x://y", image.Options{}, nil)
	require.NoError(t, err)
	require.Equal(t, "qcow2", img.Format)
	require.Equal(t, "x://y", img.Path)
	got, err := ondisk.Bytes(img.Disk, 0, int64(len(content)))
	require.NoError(t, err)
	require.Equal(t, content, got)
	require.Equal(t, []image.FileInfo{{Name: "disk", Size: f.Size(), Allocated: f.Size()}}, img.Files())
	require.Equal(t, f.Size(), img.States()[0].Size)
	for _, look := range []func() ([]ondisk.Issue, error){img.Busy, img.Children, img.Owner} {
		found, err := look()
		require.NoError(t, err)
		require.Empty(t, found)
	}
	require.NoError(t, img.Unchanged())
	f.changed = errors.New("changed")
	require.ErrorIs(t, img.Unchanged(), f.changed)
	require.False(t, img.Unseen())
	f.device = true
	require.True(t, img.Unseen())
	require.NoError(t, img.Close())
	require.Equal(t, 1, f.closed)
}

// A server does not choose what else is read, and the name of a device says nothing of its format.
func TestOpenAloneRefuses(t *testing.T) {
	t.Parallel()
	child := qcow2forge.New(make([]byte, 1<<16), 16)
	child.SetBacking("/etc/passwd", "raw")
	descriptor := "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n" +
		"createType=\"monolithicFlat\"\n" +
		"RW 2048 FLAT \"a-flat.vmdk\" 0\nddb.adapterType = \"ide\"\n"
	for names, content := range map[string][]byte{
		`it refers to the file "/etc/passwd"`: child.Bytes, `it refers to the file "a-flat.vmdk"`: []byte(descriptor),
	} {
		f := &served{Reader: bytes.NewReader(content), name: "disk"}
		_, err := image.OpenAlone(f, "x://y", image.Options{}, nil)
		require.ErrorContains(t, err, names)
		require.ErrorContains(t, err, "opens no further file")
		require.Equal(t, 1, f.closed)
	}
	zeros := &served{Reader: bytes.NewReader(make([]byte, 1<<16)), name: "disk.vmdk"}
	codes := func() (codes []string) {
		img, err := image.OpenAlone(zeros, "x://y", image.Options{}, nil)
		require.NoError(t, err)
		for _, i := range img.Issues {
			codes = append(codes, i.Code)
		}
		return codes
	}
	require.Equal(t, []string{image.CodeMisnamed}, codes())
	zeros.device = true
	require.Empty(t, codes())
	zeros = &served{Reader: bytes.NewReader(make([]byte, 700)), name: "disk.vmdk"}
	_, err := image.OpenAlone(zeros, "x://y", image.Options{}, nil)
	require.ErrorContains(t, err, "its file extension is that of vmdk")
}
