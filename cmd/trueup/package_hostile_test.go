package main

import (
	"fmt"
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

// smallOVF names one disk of 8 MiB.
func smallOVF(href string) tarforge.Member {
	return tarforge.Member{Name: "vm.ovf", Data: fmt.Appendf(nil,
		`<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">`+
			`<References><File ovf:id="f" ovf:href="%s"/></References><DiskSection>`+
			`<Disk ovf:diskId="d" ovf:fileRef="f" ovf:capacity="8388608"/></DiskSection></Envelope>`, href)}
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

// TestHostilePackages has one broken package of each threat. internal/image/ova and internal/ovf have the others.
func TestHostilePackages(t *testing.T) {
	t.Parallel()
	data := disktest.ReadFile(t, "../../testdata/xp-lba63.vmdk")
	disk, good := tarforge.Member{Name: "disk.vmdk", Data: data}, smallOVF("disk.vmdk")
	link := tarforge.Member{Name: "disk.vmdk", Type: '2', Edit: func(h forge.Bytes) { h.Text(157, "/etc/passwd") }}
	manifest := tarforge.Member{Name: "vm.mf", Data: []byte(strings.Repeat("\n", 1e6))}
	// ovf is an archive of one OVF of this text.
	ovf := func(text string) []tarforge.Member { return []tarforge.Member{{Name: "vm.ovf", Data: []byte(text)}} }
	deep := strings.Replace(string(good.Data), "<References>", strings.Repeat("<a>", 1e6), 1)
	for _, c := range []hostilePackage{
		{
			"t42, a member above the archive",
			[]tarforge.Member{good, {Name: "../disk.vmdk", Data: data}},
			"reference",
			"leaves the archive",
		},
		{"t43, a symbolic link", []tarforge.Member{good, link}, "reference", "symbolic link"},
		{
			"t44, cut short", []tarforge.Member{good, {Name: "disk.vmdk", Size: "77777777777\x00"}}, "format", "size",
		},
		{"t45, a file above the folder", []tarforge.Member{smallOVF("../../etc/passwd"), disk}, "reference", "leaves"},
		{"t45, a million nested elements", ovf(deep), "limit", "deeper"},
		{"t45, 17 MiB of text", ovf(string(good.Data) + strings.Repeat(" ", 17<<20)), "limit", "ovf"},
		{"t45, 16 MiB of attributes", ovf("<Envelope " + strings.Repeat(`a="" `, 3<<20) + "/>"), "limit", "attributes"},
		{"t46, a million lines", []tarforge.Member{good, manifest, disk}, "limit", "lines"},
	} {
		t.Run(c.name, c.run)
	}
}
