package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

type jsonTouched struct{ Now, Aligned float64 }

type jsonImpact struct {
	Storage           string `json:"storage"`
	StorageBlockBytes int64  `json:"storage_block_bytes"`
	DataBytes         int64  `json:"data_bytes"`
	BlockBytes        int64  `json:"block_bytes"`
	IO                []struct {
		SizeBytes  int64       `json:"size_bytes"`
		Random     jsonTouched `json:"random"`
		Sequential jsonTouched `json:"sequential"`
	} `json:"io"`
}

type jsonDiagnosis struct {
	Partitions []struct {
		Impact *jsonImpact `json:"impact"`
	} `json:"partitions"`
	Verdict  string        `json:"verdict"`
	Refusals []jsonFinding `json:"refusals"`
	Advice   struct {
		Action string `json:"action"`
		Gain   string `json:"gain"`
		Role   string `json:"role"`
		Text   string `json:"text"`
	} `json:"advice"`
	ExitCode int `json:"exit_code"`
}

// A storage changes the costs that are reported, never verdict and exit code.
func TestStorages(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	for _, tc := range []struct {
		storage         string
		block           int64
		random, aligned float64 // of an I/O of 4 KiB: one cluster of the NTFS at LBA 63
		action, gain    string
	}{
		{"generic", 4096, 2, 1, "align", "high"},
		{"netapp", 4096, 2, 1, "align", "high"},
		{"3par", 16384, 1.25, 1, "align", "high"},
		{"clariion", 65536, 1.0625, 1, "align", "high"},
		{"flasharray", 512, 8, 8, "optional", "none"},
		{"128K", 131072, 1.03125, 1, "align", "high"},
		{"ceph", 4 << 20, 1 + 1.0/1024, 1, "align", "some"},
		{"32K+63s", 32768, 1, 1.125, "optional", "loss"},
	} {
		t.Run(tc.storage, func(t *testing.T) {
			answer := trueupJSON[jsonDiagnosis](t, 3, "inspect", "--impact", "--storage", tc.storage, source)
			require.Equal(t, "misaligned", answer.Verdict)
			impact := answer.Partitions[0].Impact
			require.Equal(t, []int64{tc.block, 63 * 512, 4096}, []int64{
				impact.StorageBlockBytes, impact.DataBytes,
				impact.BlockBytes,
			})
			require.Equal(t, tc.storage, impact.Storage)
			var sizes []int64
			for _, io := range impact.IO {
				sizes = append(sizes, io.SizeBytes>>10)
			}
			require.Equal(t, []int64{1, 4, 8, 16, 32, 64, 72, 128}, sizes)
			require.Equal(t, jsonTouched{tc.random, tc.aligned}, impact.IO[1].Random)
			require.Equal(t, []string{tc.action, tc.gain}, []string{answer.Advice.Action, answer.Advice.Gain})
		})
	}
	require.Nil(t, trueupJSON[jsonDiagnosis](t, 3, "inspect", source).Partitions[0].Impact, "it was not asked for")
	wrong := trueup(t, "inspect", "--storage", "emc", source)
	require.Equal(t, 64, wrong.code)
	for _, name := range []string{
		"generic", "netapp", "clariion", "3par", "hp-raid5", "flasharray", "vmfs",
		"from 512 to 4M",
	} {
		require.Contains(t, wrong.stderr, name)
	}
}

