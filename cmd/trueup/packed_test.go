package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// packedFolder returns a folder with a real disk as x.img and x.vmdk, a flat VMDK in sub, and all of that packed by the
// programs that people use.
func packedFolder(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"qemu-img", "gzip", "xz", "zstd", "bzip2", "tar", "zip"} {
		disktest.Tool(t, tool)
	}
	recipe := []string{"cmd/trueup/packed_test.go", "testdata/xp-lba63.vmdk"}
	kept := disktest.Made(t, "packed", recipe, func(dir string) { fillPackedFolder(t, dir) })
	dir := t.TempDir()
	disktest.Run(t, "cp", "-a", "--sparse=always", kept+"/.", dir)
	return dir
}

func fillPackedFolder(t *testing.T, dir string) {
	t.Helper()
	inFolder(t, dir, `
		qemu-img convert -O raw "$1" x.img; qemu-img convert -O vmdk "$1" x.vmdk; mkdir sub
		qemu-img convert -O vmdk -o subformat=monolithicFlat "$1" sub/flat.vmdk
		gzip -k x.img; gzip -k x.vmdk; xz -k -0 --block-size=1MiB x.img; zstd -q x.img; bzip2 -k x.img
		head -c 3000000 x.img | gzip > two.img.gz; tail -c +3000001 x.img | gzip >> two.img.gz
		head -c 3000000 x.img | xz -0 > two.img.xz; tail -c +3000001 x.img | xz -0 >> two.img.xz
		tar -cf flat.tar sub; tar -czf flat.tar.gz sub; tar -cJf flat.tar.xz sub; zip -qr flat.zip sub
		tar -I zstd -cf flat.tar.zst sub; tar -cjf flat.tar.bz2 sub
		echo '{"format":"qcow2","provider":"libvirt","virtual_size":1}' > metadata.json; echo > Vagrantfile
		qemu-img convert -O qcow2 "$1" box.img; tar -czf vm.box metadata.json Vagrantfile box.img; rm box.img
		zip -q two.zip x.img x.vmdk metadata.json; tar -cf two.tar x.img sub; rm metadata.json Vagrantfile
	`, sampleDisk(t))
}

// inFolder runs a script in a folder.
func inFolder(t *testing.T, dir, script string, args ...string) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// packedNames are packed images, and the same ones as they are; empty for one whose container is not there unpacked.
var packedNames = map[string]string{
	"x.img.gz": "x.img", "x.img.xz": "x.img", "x.img.zst": "x.img", "x.img.bz2": "x.img", "x.vmdk.gz": "x.vmdk",
	"two.img.gz": "x.img", "two.img.xz": "x.img",
	"flat.tar": "sub/flat.vmdk", "flat.tar.gz": "sub/flat.vmdk", "flat.tar.xz": "sub/flat.vmdk",
	"flat.tar.zst": "", "flat.tar.bz2": "", "flat.zip": "sub/flat.vmdk", "flat.zip!sub/flat.vmdk": "",
	"vm.box": "", "vm.box!box.img": "", // a qcow2
	"two.zip!x.img": "x.img", "two.zip!x.vmdk": "x.vmdk", "two.tar!x.img": "x.img",
	"two.tar!sub/flat.vmdk": "",
}

// A packed image is inspected, planned and aligned as the image in it, and leaves nothing where it was unpacked.
func TestPackedImages(t *testing.T) {
	t.Parallel()
	dir := packedFolder(t)
	spool, aligned := t.TempDir(), filepath.Join(t.TempDir(), "aligned.img")
	require.Equal(t, 0, trueup(t, "align", "-q", "--to", "raw", filepath.Join(dir, "x.img"), aligned).code)
	for name, plain := range packedNames {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			dest := filepath.Join(t.TempDir(), "dest.img")
			r := trueup(t, "align", "-q", "--to", "raw", path, dest)
			require.Equal(t, 0, r.code, r.stderr)
			require.Equal(t, sha256Of(t, aligned), sha256Of(t, dest))
			require.Equal(t, []string{"dest.img"}, namesIn(t, filepath.Dir(dest)))
			require.Equal(t, 0, trueup(t, "verify", "--spool", spool, path, dest).code)
			if plain == "" {
				return
			}
			for _, command := range []string{"inspect", "plan"} {
				want := packedJSON(t, command, filepath.Join(dir, plain))
				require.Equal(t, want, packedJSON(t, command, "--spool", spool, path))
			}
			require.Empty(t, namesIn(t, spool))
		})
	}
}

