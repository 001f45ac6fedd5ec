package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// packedFolder returns a folder with a real disk as x.img and x.vmdk, a flat VMDK in sub, and all of that packed by the
// programs that people use.
func packedFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range []string{"qemu-img", "gzip", "xz", "zstd", "bzip2", "tar", "zip"} {
		disktest.Tool(t, tool)
	}
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
	return dir
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
		{4, "--replace needs an image in a file of its own", []string{"align", "--replace", at("x.img.gz")}},
		{4, "--in-place needs an image in a file of its own", []string{"align", "--in-place", at("flat.tar")}},
		{4, "--view needs an image in a file of its own", []string{"align", "--view", at("flat.tar"), dest}},
		{4, "--resumable needs an image in a file of its own", []string{"align", "--resumable", at("x.vmdk.gz"), dest}},
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
	catalog := filepath.Join(t.TempDir(), "catalog.db")
	scan := func() {
		r := trueup(t, "scan", "-o", "json", "--catalog", catalog, dir)
		require.Contains(t, []int{1, 3}, r.code, r.stderr)
		for line := range strings.Lines(r.stdout) {
			var x row
			require.NoError(t, json.Unmarshal([]byte(line), &x))
			rows[filepath.Base(x.Path)] = x
		}
	}
	scan()
	for name, want := range map[string]string{
		"gpt.img.gz": "misaligned", "gpt.img.xz": "misaligned", "near.img.gz": "aligned", "near.img.xz": "aligned",
		"x.img.gz": "misaligned", "x.img.xz": "misaligned", "x.img.zst": "misaligned", "x.img.bz2": "misaligned",
		"x.vmdk.gz": "misaligned", "vm.box": "misaligned", "flat.tar": "misaligned",
	} {
		x := rows[name]
		require.Equal(t, "judged "+want, x.State+" "+x.Verdict, name)
		require.Equal(t, "head", x.Disks[0].Depth, name)
		require.Nil(t, x.Priority, name)
		if plain, ok := strings.CutSuffix(name, filepath.Ext(name)); ok && rows[plain].State != "" {
			require.Equal(t, rows[plain].Verdict, x.Verdict, name)
		}
	}
	for _, name := range []string{"far.img.gz", "far.img.xz", "cut.img.xz", "rest.box"} {
		require.Equal(t, "packed", rows[name].State, name)
	}
	scan()
	for name, x := range rows {
		require.Zero(t, x.Read, name)
	}
	requireServedAlike(t, dir, catalog)
	for _, format := range []string{"text", "html", "csv", "junit", "prometheus"} {
		require.Contains(t, trueup(t, "scan", "-o", format, filepath.Join(dir, "x.img.gz")).stdout, map[string]string{
			"text": "by head", "html": "first bytes", "csv": "x.img.gz", "junit": "x.img.gz",
			"prometheus": "trueup_images_by_head",
		}[format], format)
	}
}

// requireServedAlike scans the files of a folder that a catalogue knows on a server: rows of what is packed differ by
// the command that reads all of it, and few bytes are read.
func requireServedAlike(t *testing.T, dir, catalog string) {
	t.Helper()
	s := newStore(t, dir, nil)
	local := scan(t, "--catalog", catalog, dir)
	var addresses []string
	for name, i := range local.rows {
		slow := strings.HasSuffix(name, ".xz") && i.Size > 1<<24
		if (i.ByHead() || i.State == results.Packed) && !slow {
			addresses = append(addresses, addressOf(s, filepath.Base(name)))
		}
	}
	require.Greater(t, len(addresses), 12)
	r := scan(t, "--require-sandbox", "--files-from", list(t, addresses...))
	require.NotContains(t, r.stdout+r.stderr, "secret")
	for address, i := range r.rows {
		name, _, _ := strings.Cut(filepath.Base(address), "?")
		want := local.rows[filepath.Join(dir, name)]
		require.Equal(t, []any{want.State, want.Verdict, want.Format, want.Size, want.Unpacked},
			[]any{i.State, i.Verdict, i.Format, i.Size, i.Unpacked}, name)
		findings := i.Findings
		if i.ByHead() {
			findings = i.Disks[0].Findings
		}
		remedy := findings[len(findings)-1].Remedy
		if name == "y.img.lz4" {
			require.Equal(t, "download it, and unpack that", remedy)
			continue
		}
		require.Contains(t, remedy, "trueup inspect --spool DIR '"+s.URL+"/"+name+"?...#", name)
		require.LessOrEqual(t, i.Read, int64(34<<20), name)
	}
	require.Len(t, r.rows, len(addresses))
	require.Contains(t, slices.Collect(maps.Keys(local.rows)), filepath.Join(dir, "y.img.lz4"))
}

