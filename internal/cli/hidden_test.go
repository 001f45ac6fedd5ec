package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
)

// The partition table is in the file of a dynamic VHD, and its sector has no bit in the bitmap: the disk reads as
// blank, and is not called so.
func TestHiddenTable(t *testing.T) {
	t.Chdir(t.TempDir())
	data := make(forge.Bytes, 4<<20)
	copy(data, tiny())
	shown := func(int64) bool { return true }
	for name, stored := range map[string]func(s int64) bool{
		"hidden.vhd": func(s int64) bool { return s != 0 },
		"sound.vhd":  shown,
	} {
		v := vhdforge.New(data, vhdforge.Layout{Stored: stored})
		if name == "hidden.vhd" {
			v.Put(v.Blocks[0]+512, data[:512])
		}
		put(t, name, v.Bytes)
	}
	require.Equal(t, 0, trueup(t, "inspect", "sound.vhd").code)
	for _, args := range [][]string{{"inspect", "--json"}, {"scan", "--isolation", "none", "--json"}} {
		r := trueup(t, append(args, "hidden.vhd")...)
		require.Equal(t, 1, r.code, r.stdout)
		for _, code := range []string{`"unknown_content"`, `"vhd-hidden-data"`, `"unknown-content"`} {
			require.Contains(t, r.stdout, code)
		}
		require.NotContains(t, r.stdout, `"blank"`)
		require.Equal(t, 0, trueup(t, append(args, "--allow-unknown", "hidden.vhd")...).code)
	}
	for _, job := range []string{"align", "convert"} {
		r := trueup(t, job, "hidden.vhd", job+".vhd")
		require.Equal(t, 4, r.code, r.stderr)
		require.Contains(t, r.stderr, "qemu-img convert -f vpc -O raw")
		require.NoFileExists(t, job+".vhd")
	}
}
