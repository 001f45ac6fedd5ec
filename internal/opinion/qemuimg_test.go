package opinion

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// fake makes a qemu-img of a script.
func fake(t *testing.T, script string) string {
	t.Helper()
	return disktest.Program(t, QemuImg, script)
}

// made has qemu-img make an image of each format, with a byte at 1 MiB + 1.
func made(t *testing.T) map[string]disk {
	t.Helper()
	dir := t.TempDir()
	raw := filepath.Join(dir, "disk.raw")
	require.NoError(t, os.WriteFile(raw, []byte("head"), 0o600))
	require.NoError(t, os.Truncate(raw, 3<<20+512))
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{1}, 1<<20+1)
	require.NoError(t, errors.Join(err, f.Close()))
	all := map[string]disk{}
	for format, driver := range drivers {
		path := filepath.Join(dir, "copy, with: odd=name."+format)
		args := []string{"convert", "-f", "raw", "-O", driver}
		if driver == "vpc" {
			args = append(args, "-o", "force_size=on")
		}
		disktest.Run(t, QemuImg, append(args, raw, path)...)
		all[format] = disk{path: path, format: format}
	}
	return all
}

func TestImagesOfQemuImg(t *testing.T) {
	t.Parallel()
	program, all := disktest.Tool(t, QemuImg), made(t)
	require.ElementsMatch(t, image.Names(), slices.Collect(maps.Keys(all)))
	version, err := versionOf(t.Context(), program)
	require.NoError(t, err)
	require.Contains(t, disktest.Output(t, QemuImg, "--version"), " "+version+" ")
	flipped := filepath.Join(t.TempDir(), "flipped.raw")
	b := disktest.ReadFile(t, all["raw"].path)
	b[1<<20+1] ^= 1
	require.NoError(t, os.WriteFile(flipped, b, 0o600))
	longer := filepath.Join(t.TempDir(), "longer.raw")
	b[1<<20+1] ^= 1
	require.NoError(t, os.WriteFile(longer, append(b, make([]byte, 512)...), 0o600))
	for format, img := range all {
		want := []finding{{container, "no errors", Agrees}, {bytesOf, "identical", Agrees}}
		if format == "raw" || format == "vhd" {
			want[0] = finding{container, "it cannot check the format", NotLooked}
		}
		require.Equal(t, want, asked(t, program, all["raw"], img), format)
		// The offset is of the sector or block.
		want[1] = finding{bytesOf, "Content mismatch at offset 1048576!", Differs}
		require.Equal(t, want, asked(t, program, disk{path: flipped, format: "raw"}, img), format)
		want[1] = finding{bytesOf, "the disks differ in size", Differs}
		require.Equal(t, want, asked(t, program, disk{path: longer, format: "raw"}, img), format)
	}
	got := asked(t, program, all["raw"], disk{path: flipped, format: "vmdk"}) // it probes nothing
	require.Contains(t, got[0].said, "exit code 1")
	require.Equal(t, []Verdict{Failed, Failed}, []Verdict{got[0].verdict, got[1].verdict})
	got = asked(t, program, all["raw"], disk{path: flipped, format: "qed"})
	require.Len(t, got, 1)
	require.Contains(t, got[0].said, errFormat.Error())
}

// What qemu-img is asked.
const container, bytesOf = "check of the container", "every byte against the disk that trueup reads"

// asked has a program judge a copy, and returns its answers.
func asked(t *testing.T, program string, read, file disk) (found []finding) {
	t.Helper()
	for _, r := range askQemuImg(t.Context(), program, file, read) {
		found = append(found, finding{r.Asked, r.Said, r.Verdict})
	}
	return found
}

// A cluster of a qcow2 that two entries use is a corruption, and one that none uses is a leak.
func TestDamageThatQemuImgFinds(t *testing.T) {
	t.Parallel()
	program := disktest.Tool(t, QemuImg)
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   finding
	}{
		// Spec: QEMU, docs/interop/qcow2.txt, "Host cluster management": a refcount has 16 bits.
		"leak": {func(b []byte) []byte {
			b[2<<16+2*(len(b)>>16)+1] = 1
			return append(b, make([]byte, 1<<16)...)
		}, finding{container, "1 leaked clusters were found on the image, which are harmless", Agrees}},
		"corruption": {func(b []byte) []byte {
			b[2<<16+1] = 0
			return b
		}, finding{container, "1 errors were found on the image", Differs}},
	} {
		path := made(t)["qcow2"].path
		b := disktest.ReadFile(t, path)
		require.NoError(t, os.WriteFile(path, c.change(b), 0o600))
		img := disk{path: path, format: "qcow2"}
		require.Equal(t, c.want, asked(t, program, img, img)[0], name)
	}
}

