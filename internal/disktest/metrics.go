package disktest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// readMetrics reads the text with Prometheus's own parser for Python, and again with the stricter one for OpenMetrics,
// which requires an end mark: it rejects duplicate series, families that are not contiguous, and bad escapes.
const readMetrics = `
import json, re, sys
from prometheus_client.parser import text_string_to_metric_families as lenient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
files = []
for path in sys.argv[1:]:
    text = open(path, newline="", encoding="utf-8", errors="strict").read()
    assert text.endswith("\n")
    out = []
    for family in lenient(text):
        assert family.type in ("gauge", "counter") and family.documentation, family
        for s in family.samples:
            assert s.timestamp is None, s
            out.append([s.name, s.labels, s.value])
    text = re.sub(r"^(# (?:HELP|TYPE) \S+)_total ", r"\1 ", text, flags=re.M)  # as OpenMetrics names counters
    again = [[s.name, s.labels, s.value] for family in strict(text + "# EOF\n") for s in family.samples]
    assert out == again, (out, again)
    files.append(out)
json.dump(files, sys.stdout)`

// Series is a number of metrics.
type Series struct {
	Name   string
	Labels map[string]string
	Value  float64
}

// UnmarshalJSON decodes the output of readMetrics.
func (s *Series) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&s.Name, &s.Labels, &s.Value})
}

// ReadMetrics returns the series of each of several Prometheus texts.
func ReadMetrics(t testing.TB, texts ...string) (out [][]Series) {
	t.Helper()
	DataFile(t, "/usr/lib/python3/dist-packages/prometheus_client/parser.py")
	args := []string{"-c", readMetrics}
	for n, text := range texts {
		path := filepath.Join(t.TempDir(), strconv.Itoa(n)+".prom")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		args = append(args, path)
	}
	require.NoError(t, json.Unmarshal([]byte(Output(t, DataFile(t, "/usr/bin/python3"), args...)), &out))
	require.Len(t, out, len(texts))
	return out
}
