package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
)

// ownFiles lists files that the program opens other than images: the first three at the start of the runtimes of Go and
// C, the others when workers are restricted.
var ownFiles = regexp.MustCompile(
	`^(/sys/kernel/mm/transparent_hugepage/hpage_pmd_size|/sys/fs/cgroup/.*|/sys/devices/system/cpu/online|` +
		`/proc/(self|\d+)/(status|cgroup|mountinfo|maps|fd|task(/\d+(/status)?)?)|/dev/null)$`)

var (
	openCall = regexp.MustCompile(`^\d+ +(?:openat2?|open|creat)\((?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"`)
	execCall = regexp.MustCompile(`^\d+ +execve(?:at)?\("([^"]*)"`)
	netCall  = regexp.MustCompile(`^\d+ +(socket|connect|bind|sendto|socketpair)\(`)
)

// opened runs a scan under strace and returns the paths that its processes opened. The scan must start no other
// program, and make no socket.
func opened(t *testing.T, args ...string) (paths []string, r result) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "calls")
	r = run(t, disktest.Tool(t, "strace"), append([]string{
		"-f", "-y", "-qq", "-s", "4096", "-o", log, "-e", "signal=none", "-e",
		"trace=/^(open|openat|openat2|creat|execve|execveat|socket|connect|bind|sendto|socketpair)$", builtPath, "scan",
		"-o", "json",
	}, args...)...)
	text := disktest.ReadFile(t, log)
	starts := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		require.NotRegexp(t, netCall, line)
		if m := execCall.FindStringSubmatch(line); m != nil {
			require.Contains(t, []string{builtPath, "/proc/self/exe"}, m[1], line)
			starts++
		}
		if m := openCall.FindStringSubmatch(line); m != nil {
			if path := m[2]; filepath.IsAbs(path) || m[1] == "" {
				paths = append(paths, path)
			} else {
				paths = append(paths, filepath.Join(m[1], path))
			}
		}
	}
	require.NotEmpty(t, paths)
	require.Positive(t, starts)
	return paths, r
}

// Only the library is opened, regardless of names in images, and only the program itself is started.
func TestScanOpensNothingElse(t *testing.T) {
	t.Parallel()
	k := newEveryKind(t)
	usual := startup(t)
	var seen []string
	paths, r := opened(t, k.dir)
	for _, path := range paths {
		if below, ok := strings.CutPrefix(path, k.dir+"/"); ok {
			seen = append(seen, below)
			continue
		}
		own := path == k.dir || path == builtPath || usual[path] || ownFiles.MatchString(path)
		require.True(t, own, "opened %q", path) // the program itself is hashed if it has no version
	}
	require.Subset(t, seen, []string{"shadow.vmdk", "backed.qcow2", "deep/two.ova"}, "the trace has no images")
	require.NotContains(t, seen, "folder", "links are not followed")
	require.NotContains(t, seen, "deep/round")
	s := readScan(t, r)
	require.Equal(t, k.want, s.words(k.dir))
}

// The results do not depend on isolation.
func TestRowsOfEachIsolation(t *testing.T) {
	t.Parallel()
	needsLandlock(t)
	k := newEveryKind(t)
	usual := scan(t, k.dir)
	require.Equal(t, 1, usual.code)
	require.Equal(t, k.want, usual.words(k.dir))
	require.True(t, usual.sum.Complete)
	require.Equal(t, len(k.want), usual.sum.Images)
	require.Equal(t, "sandbox", usual.sum.Isolation.Achieved, "%+v", usual.sum.Isolation)
	require.Contains(t, usual.sum.Isolation.Layers, "seccomp")
	want := usual.same(t)
	for _, flags := range [][]string{
		{"--isolation", "process"},
		{"--isolation", "none"},
		{"--isolation", "sandbox"},
		{"--jobs", "1"},
		{"--jobs", "2"},
		{"--jobs", "8"},
	} {
		s := scan(t, append(flags, k.dir)...)
		require.Equal(t, want, s.same(t), "%q", flags)
		if flags[0] == "--isolation" {
			require.Equal(t, flags[1], s.sum.Isolation.Achieved)
			require.Equal(t, flags[1], s.sum.Isolation.Wanted) //nolint:testifylint // as it was asked
		}
		require.Equal(t, usual.sum.Read, s.sum.Read, "%q", flags)
	}
}

