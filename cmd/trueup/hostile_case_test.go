package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// hostileExits holds the exit codes of inspect, and of plan and align, on an untrusted image.
var hostileExits = map[hostile.End][2]int{
	hostile.Unread: {1, 1}, hostile.Refused: {4, 4}, hostile.Broken: {1, 1}, hostile.Kept: {3, 4},
	hostile.Sound: {3, 0},
}

// TestHostileImages runs the commands on one untrusted image for each result and code, on those with terminal escapes,
// and with make exhaustive on all: they must end as expected, with one line on stderr each, and write nothing. The
// packages of formats, tables and volumes test the message of each image.
func TestHostileImages(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range append(hostile.All(), hostile.Nodes()...) {
		kind := fmt.Sprint(r.End, r.Code)
		if seen[kind] && !strings.HasSuffix(r.Name, "escapes in its label") && !disktest.Exhaustive {
			continue
		}
		seen[kind] = true
		t.Run(r.Name, func(t *testing.T) {
			dir, out := t.TempDir(), t.TempDir()
			path := r.Write(t, dir)
			before := folderState(t, dir)
			runs := [][]string{
				{"inspect", "--json", path},
				{"inspect", path},
				{"plan", "--json", path},
				{"align", path, filepath.Join(out, "d.raw")},
			}
			for i := range runs {
				if r.Format != "" {
					runs[i] = append(runs[i], "--format", r.Format)
				}
			}
			ends := measure(t, runs...)
			for i, end := range ends {
				require.Equal(t, hostileExits[r.End][i/2], end.code, "%q: %s", runs[i], end.stderr)
				requireClean(t, end.stdout, end.stderr)
				switch {
				case wantsJSON(runs[i]):
					f := parseFailure(t, end)
					require.Equal(t, end.code == 1 || end.code == 4, f.Error != nil, end.stdout)
					if f.Error != nil {
						require.Equal(t, r.Code, f.Error.Code, f.Error.Message)
					}
				case end.code == 1 || end.code == 4:
					// One line contains the image and the subject of the case.
					line, rest, ended := strings.Cut(end.stderr, "\n")
					require.True(t, ended && rest == "", "one line:\n%s", end.stderr)
					require.True(t, strings.HasPrefix(line, "trueup: "), line)
					for _, part := range append(r.Says, filepath.Base(path)) {
						require.Contains(t, line, part)
					}
				case end.code == 3:
					require.Empty(t, end.stderr)
				}
			}
			report := parseFailure(t, ends[0])
			require.Equal(t, r.End >= hostile.Broken, report.Image != nil, ends[0].stdout)
			require.Equal(t, r.End >= hostile.Broken, ends[1].stdout != "", "inspect prints a report")
			require.True(t, report.Image == nil || len(r.Says) == 0 ||
				slices.ContainsFunc(report.Findings, func(f jsonFinding) bool { return r.Found(f.Text) }), "%q",
				report.Findings)
			require.True(t, r.End == hostile.Sound || ends[3].stdout == "", "align has no result")
			lines := strings.Count(ends[1].stdout, "\n")
			require.True(t, r.End != hostile.Sound || lines < 150+2*len(report.Partitions),
				"a row and a finding for each partition")
			require.Equal(t, before, folderState(t, dir))
			require.Equal(t, r.End == hostile.Sound, len(folderNames(t, out)) > 0, "neither DEST nor a part of it")
		})
	}
}

