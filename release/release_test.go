package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
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
)

// made is a release for one system, with the folder that it was made in.
func made(t *testing.T, root string, flags ...string) (r *release, out string) {
	t.Helper()
	out = filepath.Join(t.TempDir(), "out")
	r = &release{
		root: root, out: out, version: "v0.1.0", time: time.Unix(1_767_225_600, 0).UTC(), systems: "linux/amd64",
		flags: flags,
	}
	require.NoError(t, r.make())
	return r, out
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

// TestRelease makes a release, and again from another folder, compiled anew, with another time zone and umask. What
// other programs make of it follows.
func TestRelease(t *testing.T) {
	first := clone(t, "a")
	_, out := made(t, first)
	t.Setenv("TZ", "Asia/Kathmandu")
	old := syscall.Umask(0o077)
	second := filepath.Join(t.TempDir(), "a folder of another name")
	run(t, "cp", "-a", first, second)
	_, again := made(t, second, "-a")
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
	t.Run("deb", func(t *testing.T) { checkDeb(t, one(t, out+"/*.deb")) })
	t.Run("same files", func(t *testing.T) { checkOthers(t, out) })
	t.Run("image", func(t *testing.T) { checkImage(t, one(t, out+"/*-oci.tar")) })
	t.Run("bill", func(t *testing.T) { checkBill(t, one(t, out+"/*.cdx.json"), filepath.Join(unpacked, "trueup")) })
}

// checkPages has man and the shells read what is for them.
func checkPages(t *testing.T, prefix string) {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(prefix, filepath.FromSlash(manFolder), "*.1"))
	require.NoError(t, err)
	help := run(t, filepath.Join(prefix, "trueup"), "--help")
	for _, page := range pages {
		require.Empty(t, run(t, "mandoc", "-Tlint", "-Wwarning", page))
		name := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(page), ".1"), "trueup")
		require.Contains(t, help, "\n  "+strings.TrimPrefix(name, "-"))
	}
	require.Len(t, pages, strings.Count(help[strings.Index(help, "Commands:"):strings.Index(help, "Examples:")], "\n  "),
		"each command of the help has a page, but for completion, and trueup itself has one")
	text := run(t, "man", "--no-hyphenation", filepath.Join(prefix, filepath.FromSlash(manFolder), "trueup-align.1"))
	require.Contains(t, text, "trueup-align - write an aligned copy of a disk image that still boots")
	for shell, file := range map[string]string{"bash": bash, "zsh": zsh, "fish": fish} {
		run(t, shell, "-n", filepath.Join(prefix, filepath.FromSlash(file)))
	}
}

// checkDeb installs the package in a clean Debian, uses it and removes it.
func checkDeb(t *testing.T, deb string) {
	t.Helper()
	require.Empty(t, run(t, "lintian", "--allow-root", "--fail-on", "error", "--tag-display-limit", "0", deb))
	root := filepath.Join(t.TempDir(), "root")
	run(t, "debootstrap", "--variant=minbase", "stable", root, mirror(t))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(root)) })
	inside := func(args ...string) string { return run(t, "chroot", append([]string{root}, args...)...) }
	listed := func() []string {
		return strings.Fields(inside("find", "/usr", "/etc", "/opt", "/bin/", "-not", "-path", "/usr/share/man*"))
	}
	run(t, "cp", deb, filepath.Join(root, "trueup.deb"))
	run(t, "cp", "../testdata/xp-lba63.vmdk", filepath.Join(root, "tmp/xp.vmdk"))
	before := listed()
	inside("dpkg", "--install", "/trueup.deb")
	require.Equal(t, "trueup v0.1.0\n", inside("trueup", "version"))
	inside("trueup", "align", "--quiet", "/tmp/xp.vmdk", "/tmp/aligned.vmdk")
	require.Contains(t, inside("trueup", "inspect", "/tmp/aligned.vmdk"), "Aligned:")
	inside("bash", "-c", ". /usr/share/bash-completion/completions/trueup && complete -p trueup")
	inside("test", "-s", "/usr/share/doc/trueup/copyright")
	inside("dpkg", "--purge", "trueup")
	require.Equal(t, before, listed())
}

// mirror is the one that this machine has its packages from.
func mirror(t *testing.T) string {
	t.Helper()
	for _, line := range strings.Split(run(t, "apt-get", "indextargets", "--format", "$(SITE)"), "\n") {
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
	deb := sorted(run(t, "sh", "-c", `dpkg-deb --fsys-tarfile "$1" | tar -t`, "sh", one(t, out+"/*.deb")))
	require.Contains(t, deb, "/usr/bin/trueup")
	require.Equal(t, deb, sorted(run(t, "rpm", "--query", "--package", "--list", one(t, out+"/*.rpm"))))
	apk := run(t, "tar", "-tzf", one(t, out+"/*.apk"))
	require.Equal(t, deb, sorted(strings.ReplaceAll("/"+strings.ReplaceAll(apk, "\n", "\n/"), "//", "/")))
}

// checkImage unpacks the image with another program, and runs it as it would run.
func checkImage(t *testing.T, archive string) {
	t.Helper()
	folder := t.TempDir()
	run(t, "skopeo", "copy", "--quiet", "--insecure-policy", "oci-archive:"+archive, "dir:"+folder+"/image")
	config := run(t, "skopeo", "inspect", "--config", "oci-archive:"+archive)
	require.Contains(t, config, `"User": "65532:65532"`)
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
	require.Equal(t, "trueup v0.1.0\n", run(t, "chroot", "--userspec=65532:65532", root, "/usr/bin/trueup", "version"))
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

// checkBill compares the bill of materials with what go says is linked.
func checkBill(t *testing.T, bill, program string) {
	t.Helper()
	names := strings.Fields(run(t, "jq", "-r", ".components[].name", bill))
	var want []string
	for line := range strings.Lines(run(t, "go", "version", "-m", program)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "dep" {
			want = append(want, f[1])
		}
	}
	want = append(want, "std")
	slices.Sort(want)
	require.Equal(t, want, names)
	require.Equal(t, "0\n", run(t, "jq", "[.components[] | select((.licenses | length) == 0)] | length", bill))
}