func TestQemuImgThatLies(t *testing.T) {
	t.Parallel()
	const version = `[ $1 = --version ] && { echo qemu-img version 9.9.9; exit; }; `
	img := disk{path: "/nonexistent", format: "vmdk"}
	for script, want := range map[string]string{
		`exit 0`: "printed \"nothing\"",
		`echo No errors were found on the image.; exit 2`: "exit code 2",
		`echo 1 errors were found on the image.; exit 3`:  "exit code 3",
		`echo No errors were found on the image.; ` +
			`echo 2 leaked clusters were found on the image.`: "exit code 0",
		`echo Content mismatch at offset 7!`:                               "exit code 0",
		`echo Images are identical.; echo warning >&2`:                     "warning",
		`yes | head -c 99999; exit 1`:                                      "it printed more than 65536 bytes",
		`kill -9 $$`:                                                       "exit code -1",
		`echo "qemu-img: unexpected $(printf '\033]0;title\007')"; exit 7`: `\x1b]0;title`,
	} {
		got := asked(t, fake(t, version+script), img, img)
		require.Len(t, got, 2)
		for _, x := range got {
			require.Equal(t, Failed, x.verdict, script)
			require.Contains(t, x.said, want, script)
			require.Less(t, len(x.said), 1000)
			require.True(t, utf8.ValidString(x.said))
		}
		_, err := versionOf(t.Context(), fake(t, script))
		require.Error(t, err, script)
	}
	for script, want := range map[string]finding{
		`echo Images are identical.`:                {bytesOf, "identical", Agrees},
		`echo Content mismatch at offset 7!; false`: {bytesOf, "Content mismatch at offset 7!", Differs},
	} {
		require.Equal(t, want, asked(t, fake(t, version+script), img, img)[1])
	}
	got := asked(t, filepath.Join(t.TempDir(), "absent"), img, img)
	require.Equal(t, Failed, got[0].verdict)
	require.Contains(t, got[0].said, "no such file")
}

// A program that hangs is ended with all that it started: otherwise its pipes stay open.
func TestQemuImgThatHangs(t *testing.T) {
	t.Parallel()
	begun := filepath.Join(t.TempDir(), "begun")
	program := fake(t, "sleep 1000 &\n: > '"+begun+"'\nwait")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the time is over")
	end := make(chan error)
	go func() {
		_, err := run(ctx, program, "check")
		end <- err
	}()
	disktest.WaitFor(t, "the program to begin", func() bool {
		_, err := os.Stat(begun)
		return err == nil
	})
	cancel(why)
	require.ErrorIs(t, <-end, why)
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"guestfish 1.48.6": "1.48.6", "qemu-img version 9.2.0 (v9.2.0)": "9.2.0",
		"guestfish 1.52.0rhel=9,release=1": "1.52.0rhel", "guestfish": "", "other 1.2": "",
	} {
		got, err := versionOf(t.Context(), fake(t, "echo '"+line+"'"))
		require.Equal(t, want == "", err != nil, line)
		require.Equal(t, want, got)
	}
}

func FuzzQemuImgAnswers(f *testing.F) {
	f.Add(0, "No errors were found on the image.\n", "")
	f.Add(2, "\n1 errors were found on the image.\n", "")
	f.Add(1, "Content mismatch at offset 7!\n", "")
	f.Add(0, "Images are identical.\n", "warning")
	f.Fuzz(func(t *testing.T, code int, out, errs string) {
		e := ended{what: "fuzz", code: code, out: out, err: errs}
		said, v := e.checked()
		require.False(t, v == Agrees && code != 0 && code != 3)
		require.Less(t, len(said), 4000)
		_, v = e.compared()
		same := code == 0 && strings.TrimSpace(out) == "Images are identical." && errs == ""
		require.Equal(t, same, v == Agrees)
	})
}

// A container with many faults has a line for each on standard error, and its numbers count.
func TestManyComplaints(t *testing.T) {
	t.Parallel()
	const script = `yes "ERROR cluster 7 refcount=0 reference=1" | head -c 700000 >&2
		echo; echo 12285 errors were found on the image.; exit 2`
	e, err := run(t.Context(), "sh", "-c", script)
	require.NoError(t, err)
	said, v := e.checked()
	require.Equal(t, Differs, v)
	require.Equal(t, "12285 errors were found on the image", said)
}

func TestErrorOfATable(t *testing.T) {
	t.Parallel()
	row := func(v Verdict) Row { return Row{QemuImg + " 9", "all", "words", v} }
	own := Row{"trueup", "all", "identical", Agrees}
	for name, c := range map[string]struct {
		table   Table
		differs bool
		want    string // in the error; empty for none
	}{
		"one agrees":                     {Table{own, row(Agrees), row(NotLooked)}, false, ""},
		"none looked":                    {Table{own, row(NotLooked)}, false, "no judge checked anything"},
		"trueup alone":                   {Table{own}, false, "no judge checked anything"},
		"one failed":                     {Table{own, row(Agrees), row(Failed)}, false, "add --by libguestfs"},
		"one differs, and one fails":     {Table{own, row(Failed), row(Differs)}, true, ""},
		"trueup differs, and one agrees": {Table{{"trueup", "all", "words", Differs}, row(Agrees)}, true, ""},
	} {
		require.Equal(t, c.differs, c.table.Differs(), name)
		err := c.table.Err()
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
		require.ErrorIs(t, err, ondisk.ErrUnsupported, name)
	}
}