// failure is the part of a JSON result with the reason of a failure.
type failure struct {
	jsonHead
	Image *jsonImage `json:"image"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Partitions []json.RawMessage `json:"partitions"`
	Findings   []jsonFinding     `json:"findings"`
}

func parseFailure(t testing.TB, r result) failure {
	t.Helper()
	var f failure
	unmarshal(t, r, &f)
	require.Equal(t, "trueup/1", f.Schema)
	require.Equal(t, r.code, f.ExitCode, "the JSON object and the process")
	return f
}

func unmarshal(t testing.TB, r result, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(r.stdout), v), r.stdout)
}

// requireClean rejects everything that a terminal would interpret: control characters of both sets, except for line
// ends, and those that reverse the direction of text. Bytes that are not UTF-8 can be controls of the second set.
func requireClean(t testing.TB, texts ...string) {
	t.Helper()
	for _, s := range texts {
		require.True(t, utf8.ValidString(s), "%q", s)
		bad := strings.IndexFunc(s, func(r rune) bool {
			return (unicode.IsControl(r) && r != '\n') || r == '\u202e'
		})
		if bad >= 0 {
			require.Failf(t, "control character", "%q", s[bad:min(len(s), bad+40)])
		}
	}
}

// folderState returns the state of an untrusted folder; contents are compared if they can be read.
func folderState(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	state := map[string]string{}
	for _, entry := range entries {
		info, err := entry.Info()
		require.NoError(t, err)
		state[entry.Name()] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		if info.Mode().Type() == fs.FileMode(0) && info.Size() < 64<<20 {
			state[entry.Name()] += sha256Of(t, filepath.Join(dir, entry.Name()))
		}
	}
	return state
}

// writeText writes a text file, such as a descriptor, as the image.
func writeText(name, text string) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
}

// writeForged returns a function that writes a forged image to a file and returns its path.
func writeForged(name string, image forge.Bytes) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		image.Write(t, path)
		return path
	}
}

// xpSectors is the size of the disk in most forged images: one partition at LBA 63, of an unknown kind.
const xpSectors = hostile.Sectors

func slot(kind byte, start, sectors uint32) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: start, Sectors: sectors}
}

// flatImage writes a descriptor and its flat file.
func flatImage(text string) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		hostile.Disk().Write(t, filepath.Join(dir, "x-flat.vmdk"))
		return writeText("disk.vmdk", text)(t, dir)
	}
}

// goodFlat returns the descriptor of flatImage.
func goodFlat() string {
	return vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW %d FLAT "x-flat.vmdk" 0`, xpSectors))
}

// changed is goodFlat with one text replaced.
func changed(old, new string) string { return strings.Replace(goodFlat(), old, new, 1) }

// poolImage is a disk with one partition at LBA 63, filled by put. Offsets of put are relative to the partition.
func poolImage(kind byte, size int64, put func(v forge.Bytes)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := tableforge.NewMBR(int(trackSectors+size/512+2048), slot(kind, trackSectors, uint32(size/512)))
		put(disk[trackSectors*512:][:size])
		return writeForged("disk.raw", disk)(t, dir)
	}
}

// Budget of an untrusted image: 64 MiB, and 2 s of processor time on an idle machine (disktest.Scaled).
const (
	maxRSS = 64 << 20 // bytes
	maxCPU = 2 * time.Second
)

// launchEnv makes this test program the launcher of other programs. The kernel counts the memory of a parent for its
// child until exec, and the process that runs the tests is large.
const launchEnv = "TRUEUP_TEST_LAUNCH"

// launchJob is the input of a launcher.
type launchJob struct {
	Program string
	Args    [][][]byte // one run each; as bytes, since JSON would change names that are not UTF-8
}

// measured is a run with its costs.
type measured struct {
	Stdout, Stderr []byte
	Code           int // -1: killed
	RSS            int64
	CPU            time.Duration // in the unit of disktest.Scaled
}

// launch runs the jobs on standard input and prints the result of each.
func launch(*testing.M) (int, error) {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var job launchJob
		if err := in.Decode(&job); errors.Is(err, io.EOF) {
			return 0, nil
		} else if err != nil {
			return 1, err
		}
		var all []measured
		for _, raw := range job.Args {
			var args []string
			for _, a := range raw {
				args = append(args, string(a))
			}
			ctx, cancel := context.WithTimeout(context.Background(), disktest.Patience)
			cmd := exec.CommandContext(ctx, job.Program, args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			cancel()
			if cmd.ProcessState == nil {
				return 1, err
			}
			usage, _ := cmd.ProcessState.SysUsage().(*syscall.Rusage)
			all = append(all, measured{
				Stdout: stdout.Bytes(), Stderr: stderr.Bytes(),
				Code: cmd.ProcessState.ExitCode(), RSS: usage.Maxrss << 10,
				CPU: disktest.Scaled(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()),
			})
		}
		if err := out.Encode(all); err != nil {
			return 1, err
		}
	}
}

