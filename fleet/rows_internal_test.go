package fleet

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// The read fields of rows have the names and types that scan writes. The types of scan are not used here, because the
// fleet program would then link all image formats.
func TestRowsEqualScan(t *testing.T) {
	t.Parallel()
	require.Equal(t, report.Schema, schema)
	requireSame(t, reflect.TypeFor[row](), reflect.TypeFor[results.Image](), "row")
}

func requireSame(t *testing.T, reads, writes reflect.Type, at string) {
	t.Helper()
	for reads.Kind() == reflect.Pointer || reads.Kind() == reflect.Slice {
		require.Equal(t, reads.Kind(), writes.Kind(), at)
		reads, writes = reads.Elem(), writes.Elem()
	}
	if reads.Kind() == reflect.Interface {
		return
	}
	require.Equal(t, reads.Kind(), writes.Kind(), at)
	if reads.Kind() != reflect.Struct {
		return
	}
	written := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(writes) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			written[name] = f.Type
		}
	}
	for f := range reads.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		require.Contains(t, written, name, at)
		requireSame(t, f.Type, written[name], at+"."+name)
	}
}
