package exchange_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// packageOVF states no sizes, so that the OVFs of the copy and the source are equal.
const packageOVF = `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" ` +
	`xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"><References><File ovf:id="f1" ovf:href="vm-disk1.img"/>` +
	`<File ovf:id="f2" ovf:href="data.bin"/></References>` +
	`<DiskSection><Disk ovf:diskId="d" ovf:fileRef="f1" ovf:capacity="61440"/></DiskSection></Envelope>`

// packed is content for a package.
func packed(disk byte, names []string, i int) []byte {
	if filepath.Ext(names[0]) == ".ova" {
		return archive(disk)
	}
	switch filepath.Ext(names[i]) {
	case ".ovf":
		return []byte(packageOVF)
	case ".cert":
		return []byte("a signature")
	case ".mf":
		text := ""
		for j, n := range names {
			if j != i && filepath.Ext(n) != ".cert" {
				text += fmt.Sprintf("SHA256(%s)= %x\n", n, sha256.Sum256(packed(disk, names, j)))
			}
		}
		return []byte(text)
	case ".bin":
		disk++
	}
	return bytes.Repeat([]byte{disk}, sectors*512)
}

// archive returns the package as an archive.
func archive(disk byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	names := []string{"vm.ovf", "vm-disk1.img", "data.bin"}
	for i, n := range names {
		b := packed(disk, names, i)
		if w.WriteHeader(&tar.Header{Name: n, Mode: 0o644, Size: int64(len(b))}) == nil {
			_, _ = w.Write(b)
		}
	}
	_ = w.Close()
	return out.Bytes()
}

var (
	hrefs  = regexp.MustCompile(`ovf:href="([^"]*)"`)
	digest = regexp.MustCompile(`(?m)^SHA256\((.*)\)= ([0-9a-f]{64})$`)
)

// unpacked requires a complete package at a path and returns the concatenation of its two files.
func unpacked(t *testing.T, path string) string {
	t.Helper()
	dir, base := filepath.Split(path)
	if filepath.Ext(base) == ".ova" {
		dir = t.TempDir()
		disktest.Run(t, "tar", "-xf", path, "-C", dir)
		base = "vm.ovf"
	}
	text := disktest.ReadFile(t, filepath.Join(dir, base))
	var all []byte
	for _, m := range hrefs.FindAllSubmatch(text, -1) {
		b := disktest.ReadFile(t, filepath.Join(dir, string(m[1])))
		all = append(all, b...)
	}
	requireSums(t, dir, strings.TrimSuffix(base, ".ovf"))
	out := filepath.Join(t.TempDir(), "both")
	require.NoError(t, os.WriteFile(out, all, 0o600))
	return out
}

// requireSums requires that a manifest fits, if there is one, and a signature only of the signed manifest.
func requireSums(t *testing.T, dir, stem string) {
	t.Helper()
	cert, err := os.ReadFile(filepath.Join(dir, stem+".cert"))
	signed := err == nil
	text, err := os.ReadFile(filepath.Join(dir, stem+".mf"))
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
		return
	}
	old := kinds["ovf"].old
	if signed {
		require.Equal(t, "a signature", string(cert))
		require.Equal(t, string(packed('a', old, slices.Index(old, "vm.mf"))), string(text))
	}
	found := digest.FindAllStringSubmatch(string(text), -1)
	require.Len(t, found, 3)
	for _, m := range found {
		b := disktest.ReadFile(t, filepath.Join(dir, m[1]))
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(b)), m[2], m[1])
	}
}