// If no worker process can be started, the scan continues without workers, and reports it.
func TestScanWithoutWorkers(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(sampleDisk(t))
	// The program cannot start another one, because /proc is missing.
	sh := `mount -t tmpfs none /proc && exec "$@"`
	if out, err := exec.Command(disktest.Tool(t, "unshare"), "--mount", "sh", "-c", sh, "sh",
		"true").CombinedOutput(); err != nil {
		t.Skipf("mount namespaces need root: %s", out)
	}
	r := run(t, disktest.Tool(t, "unshare"), "--mount", "sh", "-c", sh, "sh", builtPath, "scan", "-o", "json", dir)
	s := readScan(t, r)
	require.Equal(t, 3, s.code)
	require.Equal(t, "sandbox", s.sum.Isolation.Wanted)
	require.Equal(t, "none", s.sum.Isolation.Achieved)
	require.NotEmpty(t, s.sum.Isolation.Note)
	require.Contains(t, r.stderr, "trueup: warning: isolation is \"none\", not \"sandbox\"")

	inspect := []string{"--mount", "sh", "-c", sh, "sh", builtPath, "inspect", sampleDisk(t)}
	r = run(t, disktest.Tool(t, "unshare"), inspect...)
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, r.stderr, "trueup: warning: isolation is \"none\", not \"sandbox\" (threads: open "+
		"/proc/self/task")
	r = run(t, disktest.Tool(t, "unshare"), append(inspect, "--require-sandbox")...)
	require.Equal(t, 1, r.code, r.stderr)
}

type scannedPart struct {
	kind  string
	start int64
	size  int64
	typ   string
}

// scannedDisk is an aligned disk that real tools make.
type scannedDisk struct {
	name    string
	sectors int64
	gpt     bool
	parts   []scannedPart
}

var scannedDisks = []scannedDisk{
	{name: "mbr, ntfs", sectors: 256 << 11, parts: []scannedPart{{"ntfs", 2048, 520192, "7"}}},
	{name: "mbr, two volumes", sectors: 300 << 11, parts: []scannedPart{
		{"fat32", 2048, 204800, "c"},
		{"ext4", 206848, 400000, "83"},
	}},
	{name: "gpt, esp and ext4", sectors: 512 << 11, gpt: true, parts: []scannedPart{
		{"fat32", 2048, 131072, "U"},
		{"ext4", 133120, 900000, "L"},
	}},
}

func (d scannedDisk) make(t *testing.T, raw string) {
	t.Helper()
	disktest.MakeBlank(t, raw, d.sectors*sectorSize)
	table := "label: dos\n"
	if d.gpt {
		table = "label: gpt\n"
	}
	for i, p := range d.parts {
		table += fmt.Sprintf("start=%d, size=%d, type=%s\n", p.start, p.size, p.typ)
		part := filepath.Join(t.TempDir(), fmt.Sprint(i))
		madeVolume{kind: p.kind, label: "LABEL", start: p.start, sectors: p.size}.make(t, part)
		disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=4096", "conv=sparse,notrunc", "oflag=seek_bytes",
			fmt.Sprintf("seek=%d", p.start*sectorSize), "status=none")
	}
	disktest.RunInput(t, table, "sfdisk", "--quiet", "--no-tell-kernel", raw)
}

// scannedFormats maps the images that qemu-img makes of a disk to the maximum KiB that a scan reads: the first page,
// the page at 32 KiB (the mark of a CD) and the end of each file, the header and tables of the format, and of the disk
// its table and the superblocks and labels of its volumes, some of them twice. A VHDX has two region tables of 64 KiB,
// a GPT two arrays of 16 KiB, and a compressed grain or cluster is read whole.
var scannedFormats = []struct {
	name     string
	args     []string
	mbr, gpt int64
}{
	{"disk.qcow2", []string{"-O", "qcow2"}, 64, 96},
	{"packed.qcow2", []string{"-c", "-O", "qcow2"}, 64, 112},
	{"sparse.vmdk", []string{"-O", "vmdk", "-o", "subformat=monolithicSparse"}, 64, 104},
	{"stream.vmdk", []string{"-O", "vmdk", "-o", "subformat=streamOptimized"}, 64, 136},
	{"flat.vmdk", []string{"-O", "vmdk", "-o", "subformat=monolithicFlat"}, 40, 76},
	{"dynamic.vhd", []string{"-O", "vpc", "-o", "subformat=dynamic,force_size=on"}, 64, 88},
	{"fixed.vhd", []string{"-O", "vpc", "-o", "subformat=fixed,force_size=on"}, 48, 80},
	{"dynamic.vhdx", []string{"-O", "vhdx", "-o", "subformat=dynamic"}, 224, 256},
	{"disk.raw", []string{"-O", "raw"}, 48, 80},
}

