package trial

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/pagetest"
)

var shots = flag.String("shots", "", "write screenshots of the pages to this folder")

func TestPageInChromium(t *testing.T) {
	process := pagetest.Browser(t)
	for _, c := range []struct {
		name, scheme string
		width        int64
	}{{"differs", "light", 1360}, {"differs", "dark", 360}, {"pictures", "dark", 1360}, {"pictures", "light", 360}} {
		path := filepath.Join(t.TempDir(), c.name+".html")
		f, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, samples(t)[c.name].HTML(f, "1.0"))
		require.NoError(t, f.Close())
		pagetest.Look(process, t, path, c.scheme, c.width, *shots)
	}
}
