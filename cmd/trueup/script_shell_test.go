package main

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
)

// negatedCommand is a command of the shell whose failure does not end a program under set -e.
var negatedCommand = regexp.MustCompile(`(?m)^\s*! .*|\|\| ! .*`)

// TestShellOfScriptsCanFail finds negated commands in the shell programs of scripts: they expect nothing.
func TestShellOfScriptsCanFail(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"! cmp a b", "set -e\n\t! grep -q a b\n", "[ -z $1 ] || ! cmp a b"} {
		require.Regexp(t, negatedCommand, bad)
	}
	require.NotRegexp(t, negatedCommand, "#!/bin/sh\nif ! cmp a b; then exit 1; fi\n[ ! -e a ]\n")
	paths, err := filepath.Glob("testdata/script/*.txtar")
	require.NoError(t, err)
	programs := 0
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		require.NoError(t, err)
		for _, file := range archive.Files {
			if strings.HasSuffix(file.Name, ".sh") || bytes.HasPrefix(file.Data, []byte("#!")) {
				programs++
				require.NotRegexp(t, negatedCommand, string(file.Data), "%s of %s", file.Name, path)
			}
		}
	}
	require.Greater(t, programs, 40)
}
