package ova_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
)

// A package that cannot be written correctly is refused before a file is made.
func TestRefusedCopies(t *testing.T) {
	t.Parallel()
	own, disk := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk")
	property := text("vm.ovf", strings.ReplaceAll(string(own.Data), `ovf:capacity="1"`, `ovf:capacity="${size}"`))
	for name, c := range map[string]struct {
		dest    string
		members []tarforge.Member
		larger  bool
		kind    error
		says    string
		force   bool
	}{
		"no package":      {"out.img", []tarforge.Member{own, disk}, false, ondisk.ErrUsage, "", false},
		"in no folder":    {"none/out.ova", []tarforge.Member{own, disk}, false, ondisk.ErrOutput, "", false},
		"one that exists": {"old.ova", []tarforge.Member{own, disk}, false, ondisk.ErrOutput, "", false},
		"an ovf that exists": {
			"old.ovf",
			[]tarforge.Member{own, disk},
			false, ondisk.ErrOutput,
			"the files of an OVF are never replaced", true,
		},
		"a file that exists": {"out.ovf", []tarforge.Member{
			text("vm.ovf", envelope(`ovf:href="taken.vmdk"`)),
			sparse("taken.vmdk"),
		}, false, ondisk.ErrOutput, "", false},
		"a folder as a file": {
			"out.ovf",
			[]tarforge.Member{own, disk, {Name: "sub/", Type: '5'}},
			false,
			ondisk.ErrUnsupported, "", false,
		},
		"a file in a folder": {"out.ovf", []tarforge.Member{
			text("vm.ovf", envelope(`ovf:href="sub/disk.vmdk"`)),
			sparse("sub/disk.vmdk"),
		}, false, ondisk.ErrUnsupported, "", false},
		"a name of quotes": {"out.ovf", []tarforge.Member{
			text("vm.ovf", envelope(`ovf:href='a"b.vmdk'`)),
			sparse(`a"b.vmdk`),
		}, false, ondisk.ErrReference, "", false},
		"an unknown digest": {
			"out.ova",
			[]tarforge.Member{own, text("vm.mf", "MD9(disk.vmdk)= abcd\n"), disk},
			true,
			ondisk.ErrUnsupported, "", false,
		},
		"a capacity elsewhere": {"out.ova", []tarforge.Member{property, disk}, true, ondisk.ErrUnsupported, "", false},
		"one that is not a file": {
			"fifo.ova", []tarforge.Member{own, disk}, false, ondisk.ErrUsage, "is a device, a pipe", true,
		},
		"quotes in its name": {`a"b.ovf`, []tarforge.Member{own, disk}, false, ondisk.ErrReference, "", false},
		"a link as a file": {
			"out.ovf",
			[]tarforge.Member{own, disk, {Name: "link", Type: '2'}},
			false,
			ondisk.ErrUnsupported, "is not a file", false,
		},
		"none of these": {"out.ova", []tarforge.Member{own, disk}, false, nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, old := range []string{"old.ova", "old.ovf", "taken.vmdk"} {
				imagetest.Write(t, dir, old, []byte("old"))
			}
			require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo.ova"), 0o600))
			src := openedPackage(t, archived(t, c.members...))
			var rewrite map[string]ova.Rewrite
			if c.larger {
				img := opened(t, src.Path)
				rewrite = map[string]ova.Rewrite{"disk.vmdk": {Source: img, Size: img.Disk.Size() + mib}}
			}
			out, err := ova.Create(filepath.Join(dir, c.dest), src, ova.CreateOptions{Rewrite: rewrite, Force: c.force})
			if c.kind == nil {
				require.NoError(t, err)
				require.NoError(t, out.Discard())
			} else {
				require.ErrorIs(t, err, c.kind)
				require.ErrorContains(t, err, c.says)
			}
			require.Equal(t, []string{"fifo.ova", "old.ova", "old.ovf", "taken.vmdk"}, disktest.Names(t, dir))
		})
	}
}
