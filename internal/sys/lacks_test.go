package sys

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs reads a file of the documentation.
func docs(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	require.NoError(t, err)
	return b
}

// The table in the documentation has what a program says of itself, for each system.
func TestLacksAreDocumented(t *testing.T) {
	names := map[string]string{"windows": "Windows", "darwin": "macOS", "freebsd": "FreeBSD"}
	page := string(docs(t, "systems.md"))
	for _, l := range lacks {
		of := "all"
		if l.of != nil {
			of = names[l.of[0]]
			require.Len(t, l.of, 1)
		}
		require.Contains(t, page, "| `"+l.Feature+"` | "+of+" | "+l.Text+" |\n")
	}
	_, section, found := strings.Cut(page, "\n## What other systems lack\n")
	require.True(t, found)
	require.Equal(t, len(lacks), strings.Count(section, "\n| `"))
}

func TestFeaturesOfTheSchema(t *testing.T) {
	var schema struct {
		Properties struct {
			Lacks struct {
				Items struct {
					Properties struct{ Feature struct{ Enum []string } }
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal(docs(t, filepath.Join("schema", "version.json")), &schema))
	var features []string
	for _, l := range lacks {
		features = append(features, l.Feature)
	}
	require.True(t, slices.IsSorted(features))
	require.Equal(t, features, schema.Properties.Lacks.Items.Properties.Feature.Enum)
}

// A system lacks what its calls say that they do not do.
func TestLacksAreThoseOfTheSystem(t *testing.T) {
	require.Empty(t, Lacks("linux"))
	lacks := func(feature string) bool {
		return slices.ContainsFunc(Lacks(runtime.GOOS), func(l Lack) bool { return l.Feature == feature })
	}
	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	require.Equal(t, lacks("folder-flush"), Unsupported(d.Sync()))
	first, _ := twice(t)
	_, err = first.LockedByte(100)
	require.Equal(t, lacks("qemu-locks"), Unsupported(err))
}
