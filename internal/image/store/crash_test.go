package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
)

// crash is a folder as a killed run left it.
type crash struct {
	t        *testing.T
	dir      string
	old, new *image.Image
}

func (c crash) link(from, to string) {
	require.NoError(c.t, os.Link(filepath.Join(c.dir, from), filepath.Join(c.dir, to)))
}

func (c crash) rename(from, to string) {
	require.NoError(c.t, os.Rename(filepath.Join(c.dir, from), filepath.Join(c.dir, to)))
}

func (c crash) copy(src *image.Image, name string, o store.CreateOptions) {
	imagetest.Copy(c.t, src, filepath.Join(c.dir, name), o)
}

// States of a folder after a kill -9 between two steps of Publish. The next run cleans up and succeeds.
func TestCrashesBetweenTheStepsOfPublish(t *testing.T) {
	old, oldData := source(t, 1)
	src, data := source(t, 2)
	for _, tc := range []struct {
		name   string
		state  func(c crash)
		before []byte // what DEST shows then; nil: absent
		o      store.CreateOptions
		want   []string
	}{
		{"second file linked, dest absent", func(c crash) {
			imagetest.Write(c.t, c.dir, ".out.vmdk.partial",
				[]byte(vmdkforge.Descriptor("monolithicFlat", `RW 1 FLAT "out-flat.vmdk" 0`)))
			imagetest.Write(c.t, c.dir, ".out-flat.vmdk.partial", make([]byte, 512))
			c.link(".out-flat.vmdk.partial", "out-flat.vmdk")
		}, nil, flat, []string{"out-flat.vmdk", "out.vmdk"}},
		{"dest named, the second link still there", func(c crash) {
			c.copy(c.old, "out.vmdk", flat)
			c.link("out-flat.vmdk", ".out-flat.vmdk.partial")
		}, oldData, forced(flat), []string{"out-1-flat.vmdk", "out.vmdk"}},
		{"force: new second file linked, dest still the old", func(c crash) {
			c.copy(c.old, "out.vmdk", flat)
			imagetest.Write(c.t, c.dir, ".out.vmdk.partial", nil)
			imagetest.Write(c.t, c.dir, ".out-1-flat.vmdk.partial", make([]byte, 512))
			c.link(".out-1-flat.vmdk.partial", "out-1-flat.vmdk")
		}, oldData, forced(flat), []string{"out-1-flat.vmdk", "out.vmdk"}},
		{"force: dest exchanged, the old second file still there", func(c crash) {
			// Two runs make the state: the first one's flat file is kept, marked as the run marks it.
			c.copy(c.new, "out.vmdk", flat)
			c.link("out-flat.vmdk", "kept")
			c.copy(c.old, "out.vmdk", forced(flat))
			c.rename("kept", "out-flat.vmdk")
			c.link("out-flat.vmdk", ".out-flat.vmdk.replaced")
			c.link("out-1-flat.vmdk", ".out-1-flat.vmdk.partial")
		}, oldData, forced(flat), []string{"out-flat.vmdk", "out.vmdk"}},
		{"force: a sparse dest exchanged, the old second file still there", func(c crash) {
			c.copy(c.new, "out.vmdk", flat)
			c.copy(c.old, "new.vmdk", imagetest.Kinds[1])
			c.rename("new.vmdk", "out.vmdk")
			c.link("out-flat.vmdk", ".out-flat.vmdk.replaced")
		}, oldData, forced(imagetest.Kinds[1]), []string{"out.vmdk"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "out.vmdk")
			tc.state(crash{t, dir, old, src})
			if tc.before == nil {
				require.NoFileExists(t, path)
			} else {
				imagetest.Shows(t, path, tc.before)
			}
			out := imagetest.Fill(t, src, path, tc.o, 2)
			if tc.before != nil {
				imagetest.Shows(t, path, tc.before)
			}
			require.NoError(t, out.Publish())
			imagetest.Shows(t, path, data)
			require.Equal(t, tc.want, disktest.Names(t, dir))
		})
	}
}
