package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// Directives to the shells. Spec: cobra's ShellCompDirective.
const (
	files   = ":0\n"
	nothing = ":4\n"
	folders = ":16\n"
)

// putCompletable makes a disk with two partitions, and a package with disks of which two have names for no shell.
func putCompletable(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	put(t, "two.img", tableforge.NewMBR(8192,
		tableforge.Slot{Type: 0x83, Start: 63, Sectors: 1024}, tableforge.Slot{Type: 7, Start: 4096, Sectors: 2048}))
	disk := vmdkforge.NewSparse(tiny()).Bytes
	var members []tarforge.Member
	for _, name := range []string{"d-1.vmdk", "$(reboot).vmdk", "d 2.vmdk", "sub/d3.vmdk"} {
		members = append(members, tarforge.Member{Name: name, Data: disk})
	}
	envelope := tarforge.Member{Name: "vm.ovf", Data: []byte(
		`<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"><References/></Envelope>`)}
	put(t, "vm.ova", append(tarforge.New(append([]tarforge.Member{envelope}, members...)...), tarforge.End()...))
	put(t, "damaged.ova", tarforge.New(envelope, members[0])[:3000])
}

// The shells complete files where an argument is one, disks behind a package, and numbers of partitions.
func TestCompletion(t *testing.T) {
	putCompletable(t)
	const second = "2\t1 MiB from LBA 4096\n"
	const both = "1\t512 KiB from LBA 63\n" + second
	for _, c := range []struct {
		line []string
		want string
	}{
		{[]string{"inspect", ""}, files},
		{[]string{"inspect", "two.img", ""}, files},
		{[]string{"plan", "two.img", ""}, nothing},
		{[]string{"align", "two.img", ""}, files},
		{[]string{"align", "two.img", "dest.img", ""}, nothing},
		{[]string{"version", ""}, nothing},
		{[]string{"help", "inspect", ""}, nothing},
		{[]string{"undo", ""}, files},
		{[]string{"bench", ""}, folders},
		{[]string{"bench", "--size", ""}, nothing},
		{[]string{"scan", "--exclude", ""}, files},
		{[]string{"scan", "--since", ""}, files},
		{[]string{"plan", "--out", ""}, files},
		{[]string{"plan", "--allow-folder", ""}, folders},
		{[]string{"plan", "--color", ""}, "always\nnever\nauto\n" + nothing},

		{[]string{"inspect", "vm.ova!"}, "vm.ova!d-1.vmdk\nvm.ova!sub/d3.vmdk\n" + nothing},
		{[]string{"align", "vm.ova!d"}, "vm.ova!d-1.vmdk\nvm.ova!sub/d3.vmdk\n" + nothing},
		{[]string{"plan", "two.img", "--with", "vm.ova!"}, "vm.ova!d-1.vmdk\nvm.ova!sub/d3.vmdk\n" + nothing},
		{[]string{"align", "two.img", "vm.ova!"}, files},
		{[]string{"inspect", "two.img!"}, files},
		{[]string{"inspect", "absent.ova!"}, files},
		{[]string{"inspect", "damaged.ova!"}, files},

		{[]string{"plan", "two.img", "--partition", ""}, both + nothing},
		{[]string{"align", "two.img", "--partition="}, both + nothing},
		{[]string{"boot", "--partition", "1", "two.img", "--partition", "1,"}, "1," + second + nothing},
		{[]string{"serve", "--format", "vmdk", "two.img", "--partition", ""}, nothing},
		{[]string{"plan", "vm.ova!d-1.vmdk", "--partition", ""}, "1\t256 KiB from LBA 2048\n" + nothing},
		{[]string{"plan", "absent.img", "--partition", ""}, nothing},
		{[]string{"plan", "--partition", ""}, nothing},
	} {
		r := trueup(t, append([]string{"__complete"}, c.line...)...)
		require.Equal(t, 0, r.code, c.line)
		require.Equal(t, c.want, r.stdout, c.line)
		require.Regexp(t, "^Completion ended with directive: .*\n$", r.stderr, c.line)
	}
	root := Commands("test")
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		r := trueup(t, "__complete", cmd.Name(), "")
		require.Equal(t, 0, r.code, cmd.Name())
		require.NotEmpty(t, r.stdout, cmd.Name())
	}
}
