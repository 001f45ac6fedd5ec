package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/cli"
)

// made makes a release for one system, with a path as make passes it, and returns its folder.
func made(t *testing.T, root string, flags ...string) (out string) {
	t.Helper()
	out = filepath.Join(t.TempDir(), "out")
	here, err := filepath.Abs(".")
	require.NoError(t, err)
	relative, err := filepath.Rel(here, out)
	require.NoError(t, err)
	r := &release{
		root: root, out: relative, version: "v0.1.0", time: time.Unix(1_767_225_600, 0).UTC(), systems: "linux/amd64",
		flags: flags,
	}
	require.NoError(t, r.make())
	return out
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s: %s%s", name, strings.Join(args, " "), out, errs.String())
	return string(out)
}

// clone copies the sources, with what is not committed of the files that git knows.
func clone(t *testing.T, name string) string {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	to := filepath.Join(t.TempDir(), name)
	run(t, "git", "clone", "-q", root, to)
	diff := run(t, "git", "-C", root, "diff", "HEAD", "--binary")
	if diff != "" {
		path := filepath.Join(t.TempDir(), "diff")
		require.NoError(t, os.WriteFile(path, []byte(diff), 0o600))
		run(t, "git", "-C", to, "apply", path)
	}
	return to
}

// one returns the only file that a pattern matches.
func one(t *testing.T, pattern string) string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.Len(t, list, 1, pattern)
	return list[0]
}

// TestRelease makes a release twice, the second time compiled again in another folder, with another time zone and
// umask. Both must be equal. Other programs then check the files.
func TestRelease(t *testing.T) {
	first := clone(t, "a")
	out := made(t, first)
	t.Setenv("TZ", "Asia/Kathmandu")
	old := syscall.Umask(0o077)
	second := filepath.Join(t.TempDir(), "a folder of another name")
	run(t, "cp", "-a", first, second)
	again := made(t, second, "-a")
	syscall.Umask(old)
	sums := func(folder string) string {
		text, err := os.ReadFile(filepath.Join(folder, "SHA256SUMS"))
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, sums(out), sums(again))
	cmd := exec.Command("sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	cmd.Dir = out
	require.NoError(t, cmd.Run())

	unpacked := t.TempDir()
	run(t, "tar", "-xzf", one(t, out+"/*-linux-amd64.tar.gz"), "-C", unpacked, "--strip-components=1")
	t.Run("pages", func(t *testing.T) { checkPages(t, unpacked) })
	t.Run("links", func(t *testing.T) { checkLaunchers(t, unpacked) })
	t.Run("deb", func(t *testing.T) { checkDeb(t, out) })
	t.Run("same files", func(t *testing.T) { checkOthers(t, out) })
	t.Run("images", func(t *testing.T) {
		checkImage(t, one(t, out+"/trueup-0*-oci.tar"), "trueup")
		checkImage(t, one(t, out+"/trueup-fleet-0*-oci.tar"), "trueup", "trueup-fleet")
		checkContainer(t, one(t, out+"/trueup-0*-oci.tar"))
	})
	t.Run("bill", func(t *testing.T) { checkBill(t, one(t, out+"/*.cdx.json"), unpacked) })
}

// checkPages has man and the shells read what is for them.
func checkPages(t *testing.T, prefix string) {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(prefix, filepath.FromSlash(cli.ManFolder), "*.1"))
	require.NoError(t, err)
	for _, page := range pages {
		require.Empty(t, run(t, "mandoc", "-Tlint", "-Wwarning", page))
	}
	var want []string
	for _, of := range [][]string{{"trueup"}, {"trueup-fleet"}, {"trueup-fleet", "submit"}} {
		program := filepath.Join(prefix, of[0])
		_, list, found := strings.Cut(run(t, program, append(of[1:], "--help")...), "Commands:\n")
		require.True(t, found)
		list, _, _ = strings.Cut(list, "\n\n")
		for line := range strings.Lines(list) {
			if name := strings.Fields(line)[0]; name != "completion" && name != "help" {
				want = append(want, strings.Join(append(slices.Clone(of), name), "-")+".1")
			}
		}
	}
	want = append(want, "trueup.1", "trueup-fleet.1")
	for i := range pages {
		pages[i] = filepath.Base(pages[i])
	}
	require.ElementsMatch(t, want, pages, "each command of the help has a page, but for completion")
	manual := func(page string) string {
		return run(t, "man", "--no-hyphenation", filepath.Join(prefix, filepath.FromSlash(cli.ManFolder), page))
	}
	require.Contains(t, manual("trueup-align.1"),
		"trueup-align - write an aligned copy of a disk image that still boots")
	require.Contains(t, manual("trueup-fleet-submit-scan.1"), "trueup-fleet submit scan --datastore NAME [FOLDER]...")
	for _, name := range []string{"trueup", "trueup-fleet"} {
		for shell, file := range map[string]string{
			"bash": cli.Bash + name, "zsh": cli.Zsh + name, "fish": cli.Fish + name + ".fish",
		} {
			run(t, shell, "-n", filepath.Join(prefix, filepath.FromSlash(file)))
		}
	}
}

