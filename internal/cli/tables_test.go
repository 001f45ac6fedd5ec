package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// The tests of this file add an entry to a table, and check it from the outside: no other code may need a change.

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
	f := make(forge.Bytes, 4<<20)
	f.Text(0, code)
	f.U8(entry+4, 0x83)
	f.U32(entry+8, first)
	f.U32(entry+12, sectors)
	f.U16(tableforge.MBRMagic, 0xaa55)
	f.Text(first*512, content)
	path = filepath.Join(t.TempDir(), "dummy.img")
	f.Write(t, path)
	return path
}

func TestProberIsOneEntry(t *testing.T) {
	path := dummyDisk(t, "", "DUMMYVOL")
	require.NotContains(t, trueup(t, "inspect", path).stdout, "Dummy")
	with(t, &identify.Probers, volume.Prober{
		Kinds: []volume.Traits{{
			Kind: "dummy", Title: "Dummy FS", Unit: "lump", Data: "first lump of Dummy FS",
			Realign: "make it again with mkdummy --align",
		}},
		Marks: []volume.Mark{{Off: 0, Bytes: "DUMMYVOL"}},
		Probe: func(d disk.Disk) (*volume.Volume, error) {
			return &volume.Volume{
				Kind: "dummy", Label: "one", Size: d.Size(), BlockSize: 4096, DataStart: 65536 - 63*512,
			}, nil
		},
	})
	text := strings.Join(strings.Fields(trueup(t, "inspect", path).stdout), " ")
	require.Contains(t, text, `Dummy FS "one", 4 KiB lumps`)
	require.Contains(t, text, "the first lump of Dummy FS is at byte 65536")
	require.Contains(t, text, "mkdummy --align")
	require.Contains(t, trueup(t, "inspect", "--json", path).stdout, `"kind": "dummy"`)
}

// A loader described by the table alone is found by its fields, any other by its Find, in sector 0 and in the boot
// sector of a partition.
func TestBootLoaderIsOneEntry(t *testing.T) {
	byTable, byFind := dummyDisk(t, "TABLELDR", "nothing"), dummyDisk(t, "TABLELDR", "FINDLDR")
	require.Contains(t, trueup(t, "inspect", byTable).stdout, "the code in sector 0 is unknown")
	codes, all := layout.Codes(), layout.Codes
	layout.Codes = func() []*boot.Code { return codes }
	t.Cleanup(func() { layout.Codes = all })
	begins := func(text string) func([]byte) bool {
		return func(code []byte) bool { return strings.HasPrefix(string(code), text) }
	}
	with(t, &codes, &boot.Code{
		ID: "table-loader", Name: "Table Loader", Known: begins("TABLELDR"), HandsOver: true, AnyFlag: true,
		ReadsCHS: true, First: true, Address: "smoke signals",
	})
	text := strings.Join(strings.Fields(trueup(t, "inspect", byTable).stdout), " ")
	require.Contains(t, text, "Boot code Table Loader: finds its partition by cylinder, head and sector")
	require.Contains(t, text,
		"code of Table Loader in sector 0 reads the boot sector of partition 1 by smoke signals, and passes")
	require.Contains(t, text, "This is a boot disk")
	require.Contains(t, trueup(t, "inspect", "--json", byTable).stdout, `"name": "table-loader"`)

	const unknown = "(unknown) holds no code"
	require.Contains(t, trueup(t, "inspect", byFind).stdout, unknown)
	with(t, &codes, &boot.Code{
		ID: "find-loader", Name: "Find Loader", Known: begins("FINDLDR"), Absolute: true,
		Find: func(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
			b := make([]byte, 440)
			for _, p := range g.Partitions {
				if _, err := g.Disk.ReadAt(b, p.Off); err == nil && c.Known(b) {
					f.Chain = append(f.Chain, boot.Link{Partition: p.Number, Text: "Find Loader finds the rest"})
				}
			}
			return f, err
		},
	})
	text = trueup(t, "inspect", byFind).stdout
	require.Contains(t, text, "Find Loader finds the rest")
	require.NotContains(t, text, unknown, "its Find tells of it, and nothing else does")
}

