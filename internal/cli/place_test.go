package cli

import (
	"bytes"
	"context"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// ended is the result of a run of a command.
type ended struct {
	code           int
	stdout, stderr string
}

// trueup runs a command in this process.
func trueup(t *testing.T, args ...string) ended {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := Run(context.Background(), "test", args, &stdout, &stderr)
	return ended{code, stdout.String(), stderr.String()}
}

// writing is a file that a command writes: the command line with PLACE for its name.
type writing struct {
	name, role string // role: report, script, copy, force
	args       []string
}

var writings = []writing{
	{"inspect", "report", []string{"inspect", "src.img", "--out", "PLACE"}},
	{"plan", "report", []string{"plan", "src.img", "--out", "PLACE"}},
	{"verify", "report", []string{"verify", "src.img", "copy.img", "--out", "PLACE"}},
	{"version", "report", []string{"version", "--out", "PLACE"}},
	{"align, report", "report", []string{"align", "src.img", "new.img", "--out", "PLACE"}},
	{"convert, report", "report", []string{"convert", "src.img", "new.img", "--out", "PLACE"}},
	{"package, report", "report", []string{"align", "src.ova", "new.ova", "--out", "PLACE"}},
	{"scan", "report", []string{"scan", "--isolation", "none", "src.img", "--out", "PLACE"}},
	{"scan, json", "report", []string{"scan", "--isolation", "none", "src.img", "--json", "--out", "PLACE"}},
	{"scan, script", "script", []string{"scan", "--isolation", "none", "src.img", "--script", "PLACE"}},
	{"align", "copy", []string{"align", "src.img", "PLACE", "--to", "raw"}},
	{"convert", "copy", []string{"convert", "src.img", "PLACE", "--to", "raw"}},
	{"align --force", "force", []string{"align", "--force", "src.img", "PLACE", "--to", "raw"}},
	{"convert --force", "force", []string{"convert", "--force", "src.img", "PLACE", "--to", "raw"}},
}

// A DEST that is a block device is written as one. This one does not exist in the kernel.
const (
	unlisted = "1 /sys does not list the device"
	forced   = "64 is a block device: replace --force with --overwrite-content"
)

// standing is an existing file at a name. want has for each role the exit code and the message, which the name
// precedes; "0" for a file that is written.
type standing struct {
	name string
	make func(t *testing.T)
	want map[string]string
	// through is the file that is written if the name is a link.
	through string
}

// every returns the expectation text for all roles, except for the pairs of role and expectation in differ.
func every(text string, differ ...string) map[string]string {
	m := map[string]string{"report": text, "script": text, "copy": text, "force": text}
	for i := 0; i < len(differ); i += 2 {
		m[differ[i]] = differ[i+1]
	}
	return m
}

func put(t *testing.T, name string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, content, 0o640))
}

// tiny is an aligned disk.
func tiny() forge.Bytes {
	return tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 2048, Sectors: 512})
}

func putFlat(t *testing.T, extent string) {
	t.Helper()
	put(t, "flat.vmdk", []byte(vmdkforge.Descriptor("monolithicFlat", `RW 2 FLAT "`+extent+`" 0`)))
	put(t, extent, bytes.Repeat([]byte("text"), 256))
}

const (
	overImage = "64 would overwrite an image"
	imageName = "64 has the name of an image"
	machine   = "64 has the name of a virtual machine's own file"
	exists    = "1 exists; choose another name, or --force to replace it"
	aFolder   = "64 is a folder: name the file, such as "
	aLink     = "64 is a link to "
	aSpecial  = "64 is a device, a pipe or another special file"
	notOurs   = "64 was edited, or not written by trueup"
)

// forgedPackage is a package with one disk.
var forgedPackage = sync.OnceValue(func() []byte {
	disk := vmdkforge.NewStream(tiny(), vmdkforge.StreamLayout{})
	members := []tarforge.Member{{Name: "vm.ovf", Data: []byte(envelope)}, {Name: "d.vmdk", Data: disk.Bytes}}
	return append(tarforge.New(members...), tarforge.End()...)
})

// envelope is the OVF of a machine with one disk.
const envelope = `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
<References><File ovf:href="d.vmdk" ovf:id="f"/></References>
<DiskSection><Info/><Disk ovf:capacity="1310720" ovf:diskId="d" ovf:fileRef="f"/></DiskSection>
<VirtualSystem ovf:id="v"><Info/><Name>v</Name></VirtualSystem></Envelope>`

func requirePlace(t *testing.T, s standing, w writing) {
	t.Helper()
	before := state(t)
	args := slices.Clone(w.args)
	args[slices.Index(args, "PLACE")] = s.name
	r := trueup(t, args...)
	after := state(t)
	delete(after, "new.img")
	delete(after, "new.ova")
	code, text, _ := strings.Cut(s.want[w.role], " ")
	switch code {
	case "stdout":
		require.Zero(t, r.code, r.stderr)
		require.NotEmpty(t, r.stdout)
		require.Equal(t, before, after)
		return
	case "0":
		require.Zero(t, r.code, r.stderr)
		if w.role == "report" {
			require.Empty(t, r.stdout)
		}
		written := s.name
		if s.through != "" {
			written = s.through
		}
		require.NotEqual(t, before[written], after[written])
		require.True(t, strings.HasPrefix(after[written], "-"), "a plain file: %s", after[written])
		delete(before, written)
		delete(after, written)
		require.Equal(t, before, after, "nothing else has changed")
		return
	}
	require.Equal(t, code, map[int]string{1: "1", 4: "4", 64: "64"}[r.code], r.stderr)
	require.Contains(t, r.stderr, s.name)
	require.Contains(t, r.stderr, text)
	require.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line")
	if code != "1" && w.role != "script" && s.want[w.role] != forced {
		require.NotContains(t, r.stderr, "--force", "it would not help")
	}
	require.Equal(t, before, after)
}

// state returns the entries of the working directory by path: the content of a file, or the type of another entry.
func state(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(".", func(path string, _ fs.DirEntry, _ error) error {
		st, err := os.Lstat(path)
		if err != nil || path == "." {
			return err
		}
		out[path] = st.Mode().Type().String()
		if st.Mode().IsRegular() {
			b := disktest.ReadFile(t, path)
			out[path] = "-" + string(b)
		}
		return nil
	}))
	return maps.Clone(out)
}

// own makes a new folder with a disk the working directory.
func own(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	tiny().Write(t, "src.img")
}

func read(t *testing.T, name string) string {
	t.Helper()
	b := disktest.ReadFile(t, name)
	return string(b)
}

// A killed run had the same process ID, or a program in another container has it.
func TestAReportWithItsOwnNameTaken(t *testing.T) {
	own(t)
	partial := ".report." + strconv.Itoa(os.Getpid()) + ".partial"
	put(t, partial, []byte("half"))
	require.Zero(t, trueup(t, "inspect", "src.img", "--out", "report").code)
	require.NoFileExists(t, partial)
	put(t, partial, tiny())
	r := trueup(t, "inspect", "src.img", "--out", "report")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, partial+": file exists")
	require.Equal(t, string(tiny()), read(t, partial))
}