// checkLaunchers requires that what docs/fleet.md leads to is in the archive.
func checkLaunchers(t *testing.T, unpacked string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(unpacked, "docs/fleet.md"))
	require.NoError(t, err)
	require.Contains(t, string(text), "](../"+launchers+")")
	there, err := files(filepath.Join(unpacked, launchers))
	require.NoError(t, err)
	ours, err := files("fleet")
	require.NoError(t, err)
	require.Equal(t, ours, there)
}

// checkDeb installs the packages in a clean Debian, uses them and removes them.
func checkDeb(t *testing.T, out string) {
	t.Helper()
	debs := []string{one(t, out+"/trueup_*.deb"), one(t, out+"/trueup-fleet_*.deb")}
	root := filepath.Join(t.TempDir(), "root")
	run(t, "debootstrap", "--variant=minbase", "stable", root, mirror(t))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	inside := func(args ...string) string { return run(t, "chroot", append([]string{root}, args...)...) }
	listed := func() []string {
		return strings.Fields(inside("find", "/usr", "/etc", "/opt", "/bin/", "-not", "-path", "/usr/share/man*"))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "run/systemd/system"), 0o755))
	fake := "#!/bin/sh\necho \"$@\" >> /tmp/systemctl\n" // no systemd runs here
	require.NoError(t, os.WriteFile(filepath.Join(root, "usr/bin/systemctl"), []byte(fake), 0o755))
	run(t, "cp", "../testdata/xp-lba63.vmdk", filepath.Join(root, "tmp/xp.vmdk"))
	before := listed()
	for _, deb := range debs {
		require.Empty(t, run(t, "lintian", "--allow-root", "--fail-on", "error", "--tag-display-limit", "0", deb))
		run(t, "cp", deb, filepath.Join(root, "new.deb"))
		inside("dpkg", "--install", "/new.deb")
	}
	require.Equal(t, "trueup v0.1.0\n", inside("trueup", "version"))
	inside("trueup", "align", "--quiet", "/tmp/xp.vmdk", "/tmp/aligned.vmdk")
	require.Contains(t, inside("trueup", "inspect", "/tmp/aligned.vmdk"), "Aligned:")
	require.Equal(t, "trueup-fleet v0.1.0\n", inside("trueup-fleet", "version"))
	useFleet(t, root, inside)
	for _, name := range []string{"trueup", "trueup-fleet"} {
		inside("bash", "-c", ". /usr/share/bash-completion/completions/"+name+" && complete -p "+name)
		inside("test", "-s", "/usr/share/doc/"+name+"/copyright")
	}
	require.Empty(t, run(t, "systemd-analyze", "verify", "--root="+root, "--man=no", "--recursive-errors=no",
		"trueup-fleet-serve.service", "trueup-fleet-worker.service"))
	require.NoFileExists(t, filepath.Join(root, "tmp/systemctl"), "nothing is enabled or started")
	inside("dpkg", "--purge", "trueup-fleet")
	asked, err := os.ReadFile(filepath.Join(root, "tmp/systemctl"))
	require.NoError(t, err)
	require.Equal(t, "disable --now trueup-fleet-serve.service trueup-fleet-worker.service\n", string(asked))
	inside("dpkg", "--purge", "trueup")
	require.Equal(t, before, listed())
}

