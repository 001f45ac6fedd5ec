package realign

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// The refusal of a web address has the command line that reads it, without secrets.
func TestRefuseWeb(t *testing.T) {
	t.Parallel()
	const uri = "https://h/a.img?sig=secret"
	for work, want := range map[string]string{
		"trueup align": `align "$uri" DEST`, "trueup verify": `verify "$uri" DEST`, "trueup plan": `plan "$uri"`,
		"trueup scan": `inspect "$uri"`, "trueup serve": `align "$uri" DEST`, "trueup replace": `align "$uri" DEST`,
	} {
		err := refuseWeb(uri, work)
		if runtime.GOOS == "windows" {
			want = "download it first"
		} else {
			want = "nbdkit -U - curl 'https://h/a.img?...' --run 'trueup " + want + "'"
		}
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
		require.Equal(t, "unsupported", Code(err))
	}
}

// Addresses whose end no message could tell are refused, and nothing of them is shown.
func TestCheckAddresses(t *testing.T) {
	t.Parallel()
	require.NoError(t, CheckAddresses([]string{"a b.img", "https://h/a%20b?c", "nbd+unix:///x?socket=/a b", ""}))
	for _, uri := range []string{
		"https://h/vm folder/ok.img?sig=secret", "http://h/ok.img?name=my vm&sig=secret", "https://h/a?b\tsecret",
		"nbd://user:my secret@h/", "https://h/a\x7f?secret",
	} {
		err := CheckAddresses([]string{"https://h/a", uri})
		require.ErrorIs(t, err, ondisk.ErrUsage, uri)
		require.ErrorContains(t, err, "has a blank or a control character")
		require.NotContains(t, err.Error(), "secret")
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"http://user:secret@host/a": "http://...@host/a", "http://user:secret@host/a@b": "http://...@b",
		"http://user:a/b@host:9/x": "http://...@host:9/x", "http://user:a?b@host/x": "http://?...",
		"http://user:a#b@host/x?c": "http://?...", "https://host/a?sign=x@secret&y": "https://?...",
		`"https://u:a/b@h/c?d": x; "http://u:a#b@h/c": y`: `"https://...@h/c?...": x; "http://?...": y`,
		"nbd://x:y@z@host:1/":                             "nbd://...@host:1/",
		"nbd+unix:///x?socket=a@b":                        "nbd+unix:///x?socket=a@b",
		"nbd+unix://x:y@/z?socket=a":                      "nbd+unix://...@/z?socket=a",
		"[nbd+unix:///x?socket=a@b,http://x:y@h]":         "[nbd+unix:///x?socket=a@b,http://...@h]",
		"[nbd+unix:///x?socket=a,http://h/?b]":            "[nbd+unix:///x?socket=a,http://h/?...]",
		"https://host":                                    "https://host",
		"HTTPS://host/a?X-Amz-Signature=b&c='d":           "HTTPS://host/a?...", "http://host#x": "http://host?...",
		`--with=[https://h/a?b,https://h/c?d]`: "--with=[https://h/a?...]", "a file?": "a file?",
		`"https://h/a?b": not found; https://h/?c.`: `"https://h/a?...": not found; https://h/?....`,
	} {
		require.Equal(t, want, Shown(uri))
	}
}

// One run has few connections.
func TestRemotesAreFew(t *testing.T) {
	t.Parallel()
	absent := "nbd+unix:///?socket=" + filepath.Join(t.TempDir(), "absent")
	images := []string{"a.img"}
	for range maxRemotes {
		images = append(images, absent)
	}
	r, err := Connect(t.Context(), images, "trueup inspect")
	require.NoError(t, err)
	require.Len(t, r[absent], maxRemotes)
	require.Error(t, r[absent][0].err)
	_, err = Connect(t.Context(), append(images, absent), "trueup inspect")
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// A refusal has the remedy that helps the work.
func TestLocal(t *testing.T) {
	t.Parallel()
	require.NoError(t, Local("a.img", "trueup serve"))
	for work, want := range map[string]string{
		"trueup report": "on a server; save it as a file",
		"trueup scan":   "run trueup inspect on it",
		"trueup bench":  "write it to a file with trueup convert, and name that file",
	} {
		err := Local("nbd://host/a", work)
		require.ErrorContains(t, err, work+" needs a file, and this is ")
		require.Regexp(t, want+"$", err.Error())
	}
}