// addressOf returns the address of a file of a server, or of a member of an archive there.
func addressOf(s *store, name string) string { return s.URL + "/" + name + "?sign=secret" }

// A packed image on a server is read as the same file is, in confinement, by large reads, and nothing is left.
func TestPackedImagesOfServers(t *testing.T) {
	t.Parallel()
	dir := packedFolder(t)
	s := newStore(t, dir, nil)
	spool, aligned := t.TempDir(), filepath.Join(t.TempDir(), "aligned.img")
	require.Equal(t, 0, trueup(t, "align", "-q", "--to", "raw", filepath.Join(dir, "x.img"), aligned).code)
	for name, plain := range map[string]string{
		"x.img.gz": "x.img", "two.img.xz": "x.img", "x.img.zst": "x.img", "flat.tar": "sub/flat.vmdk",
		"flat.zip":       "sub/flat.vmdk",
		"two.zip!x.vmdk": "x.vmdk", "two.tar!sub%2Fflat.vmdk": "sub/flat.vmdk",
	} {
		t.Run(name, func(t *testing.T) {
			dest := filepath.Join(t.TempDir(), "dest.img")
			r := trueup(t, "align", "-q", "--require-sandbox", "--to", "raw", addressOf(s, name), dest)
			require.Equal(t, 0, r.code, r.stderr)
			require.Equal(t, sha256Of(t, aligned), sha256Of(t, dest))
			require.Equal(t, []string{"dest.img"}, namesIn(t, filepath.Dir(dest)))
			r = trueup(t, "verify", "--require-sandbox", "--spool", spool, addressOf(s, name), dest)
			require.Equal(t, 0, r.code, r.stderr)
			want := packedJSON(t, "plan", filepath.Join(dir, plain))
			require.Equal(t, want, packedJSON(t, "plan", "--require-sandbox", "--spool", spool, addressOf(s, name)))
			require.Empty(t, namesIn(t, spool))
		})
	}

	// nbdkit takes any name for its export, so that a member is one of the archive in it.
	theirs := exported(t, `nbdkit -f -r -U "$1" file "$0"`, filepath.Join(dir, "two.tar"))
	for _, address := range []string{
		exported(t, `qemu-nbd -r -f raw -t -k "$1" "$0"`, filepath.Join(dir, "x.img.gz")),
		strings.Replace(theirs, "///", "///!sub%2Fflat.vmdk", 1),
	} {
		dest := filepath.Join(t.TempDir(), "dest.img")
		r := trueup(t, "align", "-q", "--require-sandbox", "--to", "raw", address, dest)
		require.Equal(t, 0, r.code, r.stderr)
		require.Equal(t, sha256Of(t, aligned), sha256Of(t, dest))
	}
	r := trueup(t, "inspect", strings.Replace(theirs, "///", "///!nix.vmdk", 1))
	require.Equal(t, 64, r.code, r.stderr)
	require.Contains(t, r.stderr, `the archive has no file "nix.vmdk", want one of 'nbd+unix:///!`)

	noise := filepath.Join(dir, "noise.img.gz") // 24 MiB that gzip does not make smaller
	inFolder(t, dir, `openssl enc -aes-128-ctr -K 00 -iv 00 -in /dev/zero 2>/dev/null | head -c 24M | gzip -1 > "$1"`,
		noise)
	r = trueup(t, "inspect", "--allow-unknown", "--spool", spool, s.URL+"/noise.img.gz")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "Packed     gzip, 24 MiB")
	s.mu.Lock()
	require.LessOrEqual(t, s.asks["/noise.img.gz"], 40, "requests")
	s.mu.Unlock()
	requireServersNamed(t, dir, s)
	requirePackedFaults(t, noise)
}