// useFleet has a server and a worker of the installed program align an image.
func useFleet(t *testing.T, root string, inside func(args ...string) string) {
	t.Helper()
	server := exec.Command("chroot", root, "trueup-fleet", "serve", "--store", "/tmp/store", "--listen", "127.0.0.1:0")
	said, err := server.StdoutPipe()
	require.NoError(t, err)
	var errs bytes.Buffer
	server.Stderr = &errs
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Process.Kill() })
	url, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		_ = server.Wait()
	}
	require.NoError(t, err, errs.String())
	url = strings.TrimSpace(url)
	inside("trueup-fleet", "submit", "align", "--nats", url, "--datastore", "ds", "xp.vmdk")
	inside("trueup-fleet", "worker", "--nats", url, "--datastore", "ds=/tmp", "--folder", "/tmp/results", "--once")
	require.Contains(t, inside("trueup", "inspect", "/tmp/xp-aligned.vmdk"), "Aligned:")
	require.NoError(t, server.Process.Signal(syscall.SIGTERM))
	require.NoError(t, server.Wait(), "a server that is asked to end has done all")
}

// mirror is the one that this machine has its packages from.
func mirror(t *testing.T) string {
	t.Helper()
	for line := range strings.SplitSeq(run(t, "apt-get", "indextargets", "--format", "$(SITE)"), "\n") {
		if strings.Contains(line, "/debian") && !strings.Contains(line, "security") {
			return line
		}
	}
	require.Fail(t, "apt names no mirror of Debian")
	return ""
}

// checkOthers compares the files of the other packages with those of the deb.
func checkOthers(t *testing.T, out string) {
	t.Helper()
	sorted := func(text string) (list []string) {
		for line := range strings.Lines(text) {
			name := strings.TrimPrefix(strings.TrimSpace(line), ".")
			if strings.HasPrefix(name, "/usr/") && !strings.HasSuffix(name, "/") && !strings.Contains(name, "/doc/") &&
				!strings.Contains(name, "/licenses/") && !strings.Contains(name, "/lintian/") {
				list = append(list, strings.Replace(name, "zsh/vendor-completions", "zsh/site-functions", 1))
			}
		}
		slices.Sort(list)
		return list
	}
	for _, name := range []string{"trueup", "trueup-fleet"} {
		deb, rpm, apk := one(t, out+"/"+name+"_*.deb"), one(t, out+"/"+name+"-0*.rpm"), one(t, out+"/"+name+"_*.apk")
		list := sorted(run(t, "sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -t`, "sh", deb))
		require.Contains(t, list, "/usr/bin/"+name)
		require.Equal(t, list, sorted(run(t, "rpm", "--query", "--package", "--list", rpm)))
		inApk := run(t, "tar", "-tzf", apk)
		require.Equal(t, list, sorted(strings.ReplaceAll("/"+strings.ReplaceAll(inApk, "\n", "\n/"), "//", "/")))
		if name == "trueup" {
			continue
		}
		require.Contains(t, list, "/usr/lib/systemd/system/trueup-fleet-worker.service")
		require.Equal(t, "trueup (= 0.1.0-1)\n", run(t, "dpkg-deb", "--field", deb, "Depends"))
		require.Contains(t, "\n"+run(t, "rpm", "--query", "--package", "--requires", rpm), "\ntrueup = 0.1.0-1\n")
		require.Contains(t, run(t, "tar", "-xzOf", apk, ".PKGINFO"), "\ndepend = trueup=0.1.0-r1\n")
	}
}

// checkContainer runs the recipe of containers as it stands, on an image that any user may read.
func checkContainer(t *testing.T, archive string) {
	t.Helper()
	docs, err := os.ReadFile("../docs/recipes.md")
	require.NoError(t, err)
	_, recipe, found := strings.Cut(string(docs), "```sh\nimage=")
	require.True(t, found)
	recipe, _, _ = strings.Cut(recipe, "```")
	dir := t.TempDir()
	for variable, text := range map[string]string{
		"CONTAINERS_STORAGE_CONF": fmt.Sprintf("[storage]\ndriver = \"vfs\"\ngraphroot = %q\nrunroot = %q\n",
			dir+"/graph", dir+"/run"),
		// What runs where a test itself is in a container: old control groups, and limits that cannot be raised.
		"CONTAINERS_CONF": "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n" +
			"[engine]\nruntime = \"runc\"\n",
	} {
		t.Setenv(variable, filepath.Join(dir, variable))
		require.NoError(t, os.WriteFile(filepath.Join(dir, variable), []byte(text), 0o600))
	}
	run(t, "cp", archive, filepath.Join(dir, "trueup-oci.tar"))
	run(t, "install", "-D", "-m", "0644", "-t", filepath.Join(dir, "images"), "../testdata/xp-lba63.vmdk")
	cmd := exec.Command("sh", "-ec", "image="+recipe)
	cmd.Dir = dir
	scanned, err := cmd.CombinedOutput()
	require.Equal(t, 3, cmd.ProcessState.ExitCode(), "%v: %s", err, scanned)
	require.Contains(t, string(scanned), "off 4K")
	require.Contains(t, run(t, "podman", "images"), "localhost/trueup ")
}

// checkImage unpacks the image with another program, and runs its programs, of which the last is the entry, as they
// would run.
func checkImage(t *testing.T, archive string, programs ...string) {
	t.Helper()
	folder := t.TempDir()
	run(t, "skopeo", "copy", "--quiet", "--insecure-policy", "oci-archive:"+archive, "dir:"+folder+"/image")
	config := run(t, "skopeo", "inspect", "--config", "oci-archive:"+archive)
	require.Contains(t, config, `"User": "65532:65532"`)
	require.Regexp(t, `"Entrypoint": \[\s*"/usr/bin/`+programs[len(programs)-1]+`"\s*\]`, config)
	root := filepath.Join(folder, "root")
	require.NoError(t, os.Mkdir(root, 0o755))
	n := 0
	list, err := os.ReadDir(folder + "/image")
	require.NoError(t, err)
	for _, e := range list {
		text, err := os.ReadFile(filepath.Join(folder, "image", e.Name()))
		require.NoError(t, err)
		if bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
			unpack(t, text, root)
			n++
		}
	}
	require.Equal(t, 1, n)
	for dir := folder; dir != "/"; dir = filepath.Dir(dir) { // for a user who is not root
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&1 == 0 {
			require.NoError(t, os.Chmod(dir, st.Mode().Perm()|1))
		}
	}
	for _, name := range programs {
		require.Equal(t, name+" v0.1.0\n",
			run(t, "chroot", "--userspec=65532:65532", root, "/usr/bin/"+name, "version"))
	}
	there, err := os.ReadDir(filepath.Join(root, "usr/bin"))
	require.NoError(t, err)
	require.Len(t, there, len(programs))
}

func unpack(t *testing.T, layer []byte, root string) {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(layer))
	require.NoError(t, err)
	for in := tar.NewReader(gz); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		path := filepath.Join(root, filepath.FromSlash(h.Name))
		if h.Typeflag == tar.TypeDir {
			require.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		data, err := io.ReadAll(in)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, data, h.FileInfo().Mode().Perm()))
		require.NoError(t, os.Chmod(path, h.FileInfo().Mode().Perm()))
	}
}

