package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// exchangeScript scans a folder and returns its script, which exchanges what it can, and the lines with commands.
func exchangeScript(t *testing.T, dir string) (script string, commands []string) {
	t.Helper()
	script = filepath.Join(t.TempDir(), "fix.sh")
	r := trueup(t, "scan", "--script", script, "--replace", dir)
	require.Equal(t, 3, r.code, r.stderr)
	text := disktest.ReadFile(t, script)
	found := regexp.MustCompile(`(?m)^(?:exchange|copy) \d+ (.*)$`).FindAllStringSubmatch(string(text), -1)
	for _, m := range found {
		commands = append(commands, strings.ReplaceAll(m[1], dir+"/", ""))
	}
	require.Empty(t, disktest.Run(t, "shellcheck", script))
	return script, commands
}

// TestScriptExchanges runs a script that gives copies the names of their sources: twice, which does no harm. The next
// scan finds nothing, also when the originals are removed.
func TestScriptExchanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := flatDisk(t, dir, "b c"), smallDisk(t, filepath.Join(dir, "a.raw"), 63)
	ova, ovf := twoDisks(t).ova(t), twoDisks(t).folder(t)
	disktest.Run(t, "cp", ova, filepath.Join(dir, "p.ova"))
	disktest.Run(t, "cp", "-r", filepath.Dir(ovf)+"/.", dir)
	names := folderNames(t, dir)
	script, commands := exchangeScript(t, dir)
	require.ElementsMatch(t, []string{
		"replace a.raw", "replace 'b c.vmdk'", "replace p.ova", "replace vm.ovf",
	}, commands)
	command := []string{"env", "TRUEUP=" + builtPath, "bash", script}
	require.Contains(t, disktest.Output(t, command[0], command[1:]...),
		"0 made, 4 exchanged or aligned already, 0 passed over, 0 failed")
	s := scan(t, dir)
	require.Equal(t, 0, s.code, s.stderr)
	require.Equal(t, results.Original, s.rows[filepath.Join(dir, "b c.orig.vmdk")].State)
	require.Equal(t, results.Original, s.rows[filepath.Join(dir, "a.orig.raw")].State)
	before := folderSums(t, dir)
	require.Contains(t, disktest.Output(t, command[0], command[1:]...), "0 failed")
	require.Equal(t, before, folderSums(t, dir))
	for _, disk := range []string{a, b, filepath.Join(dir, "p.ova"), filepath.Join(dir, "vm.ovf")} {
		require.Equal(t, 0, trueup(t, "finish", disk).code)
	}
	require.Equal(t, 0, scan(t, dir).code)
	require.Equal(t, names, folderNames(t, dir))
}

// TestScriptExchangesNoParent has a disk that a snapshot in the folder beside reads, which would find another disk by
// the name: it is copied. What replace refuses fails, and the script goes on.
func TestScriptExchangesNoParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"linked.raw", "base.raw", "plain.raw"} {
		smallDisk(t, at(name), 63)
	}
	require.NoError(t, os.Link(at("linked.raw"), at("also.raw")))
	require.NoError(t, os.Mkdir(at("z"), 0o755))
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "../base.raw", at("z/child.qcow2"))
	script, commands := exchangeScript(t, dir)
	require.ElementsMatch(t, []string{
		"replace also.raw", "align base.raw base-aligned.raw", "replace plain.raw",
	}, commands)
	text := string(disktest.ReadFile(t, script))
	require.Contains(t, text, `a copy, not an exchange: "`+at("z/child.qcow2")+`" needs`)
	r := run(t, "env", "TRUEUP="+builtPath, "bash", script)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "1 made, 1 exchanged or aligned already, 0 passed over, 1 failed")
	require.Contains(t, r.stderr, "2 hard links")
}
