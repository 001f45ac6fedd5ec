package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

var updateScan = flag.Bool("update-scan", false, "write the golden files of scan anew")

// corpusFolders names the folders of the corpus that the golden files know. The corpus may get others.
var corpusFolders = strings.Fields(`
	cdi dftt dfvfs discutils glance go-ntfs gptman imagemounter keramics libldm mbrman osv-scalibr
	qemu regipy vmdk-rs`)

// unpackedCorpus returns a folder with the folders of the corpus, unpacked.
func unpackedCorpus(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range corpusFolders {
		require.NoError(t, os.Rename(disktest.CorpusSet(t, name), filepath.Join(dir, name)))
	}
	return dir
}

// TestScanOfTheCorpus compares rows with those of a golden file, which was read by hand.
func TestScanOfTheCorpus(t *testing.T) {
	t.Parallel()
	packed := t.TempDir() // with copies of the same folders as they are
	for _, name := range corpusFolders {
		require.NoError(t, os.CopyFS(filepath.Join(packed, name), os.DirFS(filepath.Join(disktest.CorpusDir(t), name))))
	}
	for name, dir := range map[string]string{"packed": packed, "unpacked": unpackedCorpus(t)} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(builtPath, "scan", "-o", "json", ".")
			cmd.Dir = dir
			r, _ := end(t, cmd)
			var lines []string
			for line := range strings.SplitSeq(strings.TrimSpace(r.stdout), "\n") {
				lines = append(lines, normal(t, line))
			}
			slices.Sort(lines)
			got := strings.Join(lines, "\n") + "\n"
			golden := filepath.Join("testdata", "scan-"+name+".golden")
			if *updateScan {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want := disktest.ReadFile(t, golden)
			require.Equal(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"))
		})
	}
}

// passing are fields that another run or another machine has otherwise.
var passing = []string{
	"device", "inode", "modified_ns", "changed_ns", "allocated_bytes", "stored_bytes", "copies_bytes", "read_bytes",
	"started", "finished", "duration_seconds", "version", "isolation", "worst", "file_system", "reuse",
}

// normal is a line of JSON without what is passing, its keys sorted.
func normal(t testing.TB, line string) string {
	t.Helper()
	var v any
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	require.NoError(t, d.Decode(&v))
	drop(v)
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	require.NoError(t, e.Encode(v))
	return strings.TrimSpace(out.String())
}

func drop(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, key := range passing {
			delete(v, key)
		}
		for _, below := range v {
			drop(below)
		}
	case []any:
		for _, below := range v {
			drop(below)
		}
	}
}
