package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
)

// hostilePackage is an archive from a stranger and the error that all commands end with.
type hostilePackage struct {
	name    string
	archive []tarforge.Member
	code    string
	says    string
}

// smallOVF names one disk of 8 MiB; file and disk are further attributes.
func smallOVF(href, file, disk string) tarforge.Member {
	return tarforge.Member{Name: "vm.ovf", Data: fmt.Appendf(nil,
		`<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">`+
			`<References><File ovf:id="f" ovf:href="%s" %s/></References><DiskSection>`+
			`<Disk ovf:diskId="d" ovf:fileRef="f" ovf:capacity="8388608" %s/></DiskSection></Envelope>`,
		href, file, disk)}
}

// rawOVF is an archive whose OVF has the given text.
func rawOVF(text string) []tarforge.Member {
	return []tarforge.Member{{Name: "vm.ovf", Data: []byte(text)}}
}

func (h hostilePackage) run(t *testing.T) {
	t.Helper()
	dir, out := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "vm.ova")
	append(tarforge.New(h.archive...), tarforge.End()...).Write(t, path)
	before := folderState(t, dir)
	ends := measure(t, []string{"inspect", "--json", path}, []string{"plan", "--json", path},
		[]string{"align", "--json", path, filepath.Join(out, "out.ova")}, []string{
			"align", "--json", path,
			filepath.Join(out, "out.ovf"),
		},
		[]string{"convert", "--json", path, filepath.Join(out, "out.vmdk")})
	for _, end := range ends {
		require.Equal(t, 1, end.code, end.stderr)
		requireClean(t, end.stdout, end.stderr)
		f := parseFailure(t, end)
		require.NotNil(t, f.Error, end.stdout)
		require.Equal(t, h.code, f.Error.Code, f.Error.Message)
		require.Contains(t, f.Error.Message, h.says)
		require.Contains(t, end.stderr, "vm.ova")
	}
	require.Equal(t, before, folderState(t, dir))
	require.Empty(t, folderNames(t, out), "neither DEST nor a part of it")
}

// gnu makes a header one of GNU tar's own format.
func gnu(h forge.Bytes) { h.Text(257, "ustar  \x00") }

func TestHostilePackages(t *testing.T) {
	t.Parallel()
	for _, c := range hostilePackages(t) {
		t.Run(c.name, c.run)
	}
}

