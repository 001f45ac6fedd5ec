package report

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image"
)

// What comes after a copy depends on what opens its format.
func TestUseOfACopy(t *testing.T) {
	formats := map[string]bool{}
	for _, tc := range []struct{ format, subformat, dest, want, folder string }{
		{
			"qcow2", "v3", "a b,c.qcow2",
			`libvirt:   virt-xml VM --edit target=TARGET --disk path="$PWD"/'a b\,c.qcow2',driver.type=qcow2`,
			"/srv/a b",
		},
		{"qcow2", "v3", "a,b.qcow2", `path='/srv/one\,two/a\,b.qcow2',driver.type=qcow2`, "/srv/one,two"},
		{
			"raw", "", "/t/a.img", "libvirt:   virt-xml VM --edit target=TARGET --disk path=/t/a.img,driver.type=raw\n",
			"",
		},
		{"raw", "", `/t/it's "a\b".img`, `--disk path='/t/it\'\''s \"a\\b\".img',driver.type=raw` + "\n", ""},
		{"vhdx", "dynamic", "-it's, a\u2019.vhdx", "-Path \".\\-it's, a\u2019.vhdx\"\n", ""},
		{"vhdx", "dynamic", "t/a.vhdx", "Hyper-V:   Set-VMHardDiskDrive VM -ControllerType TYPE", ""},
		{"vhd", "fixed", "t/a.vhd", "-ControllerLocation N -Path t/a.vhd\n", ""},
		{"vdi", "dynamic", "t/a b.vdi", "VirtualBox:   VBoxManage storageattach VM --storagectl CONTROLLER", ""},
		{"vdi", "dynamic", "t/a b.vdi", "--medium 't/a b.vdi'\n", ""},
		{"vmdk", "vmfs", "t/a.vmdk", "govc vm.disk.attach -vm VM -ds DATASTORE -disk VM/a.vmdk\n", ""},
		{"vmdk", "streamOptimized", "t/a.vmdk", "vSphere:   govc import.vmdk -ds DATASTORE t/a.vmdk\n", ""},
		{
			"vmdk", "monolithicSparse", "t/a.vmdk",
			"vmkfstools -d thin -i t/a.vmdk /vmfs/volumes/DATASTORE/VM/a.vmdk\n", "",
		},
		{"vmdk", "monolithicSparse", "-", "monolithicSparse, ", ""},
		{"vhd", "fixed", "a\nb.vhd", `-Path "a$([char]0xa)b.vhd"` + "\n", ""},
	} {
		formats[tc.format] = true
		var out strings.Builder
		r := &Align{
			Source: "s", Dest: tc.dest, Folder: tc.folder, Written: true,
			Disks: []*AlignedDisk{{Format: tc.format, Subformat: tc.subformat}},
		}
		(&Text{W: &out}).Align(r)
		require.Contains(t, out.String(), tc.want)
		require.Equal(t, tc.dest != "-", strings.Contains(out.String(), "To use it with "),
			out.String())
	}
	require.ElementsMatch(t, image.Names(), slices.Collect(maps.Keys(formats)))
	var out strings.Builder
	(&Text{W: &out}).Align(&Align{Source: "s", Dest: "s", Disks: []*AlignedDisk{{Format: "raw"}}, Written: true})
	require.NotContains(t, out.String(), "To use it with ", "moved in its place")
	out.Reset()
	(&Text{W: &out}).Align(&Align{
		Source: "s.orig.vdi", Dest: "s.vdi", Written: true, Replaced: &Replaced{Original: "s.orig.vdi"},
		Disks: []*AlignedDisk{{Format: "vdi", registered: true}},
	})
	require.Contains(t, out.String(), "VBoxManage internalcommands sethduuid s.vdi UUID\n")
	require.NotContains(t, out.String(), "To use it with ")
}
