package main

import (
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// madePackage is a package in the layout of ovftool: the OVF first, then the manifest, then disks and other files.
type madePackage struct {
	text   string            // the OVF; %[n]d is the size of file n
	files  map[string]string // folder of the packed files
	order  []string          // their names
	digest string            // algorithm of the manifest; may be empty
	signed bool
}

// ovfText is like those of VMware and VirtualBox, with further constructs of XML: single quotes, another prefix,
// comments.
const ovfText = `<?xml version="1.0" encoding="UTF-8"?>
<!-- made by hand; <File ovf:size="1"/> -->
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1" xmlns:vmw='http://www.vmware.com/schema/ovf'>
  <References>
    <File ovf:href="disk1.vmdk" ovf:id="file1" ovf:size="%[1]d"/>
    <File ovf:id="file2" ovf:size = '%[2]d' ovf:href='disk2.vmdk'></File>
    <File ovf:href="vm.nvram" ovf:id="file3" ovf:size="%[3]d"/>
  </References>
  <DiskSection>
    <Info>Virtual <![CDATA[<Disk ovf:capacity="1"/>]]> disks</Info>
    <Disk ovf:capacity="CAPACITY1" ovf:capacityAllocationUnits="UNITS1"
     ovf:diskId="vmdisk1" ovf:fileRef="file1" ovf:populatedSize="1"
     ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
    <Disk ovf:capacity="8388608" ovf:diskId="vmdisk2" ovf:fileRef="file2"
     ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized" ovf:populatedSize="2"/>
    <Disk ovf:capacity="16" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="scratch"/>
  </DiskSection>
  <VirtualSystem ovf:id="vm"><Info>ovf:capacity="8"</Info></VirtualSystem>
</Envelope>
`

// twoDisks is a package of the sample disk, which is misaligned, and of its aligned copy.
func twoDisks(t testing.TB) *madePackage {
	t.Helper()
	dir := t.TempDir()
	p := &madePackage{
		digest: "SHA256", order: []string{"disk1.vmdk", "disk2.vmdk", "vm.nvram"},
		files: map[string]string{},
	}
	p.text = strings.NewReplacer("CAPACITY1", "8", "UNITS1", "byte * 2^20").Replace(ovfText)
	p.files["disk1.vmdk"] = sampleDisk(t)
	p.files["disk2.vmdk"] = filepath.Join(dir, "aligned.vmdk")
	require.Equal(t, 0, trueup(t, "align", p.files["disk1.vmdk"], p.files["disk2.vmdk"]).code)
	p.files["vm.nvram"] = filepath.Join(dir, "nvram")
	require.NoError(t, os.WriteFile(p.files["vm.nvram"], noise("nvram", 8684), 0o600))
	return p
}

var newHash = map[string]func() hash.Hash{"SHA1": sha1.New, "SHA256": sha256.New, "SHA512": sha512.New}

// folder writes the package as an OVF with its files, and returns the path of the OVF.
func (p *madePackage) folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	var sizes []any
	for _, name := range p.order {
		disktest.Run(t, "cp", p.files[name], filepath.Join(dir, name))
		info := disktest.Stat(t, p.files[name])
		sizes = append(sizes, info.Size())
	}
	text := p.text
	if strings.Contains(text, "%[") {
		text = fmt.Sprintf(text, sizes...)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vm.ovf"), []byte(text), 0o644))
	if p.digest != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "vm.mf"), []byte(p.manifest(t, dir)), 0o644))
	}
	if p.signed {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "vm.cert"), []byte("a signature"), 0o644))
	}
	return filepath.Join(dir, "vm.ovf")
}

func (p *madePackage) manifest(t testing.TB, dir string) (text string) {
	t.Helper()
	for _, name := range append([]string{"vm.ovf"}, p.order...) {
		data := disktest.ReadFile(t, filepath.Join(dir, name))
		h := newHash[p.digest]()
		h.Write(data)
		text += fmt.Sprintf("%s(%s)= %s\n", p.digest, name, hex.EncodeToString(h.Sum(nil)))
	}
	return text
}

// ova packs the package with tar and returns its path.
func (p *madePackage) ova(t testing.TB, flags ...string) string {
	t.Helper()
	names := []string{"vm.ovf"} // in the order of the archive
	if p.digest != "" {
		names = append(names, "vm.mf")
	}
	if p.signed {
		names = append(names, "vm.cert")
	}
	names = append(names, p.order...)
	dir := filepath.Dir(p.folder(t))
	path := filepath.Join(t.TempDir(), "vm.ova")
	if len(flags) == 0 {
		flags = []string{"--format=ustar"}
	}
	disktest.Run(t, "tar", append(append(flags, "--owner=vm:64", "--group=vm:64", "--mtime=@1000000000", "-C", dir,
		"-cf", path), names...)...)
	return path
}

// Signatures of a machine with two disks.
const (
	sysSignature = 0xa1a1a1a1
	datSignature = 0xb2b2b2b2
)

// lettersFile is the file with the drive letters of such a machine.
const lettersFile = "WINDOWS/system32/config/SYSTEM"

// machine SYS DAT writes two raw disks: a Windows whose registry maps C: to its own disk and D: to the second one.
func (s *script) machine(args []string) {
	if len(args) != 2 {
		s.Fatalf("usage: machine SYS DAT")
	}
	empty := filepath.Join(s.t.TempDir(), "empty")
	hive := hiveforge.New(3, hiveforge.Key{Name: "SYSTEM", Keys: []hiveforge.Key{{Name: "Select"}}})
	s.Check(os.WriteFile(empty, hive, 0o600))
	text := reg(`\MountedDevices`, `\\DosDevices\\C:`, hexBytes(mountedValue(sysSignature, 63*sectorSize)),
		`\\DosDevices\\D:`, hexBytes(mountedValue(datSignature, 63*sectorSize)))
	system := windowsDisk{signature: sysSignature, sectors: 40960, volumes: []windowsVolume{
		{
			number: 1, kind: "fat16", typ: "6", start: 63, sectors: 32700, loads: "NTLDR",
			files: map[string]string{lettersFile: mergeHive(s.t, empty, text)},
		},
	}}
	data := windowsDisk{
		signature: datSignature, sectors: 20480,
		volumes: []windowsVolume{{number: 1, kind: "ntfs", typ: "7", start: 63, sectors: 16000}},
	}
	s.Check(os.Rename(system.make(s.t), s.place(args[0])))
	s.Check(os.Rename(data.make(s.t), s.place(args[1])))
}

// sampleDisk copies the small disk of testdata, whose partition starts at LBA 63, into a new folder and returns its
// path.
func sampleDisk(t testing.TB) string {
	t.Helper()
	data := disktest.ReadFile(t, "../../testdata/xp-lba63.vmdk")
	path := filepath.Join(t.TempDir(), "xp.vmdk")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}