// hostilePackages are broken packages, but for what needs a valid disk.
func hostilePackages(t testing.TB) []hostilePackage {
	t.Helper()
	data := disktest.ReadFile(t, "../../testdata/xp-lba63.vmdk")
	disk := tarforge.Member{Name: "disk.vmdk", Data: data}
	good := smallOVF("disk.vmdk", "", "")
	mf := func(text string) tarforge.Member { return tarforge.Member{Name: "vm.mf", Data: []byte(text)} }
	cases := []hostilePackage{
		// Names.
		{
			"t42, a member above the archive",
			[]tarforge.Member{good, {Name: "../disk.vmdk", Data: data}},
			"reference",
			"leaves the archive",
		},
		{
			"t42, an absolute name",
			[]tarforge.Member{good, {Name: "/disk.vmdk", Data: data}},
			"reference",
			"leaves the archive",
		},
		{
			"t42, a member above the archive of Windows",
			[]tarforge.Member{good, {Name: `..\disk.vmdk`, Data: data}},
			"reference", `..\\disk.vmdk`,
		},
		{"t42, two members of one name", []tarforge.Member{good, disk, disk}, "reference", "twice"},
		{
			"t42, a folder by the name of a file",
			[]tarforge.Member{good, disk, {Name: "disk.vmdk/", Type: '5'}},
			"reference", "twice",
		},
		{
			"t42, a file by the name of a folder",
			[]tarforge.Member{good, {Name: "disk.vmdk/", Type: '5'}, disk},
			"reference", "twice",
		},
		{
			"t42, two envelopes",
			[]tarforge.Member{good, {Name: "other.ovf", Data: good.Data}, disk},
			"reference",
			"second ovf",
		},
		{"t42, 300 folders deep", []tarforge.Member{good, {
			Name: "././@LongLink", Type: 'L',
			Data: []byte(strings.Repeat("d/", 300) + "x\x00"),
		}, disk}, "reference", "deeper"},
		// Numbers and sparse members.
		{
			"t44, a sparse member",
			[]tarforge.Member{good, {Name: "disk.vmdk", Type: 'S', Data: data, Edit: gnu}},
			"unsupported", "sparse",
		},
		{
			"t44, a size below zero",
			[]tarforge.Member{good, {Name: "disk.vmdk", Size: strings.Repeat("\xff", 12)}},
			"format", "number",
		},
		{"t44, a wrong sum", []tarforge.Member{
			good,
			{Name: "disk.vmdk", Data: data, Sum: func(n int) int { return n ^ 1 }},
		}, "format", "checksum"},
		{"t44, cut short", []tarforge.Member{good, {Name: "disk.vmdk", Size: "77777777777\x00"}}, "format", "size"},
		// The OVF.
		{
			"t45, a file above the folder",
			[]tarforge.Member{smallOVF("../../etc/passwd", "", ""), disk},
			"reference",
			"leaves",
		},
		{
			"t45, a file of the web",
			[]tarforge.Member{smallOVF("http://192.0.2.1/disk.vmdk", "", ""), disk},
			"reference",
			"leaves",
		},
		{
			"t45, escaped dots",
			[]tarforge.Member{smallOVF("%2e%2e/%2E%2E/etc/passwd", "", ""), disk},
			"reference",
			"leaves",
		},
		{"t45, an absolute path", []tarforge.Member{smallOVF("/etc/passwd", "", ""), disk}, "reference", "leaves"},
		{
			"t45, control characters",
			[]tarforge.Member{smallOVF("&#x9b;disk.vmdk", "", ""), disk},
			"reference",
			"disk.vmdk",
		},
		{
			"t45, a missing file",
			[]tarforge.Member{smallOVF("other.vmdk", "", ""), disk},
			"reference",
			"none of that name",
		},
		{
			"t45, gzip",
			[]tarforge.Member{smallOVF("disk.vmdk", `ovf:compression="gzip"`, ""), disk},
			"unsupported",
			"compression",
		},
		{"t45, chunks", []tarforge.Member{
			smallOVF("disk.vmdk", `ovf:chunkSize="4096"`, ""),
			{Name: "disk.vmdk.000000000", Data: data[:4096]},
		}, "unsupported", "chunk"},
		{
			"t45, a difference",
			[]tarforge.Member{smallOVF("disk.vmdk", "", `ovf:parentRef="x"`), disk},
			"unsupported",
			"parentRef",
		},
		{"t45, a unit that overflows", []tarforge.Member{smallOVF("disk.vmdk", "",
			`ovf:capacityAllocationUnits="byte * 2^62"`), disk}, "format", "capacity"},
		{"t45, a million nested elements", rawOVF(strings.Replace(string(good.Data), "<References>",
			strings.Repeat("<a>", 1e6), 1)), "limit", "deeper"},
		{"t45, 17 MiB of text", rawOVF(string(good.Data) + strings.Repeat(" ", 17<<20)), "limit", "ovf"},
		{
			"t45, 16 MiB of attributes", rawOVF("<Envelope " + strings.Repeat(`a="" `, 3<<20) + "/>"), "limit",
			"attributes",
		},
		{
			"t45, entities", rawOVF(`<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>` +
				string(good.Data)),
			"reference", "document type",
		},
		{"t45, no envelope", rawOVF("<Envelope/>"), "format", "root element"},
		{"no ovf", []tarforge.Member{disk}, "unsupported", "no .ovf"},
		// The manifest.
		{
			"t46, a name outside",
			[]tarforge.Member{good, mf("SHA1(../x)= " + strings.Repeat("0", 40)), disk},
			"reference", "leaves",
		},
		{"t46, a million lines", []tarforge.Member{good, mf(strings.Repeat("\n", 1e6)), disk}, "limit", "lines"},
		{"t46, no manifest", []tarforge.Member{good, mf("hello"), disk}, "format", "line 1"},
	}
	// Kinds.
	for kind, name := range map[byte]string{
		'1': "hard link", '2': "symbolic link", '3': "character device",
		'4': "block device", '5': "folder", '6': "FIFO", 'Z': "kind",
	} {
		link := tarforge.Member{Name: "disk.vmdk", Type: kind, Edit: func(h forge.Bytes) { h.Text(157, "/etc/passwd") }}
		cases = append(cases, hostilePackage{"t43, " + name, []tarforge.Member{good, link}, "reference", name})
	}
	return cases
}

// A digest that does not fit is found before anything is written; a digest that is not known is a warning, unless it
// would have to be computed again.
func TestDigestsThatDoNotFit(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	path := p.ova(t)
	out := filepath.Join(t.TempDir(), "out.ova")
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, what := range []string{"disk1.vmdk", "disk2.vmdk", "vm.nvram", "vm.ovf"} {
		old, err := hex.DecodeString(match(t, string(whole), `SHA256\(`+what+`\)= ([0-9a-f]+)`))
		require.NoError(t, err)
		wrong := append([]byte{old[0] ^ 1}, old[1:]...)
		bad := filepath.Join(t.TempDir(), "vm.ova")
		require.NoError(t, os.WriteFile(bad, []byte(strings.Replace(string(whole), hex.EncodeToString(old),
			hex.EncodeToString(wrong), 1)), 0o644))
		for _, command := range []string{"align", "convert"} {
			answer := trueupJSON[jsonError](t, 1, command, bad, out)
			require.Equal(t, "verify", answer.Error.Code)
			require.Contains(t, answer.Error.Message, what)
		}
		require.Equal(t, 3, trueup(t, "inspect", bad).code, "inspect reads no digests")
	}
	missing := filepath.Join(t.TempDir(), "vm.ova")
	require.NoError(t, os.WriteFile(missing, []byte(strings.Replace(string(whole), "SHA256(vm.nvram)",
		"SHA256(vm.nvrap)", 1)), 0o644))
	require.Equal(t, "verify", trueupJSON[jsonError](t, 1, "align", missing, out).Error.Code)
	require.Empty(t, folderNames(t, filepath.Dir(out)))

	for member, code := range map[string]int{"vm.nvram": 0, "disk1.vmdk": 1, "vm.ovf": 1} {
		odd := filepath.Join(t.TempDir(), "vm.ova")
		require.NoError(t, os.WriteFile(odd, []byte(strings.Replace(string(whole), "SHA256("+member, "BLAKE2("+member,
			1)), 0o644))
		answer := trueupJSON[jsonPackageInspect](t, 3, "inspect", odd)
		require.Equal(t, "manifest-algorithm", answer.Findings[0].Code)
		require.Equal(t, "warning", answer.Findings[0].Severity)
		require.Equal(t, code, trueup(t, "align", "--force", odd, out).code, member)
	}
}

