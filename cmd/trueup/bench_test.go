package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/sys"
)

// briefly are flags of a benchmark of a few seconds.
var briefly = []string{
	"--size", "16M", "--starts", "127s,64K", "--rounds", "1", "--runtime", "100ms",
}

// benched runs a benchmark with a fio that ends by the number of its I/Os.
func benched(t *testing.T, args ...string) result {
	t.Helper()
	cmd := exec.Command(builtPath, append([]string{"bench"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(disktest.Fio(t))+":"+os.Getenv("PATH"))
	r, _ := end(t, cmd)
	if wantsJSON(args) {
		validateOutput(t, cmd.Args[1:], r.stdout)
	}
	return r
}

func TestBench(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	r := benched(t, slices.Concat(briefly, []string{"--progress", "json", "--json", folder})...)
	if strings.Contains(r.stderr, "is memory") {
		t.Skip(r.stderr)
	}
	require.Equal(t, 0, r.code, r.stderr)
	validate(t, r.stdout)
	first, lines, _ := strings.Cut(r.stderr, "\n")
	require.Equal(t, fmt.Sprintf("trueup: bench writes a scratch file of 17 MiB without a name in %s, then runs 12 "+
		"measurements of 100ms: "+
		"about 10s and the time to write the file", folder), first)
	last := ""
	for line := range strings.Lines(lines) {
		object, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		require.NoError(t, err, line)
		require.NoError(t, schemaNamed(t, "progress.json").Validate(object), line)
		last = line
	}
	require.Contains(t, last, `"phase":"measure","percent":100,`)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBenchUsage(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "image")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	for want, args := range map[string][]string{
		`--progress "x"`:                      {"--progress", "x", folder},
		`--output "csv"`:                      {"-o", "csv", folder},
		`size "63.5K": want`:                  {"--starts", "63.5K", folder},
		`size "": want`:                       {"--starts", "64K,", folder},
		"--starts 1 KiB, want":                {"--starts", "64K,1000", folder},
		"is no folder":                        {file},
		"unknown flag: --workload, which was": {"--workload", file, folder},
		"unknown flag: --jobs, which was":     {"--jobs", "2", folder},
	} {
		r := trueup(t, append([]string{"bench"}, args...)...)
		if strings.HasPrefix(want, "--starts 1 KiB") {
			want = "--starts 1000 B, want multiples of 512 bytes"
		}
		require.Equal(t, 64, r.code, "%v: %s", args, r.stderr)
		require.Contains(t, r.stderr, want)
	}
}

// A benchmark that ends early leaves no process and no file, whatever ends it.
func TestEndedBenchLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]os.Signal{
		"interrupted": sys.Interrupt, "terminated": sys.Terminate,
		"killed": os.Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder, tools := t.TempDir(), t.TempDir()
			fake := "#!/bin/sh\n[ \"$1\" = --version ] && { echo fio-3.33; exit; }\nexec sleep 1000\n"
			disktest.RunInput(t, fake, "sh", "-c", `cat > "$0" && chmod 755 "$0"`, filepath.Join(tools, "fio"))
			cmd := exec.Command(builtPath, slices.Concat([]string{"bench"}, briefly, []string{folder})...)
			cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
			var said lockedBuffer
			cmd.Stdout, cmd.Stderr = &said, &said
			require.NoError(t, cmd.Start())
			var children map[string]string
			ended := make(chan struct{})
			go func() {
				_ = cmd.Wait()
				close(ended)
			}()
			disktest.WaitFor(t, "fio to run", func() bool {
				select {
				case <-ended:
					return true
				default:
				}
				children = childrenOf(cmd.Process.Pid)
				for pid, name := range children {
					held, _ := os.Readlink("/proc/" + pid + "/fd/3")
					return name == "sleep" && strings.HasPrefix(held, folder+"/") &&
						strings.HasSuffix(held, " (deleted)")
				}
				return false
			})
			if strings.Contains(said.String(), "is memory") {
				t.Skip(said.String())
			}
			require.Len(t, children, 1, said.String())
			require.NoError(t, cmd.Process.Signal(end))
			<-ended
			code := map[os.Signal]int{sys.Interrupt: 130, sys.Terminate: 143, os.Kill: -1}[end]
			require.Equal(t, code, cmd.ProcessState.ExitCode(), said.String())
			if code > 0 {
				require.True(t, strings.HasSuffix(said.String(),
					"trueup: interrupted: ending fio; the scratch file goes with it; once more "+
						"to end at once\ntrueup: interrupted; there is no result, and no scratch file is left\n"),
					said.String())
			}
			disktest.WaitFor(t, "fio to end", func() bool {
				for pid := range children {
					if _, _, alive := statOf(pid); alive {
						return false
					}
				}
				return true
			})
			left, err := os.ReadDir(folder)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// mountedExt4 mounts a new file system of 32 MiB on a disk with sectors of so many bytes.
func mountedExt4(t *testing.T, sector, options string) string {
	t.Helper()
	file, folder := filepath.Join(t.TempDir(), "volume"), t.TempDir()
	disktest.Run(t, "truncate", "-s", "32M", file)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", file)
	device := disktest.LoopDevice(t, file, "-b", sector)
	if out, err := exec.Command("mount", "-o", options, device, folder).CombinedOutput(); err != nil {
		t.Skipf("no right to mount on this machine: %s", out)
	}
	t.Cleanup(func() { disktest.Run(t, "umount", folder) })
	return folder
}

// What storages refuse is said before fio runs.
func TestBenchOnOddStorages(t *testing.T) {
	t.Parallel()
	bench := func(folder string, more ...string) result {
		return benched(t, slices.Concat(briefly, more, []string{folder})...)
	}
	large := mountedExt4(t, "4096", "rw")
	r := bench(large)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "it has sectors larger than 512 bytes, and takes no I/O that starts off them "+
		"(tried: 63.5 KiB); "+
		"a guest cannot start there")
	r = bench(large, "--starts", "8K,4K", "-o", "json")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, `"file_system": "ext4"`)

	r = bench(large, "--size", "64M")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "the scratch file takes 65 MiB, and ")
	r = bench(mountedExt4(t, "512", "ro"))
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, syscall.EROFS.Error())
}

