package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// libvirtDomain writes a domain with one disk, and returns its path.
func libvirtDomain(t *testing.T, format, disk string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vm.xml")
	text := fmt.Sprintf("<domain type='kvm'>\n<name>vm</name>\n<devices>\n<disk type='file' device='disk'>\n"+
		"<driver name='qemu' type='%s'/>\n<source file='%s'/>\n<target dev='vda'/>\n</disk>\n</devices>\n</domain>\n",
		format, disk)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// alignFindings returns the codes and texts of an align that must succeed.
func alignFindings(t *testing.T, args ...string) map[string]string {
	t.Helper()
	r := trueup(t, append([]string{"align", "--json"}, args...)...)
	require.Equal(t, 0, r.code, r.stderr)
	validate(t, r.stdout)
	out := map[string]string{}
	var report struct{ Findings []jsonFinding }
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &report))
	for _, f := range report.Findings {
		out[f.Code] = f.Text
	}
	return out
}

// TestDefinitions holds copies and exchanges against the definition of the machine, which stays as it is.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	disk := sampleDisk(t)
	link := filepath.Join(t.TempDir(), "link.vmdk")
	require.NoError(t, os.Symlink(disk, link))
	xml := libvirtDomain(t, "raw", link)
	vmx := filepath.Join(filepath.Dir(disk), "vm.vmx")
	require.NoError(t, os.WriteFile(vmx, []byte("scsi0:0.fileName = \"xp.vmdk\"\nctkEnabled = \"TRUE\"\n"), 0o600))
	before := folderSums(t, filepath.Dir(xml))

	dest := filepath.Join(t.TempDir(), "copy.img")
	found := alignFindings(t, "--libvirt-xml", xml, "--vmx", vmx, "--to", "raw", disk, dest)
	require.Contains(t, found["definition-path"], "line 1: the disk scsi0:0", "the last of two")
	require.Contains(t, found["definition-format"], "a VMX names VMDKs, and the disk is raw")
	found = alignFindings(t, "--libvirt-xml", xml, "--vmx", vmx, "--replace", disk)
	require.Equal(t, fmt.Sprintf("%s, line 5: the format is raw, and the disk is vmdk", xml),
		found["definition-format"])
	require.Equal(t, vmx+", line 2: changed blocks are tracked (ctkEnabled), and what was tracked is about the old "+
		"layout",
		found["definition-tracking"])
	require.NotContains(t, found, "definition-path")
	require.Contains(t, alignFindings(t, "--libvirt-xml", libvirtDomain(t, "vmdk", disk), "--replace",
		disk)["definition"],
		"nothing has to change")
	piped := run(t, "bash", "-c", `"$0" align --libvirt-xml <(cat "$1") --replace "$2"`, builtPath, xml, disk)
	require.Equal(t, 0, piped.code, piped.stderr)
	require.Contains(t, piped.stderr+piped.stdout, "/dev/fd/")
	require.Equal(t, before, folderSums(t, filepath.Dir(xml)))
}

// TestDefinitionsOfOtherMachines are refused before anything is written.
func TestDefinitionsOfOtherMachines(t *testing.T) {
	t.Parallel()
	disk := sampleDisk(t)
	dir := filepath.Dir(disk)
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	snapshot, broken := put("s.vmx", `sata0:0.fileName = "xp-000001.vmdk"`), put("b.xml", "<domain>")
	other, large := libvirtDomain(t, "vmdk", "/vm/other.vmdk"), put("large.vmx", "")
	require.NoError(t, os.Truncate(large, 2<<20))
	before := folderSums(t, dir)
	for want, c := range map[string]struct {
		code int
		args []string
	}{
		`names no disk that leads to ` + disk + `; it names "/vm/other.vmdk"`: {4, []string{"--libvirt-xml", other}},
		"a snapshot of the disk; consolidate":                                 {4, []string{"--vmx", snapshot}},
		"definition line 1: the file ends inside of <domain>":                 {1, []string{"--libvirt-xml", broken}},
		"more than 1048576 bytes":                                             {1, []string{"--vmx", large}},
		"no such file": {
			1, []string{"--vmx", filepath.Join(dir, "none")},
		},
		"a snapshot of the disk": {
			4, []string{"--in-place", "--vmx", snapshot},
		},
		"and DEST " + disk + " is a device; leave it out": {
			64, []string{"--device", "--vmx", snapshot, disk},
		},
	} {
		args := append([]string{"align"}, append(c.args, disk)...)
		if c.code != 64 && c.args[0] != "--in-place" {
			args = append(args, "--replace")
		}
		r := trueup(t, args...)
		require.Equal(t, c.code, r.code, "%s: %s", want, r.stderr)
		requireOneLine(t, r.stderr)
		require.Contains(t, r.stderr, want)
		require.Equal(t, before, folderSums(t, dir))
	}
	ova := filepath.Join(t.TempDir(), "x.ova")
	disktest.Run(t, "touch", ova)
	r := trueup(t, "align", "--vmx", snapshot, ova, ova+".ova")
	require.Equal(t, 64, r.code)
	require.Contains(t, r.stderr, ova+".ova is a package, from which a machine gets a definition of its own")
}

// TestDefinitionsOfMovesAndDevices holds a move in place, by which the disk grows, and a copy onto a device against the
// definition of the machine.
func TestDefinitionsOfMovesAndDevices(t *testing.T) {
	t.Parallel()
	disk := moveDisks["grows"](t)
	st, err := os.Stat(disk)
	require.NoError(t, err)
	volume := filepath.Join(t.TempDir(), "volume.xml")
	require.NoError(t, os.WriteFile(volume, fmt.Appendf(nil, "<volume>\n<capacity>%d</capacity>\n<target>\n"+
		"<path>%s</path>\n<format type='raw'/>\n</target>\n</volume>\n", st.Size(), disk), 0o600))
	device, _ := destDevice(t, st.Size()+1<<20)
	r := trueup(t, "align", "--json", "--device", "--libvirt-xml", libvirtDomain(t, "qcow2", disk), disk, device)
	require.Equal(t, 0, r.code, r.stderr)
	validate(t, r.stdout)
	require.Contains(t, r.stdout, fmt.Sprintf(`write <disk type='block'> and <source dev=\"%s\"/> there`, device))
	require.Contains(t, r.stdout, "the format is qcow2, and the disk is raw")

	found := alignFindings(t, "--in-place", "--libvirt-xml", volume, "--libvirt-xml", libvirtDomain(t, "raw", disk),
		disk)
	require.Equal(t, 0, trueup(t, "inspect", disk).code, "it was moved")
	now, err := os.Stat(disk)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%s, line 2: the capacity is %d bytes, and the aligned disk has %d", volume, st.Size(),
		now.Size()), found["definition-size"])
	require.Contains(t, found["definition"], "line 6: the disk vda is this one, and nothing has to change there")
	require.NotContains(t, found, "definition-path")
}
