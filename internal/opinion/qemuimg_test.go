package opinion

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// fake makes a program of a script. Another process writes it: a file that this one had open to write might be busy.
func fake(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), QemuImg)
	disktest.RunInput(t, "#!/bin/sh\n"+script+"\n", "sh", "-c", `cat > "$0" && chmod 755 "$0"`, path)
	return path
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
		c, err := check(t.Context(), program, img)
		require.NoError(t, err, format)
		require.Equal(t, checked{supported: format != "raw" && format != "vhd"}, c, format)
		said, err := compareDisks(t.Context(), program, all["raw"], img)
		require.NoError(t, err, format)
		require.Empty(t, said, format)
		said, err = compareDisks(t.Context(), program, disk{path: flipped, format: "raw"}, img)
		require.NoError(t, err, format)
		require.Contains(t, said, "Content mismatch at offset 1048576!", format) // of the sector or block
		said, err = compareDisks(t.Context(), program, disk{path: longer, format: "raw"}, img)
		require.NoError(t, err, format)
		require.Equal(t, "the disks differ in size", said, format)
	}
	_, err = check(t.Context(), program, disk{path: flipped, format: "vmdk"})
	require.ErrorContains(t, err, "exit code 1") // it probes nothing
	_, err = check(t.Context(), program, disk{path: flipped, format: "qed"})
	require.ErrorIs(t, err, errFormat)
}

// A cluster of a qcow2 that two entries use is a corruption, and one that none uses is a leak.
func TestDamageThatQemuImgFinds(t *testing.T) {
	t.Parallel()
	program := disktest.Tool(t, QemuImg)
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   checked
	}{
		// Spec: QEMU, docs/interop/qcow2.txt, "Host cluster management": a refcount has 16 bits.
		"leak": {func(b []byte) []byte {
			b[2<<16+2*(len(b)>>16)+1] = 1
			return append(b, make([]byte, 1<<16)...)
		}, checked{supported: true, leaks: 1}},
		"corruption": {func(b []byte) []byte {
			b[2<<16+1] = 0
			return b
		}, checked{supported: true, corruptions: 1}},
	} {
		path := made(t)["qcow2"].path
		b := disktest.ReadFile(t, path)
		require.NoError(t, os.WriteFile(path, c.change(b), 0o600))
		got, err := check(t.Context(), program, disk{path: path, format: "qcow2"})
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
}

func TestQemuImgThatLies(t *testing.T) {
	t.Parallel()
	img := disk{path: "/nonexistent", format: "vmdk"}
	for script, want := range map[string]string{
		`exit 0`:                             "printed \"nothing\"",
		`echo '{"check-errors": 0}'; exit 2`: "exit code 2",
		`echo '{"check-errors": 0, "corruptions": 1}'`: "exit code 0",
		`echo '{}'`:                 "exit code 0",
		`echo '{"check-errors": 0'`: "exit code 0",
		`head -c 1000000 /dev/zero | tr '\0' x; exit 1`: "it printed more than 65536 bytes",
		`kill -9 $$`: "exit code -1",
		`echo "qemu-img: unexpected $(printf '\033]0;title\007')"; exit 7`: `\x1b]0;title`,
	} {
		program := fake(t, script)
		_, err := check(t.Context(), program, img)
		require.ErrorContains(t, err, want, script)
		require.Less(t, len(err.Error()), 1000)
		require.True(t, utf8.ValidString(err.Error()))
		_, err = compareDisks(t.Context(), program, img, img)
		require.Error(t, err, script)
		_, err = versionOf(t.Context(), program)
		require.Error(t, err, script)
	}
	for script, want := range map[string]string{
		`echo Images are identical.`:                "",
		`echo Content mismatch at offset 7!; false`: "Content mismatch at offset 7!",
	} {
		said, err := compareDisks(t.Context(), fake(t, script), img, img)
		require.NoError(t, err)
		require.Equal(t, want, said)
	}
	_, err := compareDisks(t.Context(), fake(t, `echo Images are identical.; echo warning >&2`), img, img)
	require.ErrorContains(t, err, "warning")
	_, err = check(t.Context(), filepath.Join(t.TempDir(), "absent"), img)
	require.ErrorIs(t, err, os.ErrNotExist)
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
		_, err := check(ctx, program, disk{path: "/nonexistent", format: "raw"})
		end <- err
	}()
	disktest.WaitFor(t, "the program to begin", func() bool {
		_, err := os.Stat(begun)
		return err == nil
	})
	cancel(why)
	require.ErrorIs(t, <-end, why)
}

func FuzzQemuImgAnswers(f *testing.F) {
	f.Add(0, `{"check-errors": 0}`, "")
	f.Add(2, `{"check-errors": 1, "corruptions": 2, "leaks": 3}`, "")
	f.Add(1, "Content mismatch at offset 7!\n", "")
	f.Add(0, "Images are identical.\n", "warning")
	f.Fuzz(func(t *testing.T, code int, out, errs string) {
		e := ended{what: "fuzz", code: code, out: out, err: errs}
		c, err := e.checked()
		require.False(t, err == nil && code == 0 && (c.errors != 0 || c.corruptions != 0))
		require.False(t, err != nil && len(err.Error()) > 4000)
		said, err := e.compared()
		same := err == nil && said == ""
		require.Equal(t, code == 0 && strings.TrimSpace(out) == "Images are identical." && errs == "", same)
	})
}

// A container with many faults has a line for each on standard error, and its numbers count.
func TestManyComplaints(t *testing.T) {
	t.Parallel()
	const script = `yes "ERROR cluster 7 refcount=0 reference=1" | head -c 700000 >&2
		echo '{"check-errors": 0, "corruptions": 12285}'; exit 2`
	e, err := run(t.Context(), "sh", "-c", script)
	require.NoError(t, err)
	c, err := e.checked()
	require.NoError(t, err)
	require.EqualValues(t, 12285, c.corruptions)
}