// A disk or a quota that is full while the scratch file is written is said with what helps, and nothing is left.
func TestBenchOnFullStorages(t *testing.T) {
	t.Parallel()
	for op, errno := range map[string]syscall.Errno{"write": syscall.ENOSPC, "fsync": syscall.EDQUOT} {
		folder := oddfs.Mount(t, t.TempDir(), oddfs.Manners{Fail: map[string]syscall.Errno{op: errno}})
		r := benched(t, slices.Concat(briefly, []string{folder})...)
		require.Equal(t, 1, r.code, r.stderr)
		require.Contains(t, r.stderr, "the scratch file of 17 MiB does not fit")
		require.Contains(t, r.stderr, errno.Error())
		require.Contains(t, r.stderr, "give a smaller --size")
		left, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// benchResult is a result of bench: aligned, random writes of 8 KiB are twice as many, and reads differ by noise.
func benchResult(t *testing.T) string {
	t.Helper()
	point := func(start int, rates ...int) string {
		var rounds []string
		for _, x := range rates {
			rounds = append(rounds, fmt.Sprintf(`{"iops": %d, "bytes_per_second": 1000, "latency_mean_ns": 1}`, x))
		}
		return fmt.Sprintf(`{"start_bytes": %d, "rounds": [%s]}`, start, strings.Join(rounds, ","))
	}
	load := func(op, other string) string {
		return fmt.Sprintf(
			`{"name": "random %s", "access": "random", "direction": "%s", "io_bytes": 8192, "jobs": 8, `+
				`"points": [%s, %s]}`,
			op, op, point(65536, 200, 210, 220), other)
	}
	path := filepath.Join(t.TempDir(), "result.json")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil,
		`{"schema": "trueup/1", "command": "bench", "date": "2026-11-23T01:02:03Z",
		"direct": true, "storage": {"path": "/srv/images"}, "loads": [%s, %s]}`,
		load("read", point(65024, 100, 200, 300)), load("write", point(65024, 100, 105, 110))), 0o600))
	return path
}

// A partition at LBA 63 lies as the measured start of 63.5 KiB does.
func TestBenchResultsInReports(t *testing.T) {
	t.Parallel()
	source, result := sampleDisk(t), benchResult(t)
	const said = "on this storage, aligned: random writes of 8 KiB 2.0 times as many; random reads of 8 KiB: no " +
		"difference that can " +
		"be told apart from noise (measured 2026-11-23, start 63.5 KiB)."
	flat := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	r := trueup(t, "inspect", "--bench", result, source)
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, flat(r.stdout), "Partition 1, "+said)
	r = trueup(t, "plan", "--bench", result, source)
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, flat(r.stdout), "Partition 1, "+said)

	type answer struct {
		Measured *struct {
			Partitions []struct {
				Partition int
				Gains     []struct {
					Load    string
					Start   int64 `json:"start_bytes"`
					Against struct {
						Median, Low, High float64
						Apart             bool `json:"told_apart"`
					} `json:"aligned_against_this"`
				}
			}
		}
	}
	for command, code := range map[string]int{"inspect": 3, "plan": 0} {
		a := trueupJSON[answer](t, code, command, "--bench", result, source)
		require.Len(t, a.Measured.Partitions, 1)
		gains := a.Measured.Partitions[0].Gains
		require.Len(t, gains, 2)
		require.False(t, gains[0].Against.Apart)
		require.True(t, gains[1].Against.Apart)
		require.InDelta(t, 2, gains[1].Against.Median, 0)
		require.Equal(t, int64(65024), gains[1].Start)
		require.Nil(t, trueupJSON[answer](t, code, command, source).Measured)
		validate(t, trueup(t, command, "--json", "--bench", result, source).stdout)
	}

	r = trueup(t, "inspect", "--bench", result, twoDisks(t).ova(t))
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, flat(r.stdout), "Partition 1, "+said, "each disk of a package")

	dest := filepath.Join(t.TempDir(), "aligned.vmdk")
	require.Equal(t, 0, trueup(t, "align", source, dest).code)
	require.NotContains(t, trueup(t, "inspect", "--bench", result, dest).stdout, "on this storage", "nothing is off")

	broken := filepath.Join(t.TempDir(), "broken.json")
	require.NoError(t,
		os.WriteFile(broken, []byte(`{"schema": "trueup/1", "command": "bench", "date": "2026-11-23T01:02:03Z"}`),
			0o600))
	for want, args := range map[string][]string{
		"broken.json: result of trueup bench: loads: 0, want": {"inspect", "--bench", broken, source},
		"no such file":            {"plan", "--bench", broken + "x", source},
		"would overwrite --bench": {"inspect", "--bench", result, "--out", result, source},
	} {
		r := trueup(t, args...)
		require.Contains(t, []int{1, 64}, r.code)
		require.Contains(t, r.stderr, want)
	}
}