// measure runs trueup once for each list of arguments, through the launcher, and requires every run to stay within the
// budget. A command that only reads gets six more tries, because on a busy machine only the lowest cost is meaningful.
func measure(t testing.TB, runs ...[]string) []result {
	t.Helper()
	all := launched(t, runs)
	for i, run := range runs {
		for range 6 {
			inBudget := all[i].RSS <= maxRSS && all[i].CPU <= maxCPU
			if inBudget || !slices.Contains([]string{"inspect", "plan", "verify"}, run[0]) {
				break
			}
			all[i] = launched(t, runs[i:i+1])[0]
		}
	}
	var results []result
	for i, m := range all {
		r := result{string(m.Stdout), string(m.Stderr), m.Code}
		require.GreaterOrEqual(t, r.code, 0, "trueup %q was killed after %v of the processor\n%s", runs[i], m.CPU,
			r.stderr)
		require.NotContains(t, r.stderr, "goroutine ", "trueup %q panicked", runs[i])
		require.LessOrEqual(t, m.RSS, int64(maxRSS), "peak memory of trueup %q", runs[i])
		require.LessOrEqual(t, m.CPU, maxCPU, "processor time of trueup %q", runs[i])
		// The largest tables take seconds to validate, and differ from small ones only in number.
		if wantsJSON(runs[i]) && (len(r.stdout) < 1<<20 || disktest.Exhaustive) {
			validate(t, r.stdout)
		}
		results = append(results, r)
	}
	return results
}

// launched runs trueup through the launcher with each list of arguments.
func launched(t testing.TB, runs [][]string) []measured {
	t.Helper()
	jobs := launchJob{Program: builtPath}
	for _, run := range runs {
		var args [][]byte
		for _, a := range run {
			args = append(args, []byte(a))
		}
		jobs.Args = append(jobs.Args, args)
	}
	launchers.Lock()
	var l *launcher
	if n := len(launchers.idle); n > 0 {
		l = launchers.idle[n-1]
		launchers.idle = launchers.idle[:n-1]
	}
	launchers.Unlock()
	if l == nil {
		self, err := os.Executable()
		require.NoError(t, err)
		l = &launcher{cmd: exec.Command(self)}
		l.cmd.Env = append(os.Environ(), launchEnv+"=1")
		l.cmd.Stderr = os.Stderr
		l.in, err = l.cmd.StdinPipe()
		require.NoError(t, err)
		l.out, err = l.cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, l.cmd.Start())
	}

	require.NoError(t, json.NewEncoder(l.in).Encode(jobs))
	var all []measured
	answer := json.NewDecoder(l.out)
	require.NoError(t, answer.Decode(&all))
	require.Len(t, all, len(runs))
	if answer.InputOffset() > mostAnswer {
		require.NoError(t, l.end())
		return all
	}
	launchers.Lock()
	defer launchers.Unlock()
	launchers.idle = append(launchers.idle, l)
	return all
}

// launcher is a process that starts others. The tests share some.
type launcher struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

var launchers struct {
	sync.Mutex
	idle []*launcher
}

// mostAnswer limits the answers of a launcher before reuse, in bytes, because its memory counts for its next runs.
const mostAnswer = 64 << 10

// end ends a launcher.
func (l *launcher) end() error { return errors.Join(l.in.Close(), l.cmd.Wait()) }

// endLaunchers ends all launchers, after the tests.
func endLaunchers() (err error) {
	for _, l := range launchers.idle {
		err = errors.Join(err, l.end())
	}
	return err
}

// TestHugeImages limits inspect to its budget on the largest images of qemu-img, with full tables or very many
// clusters. QEMU takes long with clusters of 512 bytes.
func TestHugeImages(t *testing.T) {
	t.Parallel()
	small := "16G"
	if disktest.Exhaustive {
		small = "128G"
	}
	for _, c := range []struct{ format, options, size string }{
		{"qcow2", "cluster_size=64k", "64T"},
		{"qcow2", "cluster_size=16k,extended_l2=on", "4T"},
		{"qcow2", "cluster_size=512", small},
		{"qcow2", "cluster_size=2M", "64T"},
		{"vmdk", "subformat=monolithicSparse", "63T"},
	} {
		path := filepath.Join(t.TempDir(), "disk."+c.format)
		disktest.Run(t, "qemu-img", "create", "-q", "-f", c.format, "-o", c.options, path, c.size)
		disktest.Run(t, "qemu-io", "-f", c.format, "-c", "write -P 7 1G 1M", path)
		r := measure(t, []string{"inspect", "--json", path})[0]
		require.Equal(t, 0, r.code, r.stderr)
	}
}

