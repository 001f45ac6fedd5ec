package shell

import (
	"path"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

func TestGlob(t *testing.T) {
	for _, tc := range []struct {
		glob string
		yes  string // names with a comma between
		no   string
	}{
		{"a.vmdk", "a.vmdk,lib/a.vmdk,/srv/lib/a.vmdk,./a.vmdk", "b.vmdk,a.vmdk2,A.vmdk,a.vmdk/b"},
		{"*.vmdk", "a.vmdk,.vmdk,x/y/b.vmdk", "a.vmdk.bak,vmdk"},
		{"*", "a,a/b,.hidden", ""},
		{"**", "a,a/b,.hidden", ""},
		{"?.vhd", "a.vhd,é.vhd,生.vhd,\xff.vhd", ".vhd,ab.vhd"},
		{"disk[0-9].raw", "disk0.raw,disk9.raw", "diska.raw,disk10.raw"},
		{"disk[!0-9].raw", "diska.raw,disk\xff.raw", "disk0.raw"},
		{"disk[^0-9].raw", "diska.raw", "disk0.raw"},
		{`[\]x].raw`, "].raw,x.raw", "[.raw"},
		{"xp-{sp2,sp3}.vmdk", "xp-sp2.vmdk,a/xp-sp3.vmdk", "xp-.vmdk,xp-sp1.vmdk"},
		{"{a,b/**}/x.raw", "a/x.raw,b/x.raw,b/c/d/x.raw", "c/x.raw,x.raw"},
		{"[x-].raw", "-.raw,x.raw", "y.raw"},
		{`[\]\-].raw`, "-.raw,].raw", `\.raw`},
		{"[é-ü].raw", "ö.raw", "e.raw"},
		{`\*\?\[\\.raw`, `*?[\.raw`, `a.raw`},
		{"lib/*.vmdk", "lib/a.vmdk,./lib/a.vmdk,lib//a.vmdk", "lib/x/a.vmdk,srv/lib/a.vmdk,/lib/a.vmdk"},
		{"./lib/*.vmdk", "lib/a.vmdk,./lib/a.vmdk", "x/lib/a.vmdk"},
		{"./*.vmdk", "a.vmdk", "lib/a.vmdk"},
		{"/srv/*", "/srv/a", "srv/a,/srv/a/b,/srv"},
		{"lib/**", "lib/a,lib/a/b", "lib,xlib/a"},
		{"**/old/*.vmdk", "old/a.vmdk,x/old/a.vmdk,/x/y/old/a.vmdk", "old/x/a.vmdk,xold/a.vmdk,old.vmdk"},
		{"lib/**/a.vmdk", "lib/a.vmdk,lib/x/a.vmdk,lib/x/y/a.vmdk", "a.vmdk,lib/xa.vmdk"},
		{"**/a/**/b", "a/b,x/a/y/b,a/a/b,a/b/b", "b,a/c,ab"},
		{"**/a/b/c", "a/b/a/b/c,a/a/b/c", "a/b/a/c"},
		{"a**c/x", "abc/x,ac/x", "a/c/x"},
		{"a*b*c", "abc,aXbYbZc", "acb,abcd"},
	} {
		if runtime.GOOS == "windows" && strings.Contains(tc.glob, `\\`) {
			continue // it separates folders there
		}
		g, err := ParseGlob(tc.glob)
		require.NoError(t, err, tc.glob)
		for name := range strings.SplitSeq(tc.yes, ",") {
			require.True(t, g.match(name), "%q and %q", tc.glob, name)
		}
		for name := range strings.SplitSeq(tc.no, ",") {
			require.False(t, name != "" && g.match(name), "%q and %q", tc.glob, name)
		}
	}
}

func TestGlobErrors(t *testing.T) {
	const malformed = `the glob is malformed: each [ and { must be closed, each [] contain a character, ` +
		`and each \ precede one`
	for glob, want := range map[string]string{
		"":                        "the glob is empty",
		"old/":                    "the glob ends in a slash; append ** for all files in the folder",
		"a[b":                     malformed,
		"a[":                      malformed,
		"a[]":                     malformed,
		"a{b,c":                   malformed,
		`ab\`:                     malformed,
		"./.":                     "the glob matches no file",
		strings.Repeat("a", 4097): "the glob has 4097 bytes, must have at most 4096",
	} {
		_, err := ParseGlob(glob)
		require.EqualError(t, err, want)
	}
}

// Patterns that make others try all ways to divide a name end at once here.
func TestGlobTakesItsTime(t *testing.T) {
	spent := disktest.Spent()
	for glob, name := range map[string]string{
		strings.Repeat("a*", 1000) + "b":             strings.Repeat("a", 4000),
		strings.Repeat("**/a/", 500) + "b":           strings.Repeat("a/", 2000) + "c",
		strings.Repeat("**/*a*a*/", 400) + "b":       strings.Repeat("aaa/", 1000) + "c",
		strings.Repeat("**/", 1000) + "[!a]":         strings.Repeat("a/", 2000) + "a",
		"**/" + strings.Repeat("*?", 1000) + "[!a]c": strings.Repeat("a", 4000) + "c",
	} {
		g, err := ParseGlob(glob)
		require.NoError(t, err)
		require.False(t, g.match(name))
	}
	require.Less(t, spent(), 5*time.Second)
}

// asRegexp says the same as a glob with a slash, for the engine of package regexp. It takes letters, *, ?, / and **.
func asRegexp(glob string) *regexp.Regexp {
	names := strings.Split(glob, "/")
	out := "^"
	for n, name := range names {
		last := n == len(names)-1
		switch {
		case name == "**" && last:
			out += "[^/]+(?:/[^/]+)*"
		case name == "**":
			out += "(?:[^/]*/)*"
		default:
			out += strings.NewReplacer("*", "[^/]*", "?", "[^/]").Replace(name)
			if !last {
				out += "/"
			}
		}
	}
	return regexp.MustCompile("(?s)" + out + "$")
}

// plain reports whether no rule about empty names and dots is asked for.
func plain(s string) bool {
	return s != "" && !strings.Contains(s, "//") && !strings.HasSuffix(s, "/") && !strings.Contains("/"+s+"/", "/./")
}

var simple = regexp.MustCompile(`^[a-c*?/]+$`)

// FuzzGlob compares the matcher with two others: path.Match where there is no **, and package regexp where there is.
func FuzzGlob(f *testing.F) {
	for _, seed := range [][2]string{
		{"a*b", "aab"},
		{"**/a/*", "b/a/c"},
		{"a/**/b/**/c", "a/b/b/c/c"},
		{"/a/**", "/a/b/c"},
		{"[a-c]?/x", "bb/x"},
		{`\*[^a]`, "*b"},
		{"**/*a/*b", "a/a/b/ab"},
		{"?/\xff", "é/\xff"},
		{"a*/**/*c/b*", "ab/c/cc/b"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, glob, name string) {
		if len(glob) > maxGlob+1 || len(name) > 4*maxGlob {
			return
		}
		g, err := ParseGlob(glob)
		if err != nil {
			return
		}
		got := g.match(name)
		if !plain(glob) || !plain(name) {
			return
		}
		whole := name
		if g.name {
			whole = path.Base(name) // path.Match has no globs about the last name
		}
		folders := strings.Contains("/"+glob+"/", "/**/")
		if !folders && !strings.ContainsAny(glob, "[{") && utf8.ValidString(glob+name) {
			want, err := path.Match(glob, whole)
			require.NoError(t, err)
			require.Equal(t, want, got, "%q and %q", glob, name)
		}
		if simple.MatchString(glob) && !g.name && simple.MatchString(name) {
			require.Equal(t, asRegexp(glob).MatchString(name), got, "%q and %q", glob, name)
		}
	})
}
