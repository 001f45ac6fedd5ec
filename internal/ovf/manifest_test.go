package ovf

import (
	"bytes"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// The digests are those of "abc": FIPS 180-4, examples.
const (
	abc1   = "a9993e364706816aba3e25717850c26c9cd0d89d"
	abc256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	manual = "SHA1(vm.ovf)= " + abc1 +
		"\r\nSHA256 (disk (1).vmdk) = BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD\n\n" +
		"  SHA-256(a)=" + abc256 + "\nMD5(b)= 900150983cd24fb0d6963f7d28e17f72"
)

func TestManifest(t *testing.T) {
	m, err := ParseManifest([]byte(manual))
	require.NoError(t, err)
	require.Len(t, m.Digests, 4)
	var names []string
	for _, d := range m.Digests {
		names = append(names, d.Algorithm+" "+d.Name)
		if d.New != nil {
			h := d.New()
			h.Write([]byte("abc"))
			require.Equal(t, d.Sum, h.Sum(nil), d.Name)
		}
	}
	require.Equal(t, []string{"SHA1 vm.ovf", "SHA256 disk (1).vmdk", "SHA-256 a", "MD5 b"}, names)
	require.Nil(t, m.Digests[3].New)
}

// Lines keep their order, their spacing, their ends and the case of their digits.
func TestManifestKeepsItsStyle(t *testing.T) {
	m, err := ParseManifest([]byte(manual))
	require.NoError(t, err)
	same := func(n string) string { return n }
	require.Equal(t, manual, string(m.Rewrite(func(Digest) []byte { return nil }, same)))
	require.Equal(t, manual, string(m.Rewrite(func(d Digest) []byte { return d.Sum }, same)))
	sum := sha256.Sum256([]byte("\xff"))
	got := string(m.Rewrite(func(d Digest) []byte {
		if strings.HasPrefix(d.Name, "disk") {
			return sum[:]
		}
		return nil
	}, func(n string) string { return strings.Replace(n, "vm.ovf", "new.ovf", 1) }))
	// printf '\xff' | sha256sum
	digits := strings.ToUpper("a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89")
	want := strings.Replace(strings.Replace(manual, "vm.ovf", "new.ovf", 1), strings.ToUpper(abc256), digits, 1)
	require.Equal(t, want, got)
}

func TestHostileManifests(t *testing.T) {
	for text, kind := range map[string]error{
		"SHA1(x)":                           ondisk.ErrFormat,
		"SHA1(x)= " + abc256:                ondisk.ErrFormat,
		"SHA1(x)= 0":                        ondisk.ErrFormat,
		"\x00\x01":                          ondisk.ErrFormat,
		"SHA1(../x)= " + abc1:               ondisk.ErrReference,
		"SHA1(/etc/passwd)= " + abc1:        ondisk.ErrReference,
		`SHA1(..\x)= ` + abc1:               ondisk.ErrReference,
		"SHA1(http://x)= " + abc1:           ondisk.ErrReference,
		"SHA1(a/../../x)= " + abc1:          ondisk.ErrReference,
		strings.Repeat("\n", 1e6):           ondisk.ErrLimit,
		strings.Repeat(" ", MaxManifest+1):  ondisk.ErrLimit,
		strings.Repeat("(", MaxManifest-10): ondisk.ErrFormat,
	} {
		_, err := ParseManifest([]byte(text))
		require.ErrorIs(t, err, kind, "%.40q", text)
		require.Less(t, len(err.Error()), 1500)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(manual))
	f.Add([]byte("SHA512(x)= " + strings.Repeat("0", 128) + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ParseManifest(text)
		if err != nil {
			return
		}
		same := func(n string) string { return n }
		require.Equal(t, string(text), string(m.Rewrite(func(Digest) []byte { return nil }, same)))
		other := m.Rewrite(func(d Digest) []byte { return bytes.Repeat([]byte{0xa5}, len(d.Sum)) }, same)
		require.Len(t, other, len(text))
		again, err := ParseManifest(other)
		require.NoError(t, err)
		require.Len(t, again.Digests, len(m.Digests))
	})
}