// A package without a disk is right, and nothing can be done with it.
func TestPackageWithoutDisks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "vm.ova")
	append(tarforge.New(rawOVF(`<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"/>`)...),
		tarforge.End()...).Write(t, path)
	require.Empty(t, trueupJSON[jsonPackageInspect](t, 0, "inspect", path).Disks)
	require.Contains(t, trueup(t, "inspect", path).stdout, "no disk of the package has a file")
	for _, args := range [][]string{
		{"plan", path},
		{"align", path, path + "-out.ova"},
		{"convert", path, path + "-out.vmdk"},
	} {
		answer := trueupJSON[jsonError](t, 1, args...)
		require.Equal(t, "unsupported", answer.Error.Code)
		require.Contains(t, answer.Error.Message, "no disk with a file")
	}
	require.Equal(t, []string{"vm.ova"}, folderNames(t, filepath.Dir(path)))
}

// A folder's files are those beside the OVF and nothing else: no link is followed, no device is opened.
func TestHostileFolderPackages(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	for name, spoil := range map[string]func(t *testing.T, disk string){
		"a link out of the folder": func(t *testing.T, disk string) {
			t.Helper()
			require.NoError(t, os.Symlink(p.files["disk1.vmdk"], disk))
		},
		"a FIFO": func(t *testing.T, disk string) {
			t.Helper()
			disktest.Run(t, "mkfifo", disk)
		},
		"a folder": func(t *testing.T, disk string) {
			t.Helper()
			require.NoError(t, os.Mkdir(disk, 0o755))
		},
		"nothing": func(*testing.T, string) {},
	} {
		t.Run(name, func(t *testing.T) {
			path := p.folder(t)
			disk := filepath.Join(filepath.Dir(path), "disk1.vmdk")
			require.NoError(t, os.Remove(disk))
			spoil(t, disk)
			out := filepath.Join(t.TempDir(), "out.ova")
			for _, args := range [][]string{{"inspect", "--json", path}, {"align", "--json", path, out}} {
				end := measure(t, args)[0]
				require.Equal(t, 1, end.code, end.stderr)
				require.Equal(t, "reference", parseFailure(t, end).Error.Code)
			}
			require.NoFileExists(t, out)
		})
	}
}

// The disks of a package do not hide each other: one is broken, the report has the other.
func TestOneBrokenDiskOfTwo(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	broken := filepath.Join(t.TempDir(), "broken.vmdk")
	require.NoError(t, os.WriteFile(broken, []byte("ABCD"), 0o644))
	p.files["disk1.vmdk"] = broken
	answer := trueupJSON[jsonPackageInspect](t, 1, "inspect", p.ova(t))
	require.Equal(t, "format", answer.Disks[0].Error.Code)
	require.Nil(t, answer.Disks[0].Inspect)
	require.Equal(t, "aligned", answer.Disks[1].Inspect.Verdict)
}

// Two OVAs of the wild: the disk of one is four bytes, that of the other is not there.
func TestCorpusPackages(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"glance/testserver.ova":         "format",
		"glance/testserver-no-disk.ova": "reference",
	} {
		path := disktest.Corpus(t, name)
		answer := trueupJSON[jsonPackageInspect](t, 1, "inspect", path)
		require.Equal(t, "vm.ovf", strings.Replace(answer.Package.Members[0].Name, "testserver", "vm", 1))
		require.Equal(t, "testserver-disk1.vmdk", answer.Disks[0].Member)
		require.Equal(t, int64(8<<30), answer.Disks[0].Capacity)
		require.Equal(t, code, answer.Disks[0].Error.Code)
		require.Equal(t, "manifest-missing", answer.Findings[0].Code)
		out := filepath.Join(t.TempDir(), "out.ova")
		require.Equal(t, code, trueupJSON[jsonError](t, 1, "align", path, out).Error.Code)
		require.NoFileExists(t, out)
	}
}