// namesIn lists a folder.
func namesIn(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// packedJSON returns the result of a command without what tells a packed image from one that is not.
func packedJSON(t *testing.T, args ...string) map[string]any {
	t.Helper()
	r := trueup(t, append(args, "--json")...)
	require.Contains(t, []int{0, 3}, r.code, r.stderr)
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &out))
	image := out["image"].(map[string]any)
	for _, field := range []string{"path", "files", "unpacked"} {
		delete(image, field)
	}
	if usage, ok := image["usage"].(map[string]any); ok {
		delete(usage, "stored_bytes") // holes of the file count, and these are those of what unpacks
	}
	delete(out, "cost")
	return out
}

// What is packed is named, and so is what the commands cannot do with it.
func TestPackedImagesAreNamed(t *testing.T) {
	t.Parallel()
	dir := packedFolder(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	type shown struct {
		Image struct {
			Unpacked struct {
				File, Kind, Member string
				Stored             int64 `json:"stored_bytes"`
				Unpacked           int64 `json:"unpacked_bytes"`
			}
		}
	}
	got := shown{}
	r := trueup(t, "inspect", "--json", "--spool", dir, at("vm.box"))
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &got), r.stderr)
	require.Equal(t, "vm.box gzip box.img",
		got.Image.Unpacked.File+" "+got.Image.Unpacked.Kind+" "+got.Image.Unpacked.Member)
	st, err := os.Stat(at("vm.box"))
	require.NoError(t, err)
	require.Equal(t, st.Size(), got.Image.Unpacked.Stored)
	require.Contains(t, trueup(t, "inspect", "--spool", dir, at("x.img.gz")).stdout, "Packed     gzip, 8 MiB")

	dest := filepath.Join(t.TempDir(), "d.vmdk")
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{64, "'" + at("two.zip") + "!x.img', '" + at("two.zip") + "!x.vmdk'", []string{"align", at("two.zip"), dest}},
		{64, "the archive has no file \"y\"", []string{"align", at("two.zip") + "!y", dest}},
		{64, "is no archive", []string{"align", at("x.img.gz") + "!x.img", dest}},
		{4, "give --spool DIR", []string{"plan", at("x.img.gz")}},
		{4, "trueup replace needs an image in a file of its own", []string{"replace", at("x.img.gz")}},
		{4, "trueup move needs an image in a file of its own", []string{"move", at("flat.tar")}},
		{4, "trueup view needs an image in a file of its own", []string{"view", at("flat.tar"), dest}},
		{4, "trueup serve needs an image in a file of its own", []string{"serve", "--once", at("x.img.xz")}},
		{4, "trueup convert", []string{"convert", at("x.img.xz"), strings.TrimSuffix(dest, "vmdk") + "ova"}},
		{1, "unpacking in " + dest, []string{"inspect", "--spool", dest, at("x.img.xz")}},
	} {
		r := trueup(t, c.args...)
		require.Equal(t, c.code, r.code, "%q\n%s", c.args, r.stderr)
		require.Contains(t, r.stderr, c.says)
	}
	require.Empty(t, namesIn(t, filepath.Dir(dest)))
}

// A damaged stream is an error that says so, and leaves nothing.
func TestDamagedPackedImages(t *testing.T) {
	t.Parallel()
	dir := packedFolder(t)
	dest := filepath.Join(t.TempDir(), "d.img")
	for _, name := range []string{"x.img.gz", "x.img.xz", "x.img.zst", "x.img.bz2", "flat.tar.gz", "flat.zip"} {
		path := filepath.Join(dir, name)
		data := disktest.ReadFile(t, path)
		require.NoError(t, os.WriteFile(path, data[:len(data)-len(data)/3], 0o600))
		r := trueup(t, "align", "--json", path, dest)
		require.Equal(t, 1, r.code, r.stderr)
		require.Contains(t, r.stdout, `"code": "format"`)
		require.Empty(t, namesIn(t, filepath.Dir(dest)))
	}
}