func TestReportFormatIsOneEntry(t *testing.T) {
	path := dummyDisk(t, "", "nothing")
	scan := []string{"scan", "--isolation", "none", "--fail-on", "4K", path, "-o"}
	require.Contains(t, trueup(t, append(scan, "dummy")...).stderr,
		"must be one of text, json, csv, html, junit, prometheus")
	sum := func(w io.Writer, r *results.Report) error {
		_, err := fmt.Fprintln(w, "sum", r.Summary.Found, len(slices.Collect(r.Images)), r.Fail)
		return err
	}
	with(t, &results.Formats, results.Format{Name: "dummy", Write: sum})
	with(t, &results.Formats, results.Format{
		Name:  "stream",
		Row:   func(w io.Writer, i *results.Image) error { _, err := fmt.Fprintln(w, "row", i.Path); return err },
		Write: sum,
	})
	require.Equal(t, ended{3, "sum 1 1 4K\n", ""}, trueup(t, append(scan, "dummy")...))
	require.Equal(t, ended{3, "row " + path + "\nsum 1 0 4K\n", ""}, trueup(t, append(scan, "stream")...))
	require.Contains(t, trueup(t, "scan", "--help").stdout, "prometheus, dummy")
}

// flat is a format with a header of one sector before the bytes of the disk.
type flat struct{ driver.WriteFile }

const flatHeader = "DUMMYIMG"

func (f flat) Unit() int64                { return 512 }
func (f flat) Reserve(int64, int64) error { return nil }

func (f flat) WriteAt(p []byte, off int64) (int, error) { return f.WriteFile.WriteAt(p, off+512) }

func (f flat) Finish() error {
	if _, err := f.WriteFile.WriteAt([]byte(flatHeader), 0); err != nil {
		return err
	}
	return f.Sync()
}

func TestImageFormatIsOneEntry(t *testing.T) {
	src := dummyDisk(t, "", "nothing")
	out, back := filepath.Join(t.TempDir(), "out.dum"), filepath.Join(t.TempDir(), "back.img")
	convert := []string{"convert", src, out, "--to", "dummy"}
	require.Contains(t, trueup(t, convert...).stderr, "dummy")
	with(t, &image.Formats, driver.Format{
		Name: "dummy", Title: "DummyImage", Alias: "qemudummy", Extensions: []string{".dum"},
		Detect: func(head, _ []byte) bool { return strings.HasPrefix(string(head), flatHeader) },
		Open: func(s *driver.Source) (*driver.Image, error) {
			size := s.File.Size() - 512
			return &driver.Image{Disk: disk.New(size, 512, func(off int64) (disk.Run, error) {
				return disk.Run{Len: size - off, Src: s.File, Off: off + 512}, nil
			})}, nil
		},
		Create: func(f driver.WriteFile, size int64, _ driver.Options) (driver.Target, error) {
			return flat{f}, f.Truncate(size + 512)
		},
	})
	require.Equal(t, 0, trueup(t, convert...).code)
	r := trueup(t, "inspect", out)
	require.Equal(t, 3, r.code)
	require.Contains(t, r.stdout, "out.dum: DummyImage, 4 MiB")
	require.Contains(t, trueup(t, "inspect", "--json", "--format", "qemudummy", out).stdout, `"format": "dummy"`)
	require.Contains(t, trueup(t, "inspect", "--help").stdout, "dummy")
	require.Equal(t, 0, trueup(t, "convert", out, back, "--to", "raw").code)
	require.Equal(t, read(t, src), read(t, back))
	require.NoError(t, os.WriteFile(out, make([]byte, 4<<20), 0o600))
	require.Contains(t, trueup(t, "inspect", out).stderr,
		"has the file extension of dummy, but neither its header nor its footer")
}

// enum reads the values that the JSON schema allows at a place.
func enum(t *testing.T, place ...string) []string {
	t.Helper()
	b := disktest.ReadFile(t, "../../docs/schema/common.json")
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
	for k := range identify.Kinds {
		kinds = append(kinds, string(k.Kind))
	}
	require.ElementsMatch(t, slices.Compact(slices.Sorted(slices.Values(kinds))),
		enum(t, "$defs", "volume", "properties", "kind"))
	codes := []string{boot.Empty.ID, boot.Unknown.ID}
	for _, c := range layout.Codes() {
		if !c.OfVolume {
			codes = append(codes, c.ID)
		}
	}
	require.ElementsMatch(t, codes, enum(t, "$defs", "boot_code", "properties", "name"))
	require.ElementsMatch(t, image.Names(), enum(t, "$defs", "format"))
	require.ElementsMatch(t, ondisk.Codes, enum(t, "$defs", "error", "properties", "code"))
}