// cutting ends a connection after some bytes of an answer.
type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

// requirePackedFaults has a server fail in the middle of a packed image: a connection that is cut once is made again,
// and an object that is another one is an error that leaves nothing.
func requirePackedFaults(t *testing.T, file string) {
	t.Helper()
	content := disktest.ReadFile(t, file)
	var requests, at atomic.Int64
	fault := ""
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		w.Header().Set("ETag", `"one"`)
		switch faulty := at.Load() > 0 && n >= at.Load(); {
		case faulty && fault == "cut" && n == at.Load():
			w = &cutting{w, 1 << 20}
		case faulty && fault == "ETag":
			w.Header().Set("ETag", `"two"`)
		case faulty && fault == "416":
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	defer web.Close()
	want := ""
	for _, fault = range []string{"", "cut", "ETag", "416"} {
		dest := filepath.Join(t.TempDir(), "dest.img")
		at.Store(requests.Swap(0)/2 + 1) // of those of the last run
		if fault == "" {
			at.Store(0)
		}
		r := trueup(t, "convert", "-q", "--to", "raw", web.URL+"/noise.img.gz", dest)
		switch fault {
		case "", "cut":
			require.Equal(t, 0, r.code, r.stderr)
			if want == "" {
				want = sha256Of(t, dest)
			}
			require.Equal(t, want, sha256Of(t, dest))
		default:
			require.NotZero(t, r.code, fault)
			require.Contains(t, r.stderr, "changed while it was read", fault)
			require.Empty(t, namesIn(t, filepath.Dir(dest)))
			requests.Store(at.Load() * 2)
		}
	}
}

// requireServersNamed says what cannot be done with packed images of a server without its secrets, and with remedies
// for servers.
func requireServersNamed(t *testing.T, dir string, s *store) {
	t.Helper()
	inFolder(t, dir, `mkdir in; cp x.img.gz in; tar -cf in.tar in; printf '\004"M\030@@\300' > x.img.lz4
		printf 'x' > x.ovf; tar -cf p.tar x.ovf x.img`)
	dest := filepath.Join(t.TempDir(), "d.img")
	two := s.URL + "/two.zip"
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{4, "give --spool DIR", []string{"plan", addressOf(s, "x.img.gz")}},
		{64, "'" + two + "!x.img?...', '" + two + "!x.vmdk?...'", []string{"align", addressOf(s, "two.zip"), dest}},
		{64, `the archive has no file "y z"`, []string{"align", addressOf(s, "two.zip!y%20z"), dest}},
		{64, "is no archive, and there is no file", []string{"align", addressOf(s, "x.img.gz!x.img"), dest}},
		{1, "answers 404", []string{"align", addressOf(s, "none.zip!x.img"), dest}},
		{4, "get it as a file, and unpack that first", []string{"inspect", addressOf(s, "x.img.lz4")}},
		{1, "the archive has no image", []string{"inspect", addressOf(s, "in.tar")}},
		{4, "it is packed (gzip); get it as a file", []string{"inspect", addressOf(s, "in.tar!in/x.img.gz")}},
		{4, "package (ova), which is read from files only", []string{"inspect", addressOf(s, "p.tar")}},
		{1, "unpacking in " + dest, []string{"inspect", "--spool", dest, addressOf(s, "x.img.xz")}},
	} {
		r := trueup(t, c.args...)
		require.Equal(t, c.code, r.code, "%q\n%s", c.args, r.stderr)
		require.Contains(t, r.stderr, c.says)
		require.NotContains(t, r.stderr, "secret")
		require.NotContains(t, r.stderr, "gunzip")
	}
	require.Empty(t, namesIn(t, filepath.Dir(dest)))
	r := trueup(t, "inspect", "--spool", dir, addressOf(s, "vm.box"))
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, r.stdout, "trueup align --spool "+dir+" '"+s.URL+"/vm.box?...' box-aligned.img")
}