// TestScanReadsLittle requires that the number of bytes that a scan reads of an aligned image does not grow with the
// image.
func TestScanReadsLittle(t *testing.T) {
	t.Parallel()
	for _, d := range scannedDisks {
		t.Run(d.name, func(t *testing.T) {
			raw := filepath.Join(t.TempDir(), "source.raw")
			d.make(t, raw)
			for _, f := range scannedFormats {
				path := filepath.Join(t.TempDir(), f.name)
				disktest.Run(t, "qemu-img", append(append([]string{"convert"}, f.args...), raw, path)...)
				s := scan(t, filepath.Dir(path))
				require.Equal(t, 0, s.code, s.stderr)
				require.Contains(t, s.rows, path)
				require.Equal(t, align.Aligned, s.rows[path].Verdict, s.stdout)
				most := f.mbr
				if d.gpt {
					most = f.gpt
				}
				require.LessOrEqual(t, s.rows[path].Read, most<<10, f.name)
			}
		})
	}
}

var updateScan = flag.Bool("update-scan", false, "write the golden files of scan anew")

// corpusFolders lists the folders of the corpus in the golden files. The corpus may get others.
var corpusFolders = strings.Fields(`
	cdi dftt dfvfs discutils glance go-ntfs gptman imagemounter keramics libldm mbrman osv-scalibr
	qemu regipy vmdk-rs`)

// unpackedCorpus returns a folder with the unpacked folders of the corpus.
func unpackedCorpus(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range corpusFolders {
		require.NoError(t, os.Rename(disktest.CorpusSet(t, name), filepath.Join(dir, name)))
	}
	return dir
}

// TestScanOfTheCorpus compares rows with those of a golden file, which was read by hand.
func TestScanOfTheCorpus(t *testing.T) {
	t.Parallel()
	packed := t.TempDir() // with unchanged copies of the same folders
	for _, name := range corpusFolders {
		require.NoError(t, os.CopyFS(filepath.Join(packed, name), os.DirFS(filepath.Join(disktest.CorpusDir(t), name))))
	}
	for name, dir := range map[string]string{"packed": packed, "unpacked": unpackedCorpus(t)} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(builtPath, "scan", "-o", "json", ".")
			cmd.Dir = dir
			r, _ := end(t, cmd)
			var lines []string
			for line := range strings.SplitSeq(strings.TrimSpace(r.stdout), "\n") {
				var v any
				d := json.NewDecoder(strings.NewReader(line))
				d.UseNumber()
				require.NoError(t, d.Decode(&v))
				drop(v)
				var out bytes.Buffer
				e := json.NewEncoder(&out)
				e.SetEscapeHTML(false)
				require.NoError(t, e.Encode(v))
				lines = append(lines, strings.TrimSpace(out.String()))
			}
			slices.Sort(lines)
			got := strings.Join(lines, "\n") + "\n"
			golden := filepath.Join("testdata", "scan-"+name+".golden")
			if *updateScan {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want := disktest.ReadFile(t, golden)
			require.Equal(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"))
		})
	}
}

// passing lists fields that differ between runs or machines.
var passing = []string{
	"device", "inode", "modified_ns", "changed_ns", "allocated_bytes", "stored_bytes", "copies_bytes", "read_bytes",
	"started", "finished", "duration_seconds", "version", "isolation", "worst", "file_system", "reuse",
}

func drop(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range passing {
			delete(v, key)
		}
		for _, below := range v {
			drop(below)
		}
	case []any:
		for _, below := range v {
			drop(below)
		}
	}
}