// TestManyHostileFileSystems gives every partition of a full GPT a root folder of 65,536 names: searching for a file is
// expensive in each, and together they may cost at most as much as one.
func TestManyHostileFileSystems(t *testing.T) {
	t.Parallel()
	const count, sectors = 128, 8192

	// The nonzero part of a FAT32: its root has the maximum number of names.
	const folder = 65536 * 32
	fat := disktest.Blank(t, "fat", sectors*sectorSize)
	disktest.Run(t, "mkfs.fat", "-F", "32", "-s", "1", fat)
	volume := forge.Bytes(disktest.ReadFile(t, fat))
	reserved, table := int64(binary.LittleEndian.Uint16(volume[14:])), int64(binary.LittleEndian.Uint32(volume[36:]))
	data := (reserved + 2*table) * sectorSize
	for c := int64(2); c < 2+folder/sectorSize; c++ {
		volume.U32(reserved*sectorSize+4*c, uint32(c+1))
	}
	volume.U32(reserved*sectorSize+4*(1+folder/sectorSize), 0x0fffffff)
	for i := range int64(folder / 32) {
		volume.Text(data+32*i, fmt.Sprintf("N%07dTXT ", i))
	}
	volume = volume[:data+folder]

	var entries []tableforge.GPTEntry
	for i := range uint64(count) {
		entries = append(entries, tableforge.GPTEntry{First: 63 + sectors*i, Last: 62 + sectors*(i+1)})
	}
	const size = (63 + sectors*count + 100) * sectorSize
	disk := tableforge.NewGPT(sectorSize, size/sectorSize, count, entries...)
	pieces := map[int64][]byte{0: disk[:63*sectorSize], size - 34*sectorSize: disk[size-34*sectorSize:]}
	for i := range int64(count) {
		pieces[(63+sectors*i)*sectorSize] = volume
	}
	path := filepath.Join(t.TempDir(), "disk.raw")
	sparsely(t, path, size, pieces)
	ends := measure(t, []string{"inspect", "--json", path}, []string{"plan", "--json", path})
	var report jsonInspect
	unmarshal(t, ends[0], &report)
	require.Len(t, report.Partitions, count)
	require.Equal(t, "fat32", report.Partitions[count-1].Volume.Kind)
	require.True(t, slices.ContainsFunc(report.Findings, func(f jsonFinding) bool {
		return strings.Contains(f.Text, "limit exceeded")
	}))
}

// TestManyHostileHives fills a disk with registry hives, each of maximum cost.
func TestManyHostileHives(t *testing.T) {
	t.Parallel()
	keys := make([]hiveforge.Key, 9_999)
	for i := range keys {
		keys[i].Name = fmt.Sprintf("Key%04d", i)
	}
	below := slices.Clone(keys)
	keys[0].Keys, keys[0].List = below, "lh"
	f := hiveforge.New(5, hiveforge.Key{Name: "ROOT", Keys: keys, List: "ri"})
	named := func(at int64) int64 { return 4096 + 4 + int64(binary.LittleEndian.Uint32(f[at:])) } // a cell
	root := named(hiveforge.RootCell)
	list := named(root + 28)
	first := named(named(list+4) + 4)
	f.U32(root+20, 1<<32-1)
	for i := range int64(3333) { // each lists all keys below the first
		f.U32(list+4+4*i, binary.LittleEndian.Uint32(f[first+28:]))
	}
	hive := hostFile(t, string(f))
	d := windowsDisk{signature: windowsSignature, sectors: 200_000}
	for i := range int64(4) {
		d.volumes = append(d.volumes, windowsVolume{
			number: int(i + 1), kind: "fat16", typ: "6", start: 63 + i*40_000,
			sectors: 40_000, files: map[string]string{
				"Boot/BCD": hive, "EFI/Microsoft/Boot/BCD": hive, "WINDOWS/System32/config/SYSTEM": hive,
				"WINNT/System32/config/SYSTEM": hive,
			},
		})
	}
	path := d.make(t)
	ends := measure(t, []string{"inspect", path}, []string{"plan", path})
	require.Equal(t, 3, ends[0].code, ends[0].stderr)
	require.Equal(t, 4, ends[1].code, ends[1].stderr)
}
