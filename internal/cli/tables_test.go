package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/volume"
)

// The tests of this file add an entry to a table of contents, and see it where users do: nothing else knows the entries.

// with adds an entry to a table until the test ends.
func with[T any](t *testing.T, table *[]T, entry T) {
	t.Helper()
	was := *table
	*table = append(slices.Clone(was), entry)
	t.Cleanup(func() { *table = was })
}

// dummyDisk writes a raw disk with one partition at LBA 63, which begins with a text. code begins sector 0.
func dummyDisk(t *testing.T, code, content string) (path string) {
	t.Helper()
	const entry, first, sectors = 446, 63, 4000
	f := make(disktest.Forged, 4<<20)
	f.Text(0, code)
	f.U8(entry, 0x80)
	f.U8(entry+4, 0x83)
	f.U32(entry+8, first)
	f.U32(entry+12, sectors)
	f.U16(disktest.MBRMagic, 0xaa55)
	f.Text(first*512, content)
	path = filepath.Join(t.TempDir(), "dummy.img")
	f.Write(t, path)
	return path
}

func TestProberIsOneEntry(t *testing.T) {
	path := dummyDisk(t, "", "DUMMYVOL")
	require.NotContains(t, command(t, "inspect", path).stdout, "Dummy")
	with(t, &volume.Probers, volume.Prober{
		Kinds: []volume.Traits{{
			Kind: "dummy", Title: "Dummy FS", Unit: "lump", Data: "first lump of Dummy FS", Realign: "make it again with mkdummy --align",
		}},
		Marks: []volume.Mark{{Off: 0, Bytes: "DUMMYVOL"}},
		Probe: func(d disk.Disk) (*volume.Volume, error) {
			return &volume.Volume{Kind: "dummy", Label: "one", Size: d.Size(), BlockSize: 4096, DataStart: 512}, nil
		},
	})
	text := strings.Join(strings.Fields(command(t, "inspect", path).stdout), " ")
	require.Contains(t, text, `Dummy FS "one", 4 KiB lumps`)
	require.Contains(t, text, "the first lump of Dummy FS lies at byte 32768")
	require.Contains(t, text, "mkdummy --align")
	require.Contains(t, command(t, "inspect", "--json", path).stdout, `"kind": "dummy"`)
}

// enum reads the values that the JSON schema allows at a place.
func enum(t *testing.T, place ...string) []string {
	t.Helper()
	b, err := os.ReadFile("../../docs/schema/common.json")
	require.NoError(t, err)
	for _, name := range append(place, "enum") {
		var object map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(b, &object))
		b = object[name]
	}
	var values []string
	require.NoError(t, json.Unmarshal(b, &values))
	return values
}

func TestSchemaListsTheTables(t *testing.T) {
	var kinds []string
	for k := range volume.Kinds {
		kinds = append(kinds, string(k.Kind))
	}
	require.ElementsMatch(t, slices.Compact(slices.Sorted(slices.Values(kinds))), enum(t, "$defs", "volume", "properties", "kind"))
}
