package driver_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/driver"
)

// TestBackingFilesOfOddNames takes no name for another one, and reports options that cannot be parsed.
func TestBackingFilesOfOddNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"":                        nil,
		"file:":                   nil,
		"blkdebug:rules":          nil, // as QEMU: without a second colon, it is no file
		`C:\vm\disk.vmdk`:         {`C:\vm\disk.vmdk`},
		"my:file:a":               {"my:file:a"},
		"file:blkdebug::file:a:b": {"a:b"},
		"json:[]":                 nil,
		`json:{"filename":1}`:     nil,
		`json:{"file.filename":"json:{\"x-raw\":\"a\"}"}`: {"a"},
	} {
		got, broken := driver.BackingFiles(name)
		require.Equal(t, want, got, name)
		require.False(t, broken, name)
	}
	for _, name := range []string{"json:", `json:{"filename":"a"`, "file:json:{}}"} {
		_, broken := driver.BackingFiles(name)
		require.True(t, broken, name)
	}
}