// A few bytes can stand for any number of them: a full folder and a signal end that, and leave nothing.
func TestBombs(t *testing.T) {
	t.Parallel()
	dir, spool := t.TempDir(), t.TempDir()
	bomb := filepath.Join(dir, "bomb.img.zst")
	inFolder(t, dir, `yes 'not a zero' | head -c 300M | zstd -q --stream-size=314572800 > bomb.img.zst
		head -c 256M /dev/zero | zstd -q > zeros
		for i in $(seq 800); do cat zeros; done > zeros.img.zst`)
	r := privateMount(t, "size=160m", spool, builtPath, "inspect", "--spool", spool, bomb)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "trying all the same")
	require.Contains(t, r.stderr, "were unpacked, not all")
	require.Empty(t, r.stdout, "names of files that are left")

	cmd := exec.Command(builtPath, "convert", "--progress", "json", filepath.Join(dir, "zeros.img.zst"),
		filepath.Join(spool, "zeros.img"))
	out, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines, signalled := bufio.NewScanner(out), false
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"phase":"unpack"`) && !signalled {
			signalled = true
			require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		}
	}
	require.Error(t, cmd.Wait())
	require.True(t, signalled)
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	require.Empty(t, namesIn(t, spool))
}

// A scan judges packed images by where their partitions start, as the image that is in them, and proposes no copy.
func TestScanOfPackedImages(t *testing.T) {
	t.Parallel()
	dir := packedFolder(t)
	inFolder(t, dir, `
		for f in gpt.img far.img near.img; do truncate -s 300M $f; done
		printf 'label: gpt\nfirst-lba: 34\nstart=2047,size=100000\nstart=200704,size=400000\n' | sfdisk -q gpt.img
		printf 'start=2048,size=100000,type=83\nstart=102400,type=5\nstart=104448,size=20000\nstart=126976\n' |
			sfdisk -q far.img
		printf 'start=2048,size=2048,type=83\nstart=4096,type=5\nstart=6144,size=20000\nstart=28672,size=9\n' |
			sfdisk -q near.img
		for f in gpt far near; do gzip -k $f.img; xz -0 -k $f.img; done; head -c -5000 x.img.xz > cut.img.xz
		printf '\004"M\030@@\300' > y.img.lz4
		qemu-img convert -O qcow2 near.img a.qcow2; truncate -s 33M more
		tar -czf rest.box a.qcow2 more; rm a.qcow2 more
	`)
	type row struct {
		Path, State, Verdict string
		Disks                []struct{ Depth string }
		Priority             any
		Read                 int64 `json:"read_bytes"`
	}
	rows := map[string]row{}
	last := filepath.Join(t.TempDir(), "last.ndjson")
	scan := func() {
		r := trueup(t, append([]string{"scan", "-o", "json", dir}, since(last)...)...)
		require.Contains(t, []int{1, 3}, r.code, r.stderr)
		for line := range strings.Lines(string(disktest.ReadFile(t, last))) {
			var x row
			require.NoError(t, json.Unmarshal([]byte(line), &x))
			rows[filepath.Base(x.Path)] = x
		}
	}
	disktest.WaitSettled(t, dir)
	scan()
	for name, want := range map[string]string{
		"gpt.img.gz": "misaligned", "gpt.img.xz": "misaligned", "near.img.gz": "aligned", "near.img.xz": "aligned",
		"x.img.gz": "misaligned", "x.img.xz": "misaligned", "x.img.zst": "misaligned", "x.img.bz2": "misaligned",
		"x.vmdk.gz": "misaligned",
	} {
		x := rows[name]
		require.Equal(t, "judged "+want, x.State+" "+x.Verdict, name)
		require.Equal(t, "head", x.Disks[0].Depth, name)
		require.Nil(t, x.Priority, name)
		if plain, ok := strings.CutSuffix(name, filepath.Ext(name)); ok && rows[plain].State != "" {
			require.Equal(t, rows[plain].Verdict, x.Verdict, name)
		}
	}
	for _, name := range []string{
		"far.img.gz", "far.img.xz", "cut.img.xz", "rest.box", "vm.box", "flat.tar", "two.zip",
	} {
		require.Equal(t, "packed", rows[name].State, name)
	}
	scan()
	for name, x := range rows {
		require.Zero(t, x.Read, name)
	}
	for _, format := range []string{"text", "html", "csv", "junit", "prometheus"} {
		require.Contains(t, trueup(t, "scan", "-o", format, filepath.Join(dir, "x.img.gz")).stdout, map[string]string{
			"text": "by head", "html": "first bytes", "csv": "x.img.gz", "junit": "x.img.gz",
			"prometheus": "trueup_images_by_head",
		}[format], format)
	}
}