// checkBill compares the bill of materials with what go says is linked into each program.
func checkBill(t *testing.T, bill, unpacked string) {
	t.Helper()
	names := strings.Fields(run(t, "jq", "-r", `.components[] | select(.type == "library") | .name`, bill))
	var all []string
	for _, program := range []string{"trueup", "trueup-fleet"} {
		want := []string{"std"}
		for line := range strings.Lines(run(t, "go", "version", "-m", filepath.Join(unpacked, program))) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "dep" {
				want = append(want, f[1])
			}
		}
		slices.Sort(want)
		const linked = `[.components[] | {(."bom-ref"): .name}] as $names | ($names | add) as $names |
			.dependencies[] | select(.ref | endswith("#cmd/" + $program)) | .dependsOn[] | $names[.]`
		require.Equal(t, want, strings.Fields(run(t, "jq", "-r", "--arg", "program", program, linked, bill)))
		all = append(all, want...)
	}
	slices.Sort(all)
	require.Equal(t, slices.Compact(all), names)
	texts, err := os.ReadFile(filepath.Join(unpacked, "THIRD-PARTY.txt"))
	require.NoError(t, err)
	for _, name := range []string{"github.com/nats-io/nats-server/v2", "github.com/spf13/pflag"} {
		folder := strings.TrimSpace(run(t, "go", "list", "-m", "-f", "{{.Dir}}", name))
		licence, err := os.ReadFile(filepath.Join(folder, "LICENSE"))
		require.NoError(t, err)
		require.Contains(t, string(texts), strings.TrimSpace(string(licence)))
	}
	require.Equal(t, "0\n", run(t, "jq", "[.components[] | select((.licenses | length) == 0)] | length", bill))
}
