package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// cutImage is an image and where its structures begin.
type cutImage struct {
	file    string
	image   forge.Bytes
	borders []int64
	args    []string
	text    func(t testing.TB, dir string) string // writes the descriptor that is inspected, nil for the image itself
	// copied is where the footer begins of an image that has a copy of it in front: without the footer the disk can be
	// read. 0: none has.
	copied int64
}

func cutImages() map[string]cutImage {
	q := qcow2forge.New(xpDisk(), qcow2Bits)
	d := vhdforge.New(xpDisk(), vhdforge.Layout{})
	f := vhdforge.NewFixed(xpDisk())
	x := vhdxforge.New(vhdxforge.Layout{Size: xpSectors * 512}).Fill(xpDisk()).Seal()
	s := vmdkforge.NewStream(xpDisk(), vmdkforge.StreamLayout{})
	front := vmdkforge.NewStream(xpDisk(), vmdkforge.StreamLayout{Front: true})
	c := vmdkforge.NewCOWD(xpDisk(), 1, nil)
	e := vmdkforge.NewSESparse(xpDisk(), 0, nil)
	text := func(createType, word string) func(t testing.TB, dir string) string {
		return writeText("disk.vmdk", vmdkforge.Descriptor(createType, fmt.Sprintf(`RW %d %s "x.vmdk"`, xpSectors,
			word)))
	}
	return map[string]cutImage{
		"qcow2": {"disk.qcow2", q.Bytes, []int64{
			4, 72, 104, 112, q.RefTable, q.RefBlock, q.L1, q.L2,
			q.L2 + 1<<16, q.End - 1<<16,
		}, nil, nil, 0},
		"dynamic vhd": {"disk.vhd", d.Bytes, []int64{
			8, d.Header, d.BAT, d.BAT + 4, d.Blocks[0], d.Blocks[0] + 512,
			d.Footer,
		}, nil, nil, d.Footer},
		"fixed vhd": {
			"disk.vhd", f.Bytes,
			[]int64{512, f.Footer, f.Footer + 509},
			[]string{"--format", "vhd"},
			nil, 0,
		},
		"vhdx": {"disk.vhdx", x.Bytes, []int64{
			8, vhdxforge.Header1, vhdxforge.Header2, vhdxforge.Regions1,
			vhdxforge.Regions2, x.Log, x.Metadata, x.BAT, x.Blocks, x.Blocks + 1<<20,
		}, nil, nil, 0},
		"stream": {"disk.vmdk", s.Bytes, []int64{
			4, 512, s.Grains[0], s.Grains[1], s.Tables[0], s.Directory,
			s.Footer, s.Footer + 512, s.End,
		}, nil, nil, 0},
		"tables in front": {"disk.vmdk", front.Bytes, []int64{
			512, front.Directory, front.Tables[0], front.Grains[0],
			front.Grains[1],
		}, nil, nil, 0},
		"cowd": {
			"x.vmdk", c.Bytes,
			[]int64{4, 2048, c.GD, c.Tables[0], c.Tables[0] + vmdkforge.COWDTable},
			nil,
			text("vmfsSparse", "VMFSSPARSE"), 0,
		},
		"sesparse": {
			"x.vmdk", e.Bytes,
			[]int64{8, e.Volatile, e.Volatile + 512, e.GD, e.GT, e.Grains, e.Grains + 4096},
			nil, text("seSparse", "SESPARSE"), 0,
		},
	}
}

// TestCutImages is about the formats beside the sparse VMDK: files that end at, before and behind the border of every
// structure, and those of a few bytes. Where inspect can show what is left, no copy is made of it.
func TestCutImages(t *testing.T) {
	t.Parallel()
	for name, c := range cutImages() {
		t.Run(name, func(t *testing.T) {
			sizes := []int64{1, 511, 512, 513, int64(len(c.image)) - 8192}
			for _, b := range c.borders {
				sizes = append(sizes, b-1, b, b+1)
			}
			slices.Sort(sizes)
			for _, n := range slices.Compact(sizes) {
				if disktest.Share(fmt.Sprint(name, n)) {
					c.check(t, n)
				}
			}
		})
	}
}

func (c cutImage) check(t *testing.T, n int64) {
	t.Helper()
	dir, dest := t.TempDir(), filepath.Join(t.TempDir(), "dest.raw")
	path := writeForged(c.file, c.image[:n])(t, dir)
	if c.text != nil {
		path = c.text(t, dir)
	}
	ends := measure(t, append([]string{"inspect", "--json", path}, c.args...),
		append([]string{"align", "--json", path, dest}, c.args...))
	found, failed := parseFailure(t, ends[0]), parseFailure(t, ends[1])
	if !assert.NotNil(t, failed.Error, "%d of %d bytes", n, len(c.image)) {
		return
	}
	assert.Equal(t, "format", failed.Error.Code, "%d of %d bytes: %s", n, len(c.image), failed.Error.Message)
	require.NoFileExists(t, dest)
	requireOneLine(t, ends[1].stderr)
	if found.Image == nil {
		assert.Equal(t, 1, ends[0].code, "%d of %d bytes", n, len(c.image))
		assert.Equal(t, failed.Error.Message, found.Error.Message, "%d of %d bytes", n, len(c.image))
		return
	}
	assert.Equal(t, int64(xpSectors*512), found.Image.SizeBytes, "%d of %d bytes: the disk is as large as it was", n,
		len(c.image))
	assert.NotEmpty(t, found.Findings, "%d of %d bytes", n, len(c.image))
	want := 1
	if c.copied > 0 && n >= c.copied {
		want = 3 // the disk has a partition at LBA 63
	}
	assert.Equal(t, want, ends[0].code, "%d of %d bytes", n, len(c.image))
}

// TestFewBytes opens files of a few bytes, whatever --format says that they are.
func TestFewBytes(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"qcow2", "vhd", "vhdx", "vmdk", "raw"} {
		for _, n := range []int{0, 1, 511, 512, 513} {
			if format == "raw" && n == 512 {
				continue // a disk of one sector
			}
			path := writeForged("disk.img", make(forge.Bytes, n))(t, t.TempDir())
			r := measure(t, []string{"inspect", "--json", "--format", format, path})[0]
			require.Equal(t, 1, r.code, "%s of %d bytes", format, n)
			require.Equal(t, "format", parseFailure(t, r).Error.Code, "%s of %d bytes", format, n)
			requireOneLine(t, r.stderr)
		}
	}
}