// Advice says what the exit code and the refusals say.
func TestAdviceOfImages(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(t *testing.T, raw string)
		exit   int
		action string
		role   string
	}{
		"a disk that can be aligned": {func(*testing.T, string) {}, 3, "align", "data"},
		"boot code that is not known": {func(t *testing.T, raw string) {
			t.Helper()
			disktest.WriteAt(t, raw, 0, noise("code", 64))
		}, 3, "refused", "boot"},
		"a table that is malformed": {func(t *testing.T, raw string) {
			t.Helper()
			disktest.WriteAt(t, raw, mbrEntryAt+12, []byte{0xff, 0xff, 0xff, 0xff})
		}, 1, "repair", "data"},
		"a volume alone": {func(t *testing.T, raw string) {
			t.Helper()
			disktest.WriteAt(t, raw, 0, readAt(t, raw, trackSectors*sectorSize, 2<<20))
		}, 0, "none", "unknown"},
		"no partition": {func(t *testing.T, raw string) {
			t.Helper()
			disktest.WriteAt(t, raw, mbrEntryAt, make([]byte, mbrEntrySize))
			disktest.WriteAt(t, raw, sectorSize, make([]byte, (8<<20)-sectorSize)) // else its content is unknown
		}, 0, "none", "data"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := formatSparse.rawOf(t, sampleDisk(t))
			tc.change(t, raw)
			answer := trueupJSON[jsonDiagnosis](t, tc.exit, "inspect", "--impact", raw)
			require.Equal(t, tc.action, answer.Advice.Action, answer.Advice.Text)
			require.Equal(t, tc.role, answer.Advice.Role)
			require.Equal(t, tc.action == "refused", len(answer.Refusals) > 0)
			for _, args := range [][]string{{"--impact"}, {"--list"}, {"--storage", "64K"}} {
				r := trueup(t, append([]string{"inspect", raw}, args...)...)
				require.Equal(t, tc.exit, r.code, r.stderr)
				require.NotEmpty(t, r.stdout)
			}
		})
	}
}

// onTerminal runs trueup on a terminal of so many columns.
func onTerminal(t *testing.T, columns int, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command(disktest.Tool(t, "script"), "-qec", fmt.Sprintf("stty cols %d rows 50; exec %s %s", columns,
		builtPath, strings.Join(args, " ")), "/dev/null")
	cmd.Env = append(os.Environ(), append([]string{"TERM=xterm", "LC_ALL=", "LC_CTYPE=", "NO_COLOR="}, env...)...)
	out, err := cmd.Output()
	require.Equal(t, 3, cmd.ProcessState.ExitCode(), "%v: %s", err, out)
	return strings.ReplaceAll(string(out), "\r\n", "\n")
}

// A picture is as wide as the terminal and has characters that it can show.
func TestPictureOnTerminals(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	for name, tc := range map[string]struct {
		env            []string
		blocks, colour bool
	}{
		"utf-8":               {[]string{"LANG=C.UTF-8"}, true, true},
		"utf8 in small":       {[]string{"LANG=de_DE.utf8"}, true, true},
		"latin":               {[]string{"LANG=de_DE.ISO-8859-1"}, false, true},
		"LC_ALL before LANG":  {[]string{"LANG=C.UTF-8", "LC_ALL=C"}, false, true},
		"a dumb terminal":     {[]string{"LANG=C.UTF-8", "TERM=dumb"}, false, false},
		"NO_COLOR":            {[]string{"LANG=C.UTF-8", "NO_COLOR=1"}, true, false},
		"no locale, no color": {[]string{"LANG=", "NO_COLOR=1"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, columns := range []int{40, 80, 132} {
				out := onTerminal(t, columns, tc.env, "inspect", source)
				require.Equal(t, tc.blocks, strings.Contains(out, "▚"))
				require.Equal(t, tc.colour, strings.Contains(out, "\x1b[31m"))
				if tc.colour {
					continue // escapes have no width
				}
				for line := range strings.Lines(out) {
					if strings.HasPrefix(line, "  [") || strings.HasPrefix(line, "  ▕") {
						require.Equal(t, columns, utf8.RuneCountInString(strings.TrimRight(line, "\n")))
					}
				}
			}
		})
	}
	require.Contains(t, trueup(t, "inspect", source).stdout, "  [.1XXXX", "a pipe gets plain characters")
	plan := trueup(t, "plan", source).stdout
	require.Contains(t, plan, "  before  [.1XXXX")
	require.Regexp(t, `(?m)^  after   \[\.+1####`, plan)
	out := filepath.Join(t.TempDir(), "report")
	onTerminal(t, 80, []string{"LANG=C.UTF-8"}, "inspect", "--out", out, source)
	b := disktest.ReadFile(t, out)
	require.Contains(t, string(b), "  [.1XXXX", "a file is read anywhere")
}
