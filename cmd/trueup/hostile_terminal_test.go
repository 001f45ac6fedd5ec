package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// nastyTexts would move a terminal's cursor, set its title or clipboard, or reverse its lines. A FAT label holds eleven
// bytes.
var nastyTexts = map[string]string{
	"title":                "\x1b]0;x\a",
	"clear screen":         "\x1b[2J",
	"hyperlink":            "\x1b]8;;h\x1b\\",
	"clipboard":            "\x1b]52;c;eA\a",
	"line ends":            "a\rb\nc\x85d",
	"control of one byte":  "\x9b2Jx",
	"control in UTF-8":     "\xc2\x9b2J\x7f",
	"other direction":      "\u202etxt.",
	"no UTF-8":             "\xff\xfe\xc3(",
	"tab and bell and nul": "a\t\a\v\x01b",
}

// someTexts returns three of nastyTexts, or all of them with make exhaustive.
func someTexts() map[string]string {
	if disktest.Exhaustive {
		return nastyTexts
	}
	some := map[string]string{}
	for _, name := range []string{"clear screen", "line ends", "no UTF-8"} {
		some[name] = nastyTexts[name]
	}
	return some
}

// requireAllClean runs every command that shows an image, in every form, and returns the result of inspect. exit is the
// exit code of commands that copy.
func requireAllClean(t testing.TB, image string, exit int) jsonInspect {
	t.Helper()
	dest := filepath.Join(t.TempDir(), filepath.Base(image))
	ends := measure(t, []string{"inspect", "--json", image}, []string{"plan", image}, []string{"plan", "--json", image},
		[]string{"align", "-v", "--progress", "json", image, dest}, []string{"align", "--json", "--force", image, dest},
		[]string{"inspect", image}, []string{"inspect", "-v", image}, []string{"verify", image, dest},
		[]string{"verify", "--json", image, dest}, []string{"verify", image, image + "-is-not-there"})
	for i, r := range ends {
		requireClean(t, r.stdout, r.stderr)
		if i >= 1 && i <= 4 {
			require.Equal(t, exit, r.code, r.stderr)
		}
	}
	var report jsonInspect
	unmarshal(t, ends[0], &report)
	return report
}

// TestHostilePaths puts such texts into file names, which can contain anything but a slash and a zero byte.
func TestHostilePaths(t *testing.T) {
	t.Parallel()
	for name, text := range someTexts() {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), text)
			require.NoError(t, os.Mkdir(dir, 0o755))
			raw := writeForged(text+".raw", hostile.Disk())(t, dir)
			report := requireAllClean(t, raw, 0)
			require.Equal(t, string([]rune(raw)), report.Image.Path)

			vmdk := flatImage(goodFlat())(t, dir)
			require.NoError(t, os.Rename(vmdk, filepath.Join(dir, text+".vmdk")))
			child := vmdkforge.Descriptor("monolithicFlat", `RW 4096 FLAT "x-flat.vmdk" 0`)
			child = strings.Replace(child, "parentCID=ffffffff",
				"parentCID=4a5b6c7d\nparentFileNameHint=\""+filepath.Base(vmdk)+"\"", 1)
			for neighbour, content := range map[string]string{
				text + "-000001.vmdk": child, text + ".vmx.lck": "",
				".lck-" + text: "", text + ".vmss": "",
			} {
				writeText(neighbour, content)(t, dir)
			}
			requireAllClean(t, filepath.Join(dir, text+".vmdk"), 4)
		})
	}
}

// TestHostileArguments passes hostile texts as file names and flag values, like a script that is given such names.
func TestHostileArguments(t *testing.T) {
	t.Parallel()
	image := writeForged("disk.raw", hostile.Disk())(t, t.TempDir())
	// The kernel accepts arguments of up to 128 KiB.
	texts := []string{strings.Repeat("x", 60<<10), strings.Repeat("\x1b", 60<<10)}
	for _, text := range someTexts() {
		texts = append(texts, text)
	}
	for _, text := range texts {
		for i, r := range measure(t, []string{text}, []string{"inspect", text}, []string{"inspect", "--json", text},
			[]string{"plan", text}, []string{"align", text, text}, []string{"align", image, text + "/" + text},
			[]string{"verify", image, text}, []string{"inspect", "--" + text, image},
			[]string{"inspect", "--format", text, image}, []string{"inspect", "--boundary", text, image},
			[]string{"inspect", "--output", text, image}, []string{"align", "--to", text, image, text + "/x"},
			[]string{"plan", "--partition", text, image}, []string{"inspect", image, text}) {
			require.NotZero(t, r.code, "command %d", i)
			requireClean(t, r.stdout, r.stderr)
			require.Less(t, len(r.stdout)+len(r.stderr), 16<<10, "command %d: cut, whatever the length of %.20q", i,
				text)
			require.Equal(t, 1, strings.Count(r.stderr, "\n"), "command %d: %q", i, r.stderr)
		}
	}
}

// TestHostileDescriptorTexts puts such texts into the descriptor of a container and the names of a GPT.
func TestHostileDescriptorTexts(t *testing.T) {
	t.Parallel()
	for name, text := range someTexts() {
		t.Run(name, func(t *testing.T) {
			line := strings.ReplaceAll(text, "\n", "")
			for _, c := range []string{
				changed(`ddb.adapterType = "ide"`, `ddb.adapterType = "`+line+`"`),
				changed(`"monolithicFlat"`, `"`+line+`"`),
				changed("x-flat.vmdk", line), changed("CID=4a5b6c7d", "CID="+line), changed("FLAT", line),
				changed("#DDB", line), changed("RW 4096", line+" "+line),
				changed("parentCID=ffffffff", "parentCID=00000001\nparentFileNameHint=\""+line+"\""),
			} {
				path := flatImage(c)(t, t.TempDir())
				for _, r := range measure(t, []string{"inspect", path}, []string{"inspect", "--json", path},
					[]string{"align", path, path + "-copy.vmdk"}) {
					requireClean(t, r.stdout, r.stderr)
				}
			}
			gpt := tableforge.NewGPT(512, xpSectors, 128, tableforge.GPTEntry{First: 63, Last: 1062, Name: text})
			requireAllClean(t, writeForged("gpt.raw", gpt)(t, t.TempDir()), 0)
		})
	}
}
