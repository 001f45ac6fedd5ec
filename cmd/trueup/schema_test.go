package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	bench "github.com/trueup/trueup/internal/bench"
	gauge "github.com/trueup/trueup/internal/bench/measured"
	chain "github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/opinion"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	trial "github.com/trueup/trueup/internal/trial"
)

// schemaFolder holds the published JSON Schemas.
const schemaFolder = "../../docs/schema"

// compiled caches schemas, because the whole suite uses them.
var compiled sync.Map

// schemaNamed compiles a schema of that folder; a part of one is named as "common.json#/$defs/move".
func schemaNamed(t testing.TB, name string) *jsonschema.Schema {
	t.Helper()
	if s, ok := compiled.Load(name); ok {
		return s.(*jsonschema.Schema)
	}
	folder, err := filepath.Abs(schemaFolder)
	require.NoError(t, err)
	s, err := jsonschema.NewCompiler().Compile("file://" + filepath.ToSlash(folder) + "/" + name)
	require.NoError(t, err)
	compiled.Store(name, s)
	return s
}

// wantsJSON reports whether a command line asks for a JSON object on standard output.
func wantsJSON(args []string) bool {
	wants := false
	for i, arg := range args {
		switch {
		case arg == "--out" || strings.HasPrefix(arg, "--out=") || arg == "--help" || arg == "-h":
			return false // the object goes into a file, or none is printed
		case arg == "--json" || arg == "-ojson" || arg == "--output=json":
			wants = true
		case (arg == "-o" || arg == "--output") && i+1 < len(args) && args[i+1] == "json":
			wants = true
		}
	}
	return wants
}

// validateOutput requires one JSON object in the output of a command, or one per line for several images.
func validateOutput(t testing.TB, args []string, stdout string) {
	t.Helper()
	lines := slices.Contains(args, "scan") || slices.Contains(args, "report") ||
		slices.Contains(args, "inspect") && !strings.HasPrefix(stdout, "{\n")
	if !lines {
		validate(t, stdout)
		return
	}
	for line := range strings.Lines(stdout) {
		validate(t, line)
	}
}

// validate requires that the output of a command is one JSON object that fits its schema.
func validate(t testing.TB, stdout string) {
	t.Helper()
	// The package's own decoder keeps large numbers exact and refuses a second value.
	object, err := jsonschema.UnmarshalJSON(strings.NewReader(stdout))
	require.NoError(t, err, "one JSON object is wanted:\n%s", stdout)
	require.NoError(t, schemaNamed(t, schemaOf(t, object)).Validate(object), "%s", stdout)
}

// schemaOf returns the schema of an object: of its command, or of an error.
func schemaOf(t testing.TB, object any) string {
	t.Helper()
	fields, ok := object.(map[string]any)
	require.True(t, ok, "an object is wanted: %v", object)
	if fields["event"] == "progress" {
		return "progress.json"
	}
	if event, ok := fields["event"].(string); ok && slices.Contains([]any{"scan", "report"}, fields["command"]) {
		return "scan-" + event + ".json"
	}
	_, failed := fields["error"]
	_, image := fields["image"]
	_, packaged := fields["package"]
	if failed && !image && !packaged {
		return "error.json"
	}
	command, ok := fields["command"].(string)
	require.True(t, ok, "a command is wanted: %v", object)
	switch command {
	case "convert", "replace", "move", "view", "offset":
		command = "align"
	case "handover":
		if _, undone := fields["removed"]; undone {
			command = "unfinished"
		}
	case "undo", "resume", "finish":
		command = "unfinished"
	}
	if packaged && command == "inspect" {
		command = "package-inspect"
	}
	return command + ".json"
}

// requireStrict requires that the schemas of objects on standard output forbid unknown fields and missing required ones
// everywhere, and that only one object has the exit code.
func requireStrict(t testing.TB, code int, stdout string) {
	t.Helper()
	var objects []map[string]any
	for all := json.NewDecoder(strings.NewReader(stdout)); all.More(); {
		var object map[string]any
		require.NoError(t, all.Decode(&object))
		objects = append(objects, object)
		schema := schemaOf(t, object)
		s := schemaNamed(t, schema)
		for place, part := range objectsIn("", object) {
			if strings.HasSuffix(place, "/descriptor") || strings.HasPrefix(place, "/reuse/identity") ||
				place == "/formats" || place == "/errors" {
				continue // its fields are named by the image, a format or an error, or are private to trueup
			}
			part["new_field"] = 1.0
			require.Error(t, s.Validate(object), "a new field in %s%s", schema, place)
			delete(part, "new_field")
		}
		for _, name := range s.Required {
			value := object[name]
			delete(object, name)
			require.Error(t, s.Validate(object), "%s without %s", schema, name)
			object[name] = value
		}
		require.NoError(t, s.Validate(object))
	}
	last := objects[len(objects)-1]
	if said, ok := last["exit_code"]; ok && (len(objects) == 1 || last["event"] == "summary") {
		require.InDelta(t, code, said, 0)
	}
}

// objectsIn lists all objects in a value, each with its place.
func objectsIn(place string, value any) map[string]map[string]any {
	found := map[string]map[string]any{}
	switch value := value.(type) {
	case map[string]any:
		found[place] = value
		for name, v := range value {
			maps.Copy(found, objectsIn(place+"/"+name, v))
		}
	case []any:
		for i, v := range value {
			maps.Copy(found, objectsIn(fmt.Sprintf("%s/%d", place, i), v))
		}
	}
	return found
}

// TestSchemasNameEveryField compares the fields of the Go structs and of the schemas, so that a field is not forgotten
// when no test disk needs it.
func TestSchemasNameEveryField(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{
		"inspect.json":                    report.Inspect{},
		"plan.json":                       report.Plan{},
		"align.json":                      report.Align{},
		"align.json#/$defs/disk":          report.AlignedDisk{},
		"verify.json":                     report.Verify{},
		"verify.json#/$defs/disk":         report.VerifiedDisk{},
		"serve.json":                      report.Serve{},
		"offset.json":                     report.Offset{},
		"unfinished.json":                 report.Unfinished{},
		"boot.json":                       trial.Boot{},
		"boot.json#/$defs/run":            trial.Run{},
		"bench.json":                      bench.Bench{},
		"bench.json#/$defs/storage":       gauge.Storage{},
		"bench.json#/$defs/load":          gauge.Load{},
		"bench.json#/$defs/point":         gauge.Point{},
		"bench.json#/$defs/round":         gauge.Round{},
		"bench.json#/$defs/spread":        gauge.Spread{},
		"bench.json#/$defs/ratio":         gauge.Ratio{},
		"error.json":                      report.Failure{},
		"package-inspect.json":            report.PackageInspect{},
		"scan-image.json":                 results.Image{},
		"scan-image.json#/$defs/disk":     results.Disk{},
		"scan-summary.json":               results.Summary{},
		"scan-summary.json#/$defs/merged": results.Merged{},
		"scan-summary.json#/$defs/label":  results.LabelSum{},
		"scan-image.json#/$defs/priority": results.Priority{},
		"common.json#/$defs/image":        report.Image{},
		"common.json#/$defs/package":      report.Package{},
		"common.json#/$defs/file":         image.FileInfo{},
		"common.json#/$defs/link":         image.Link{},
		"common.json#/$defs/usage":        report.Usage{},
		"common.json#/$defs/table":        report.Table{},
		"common.json#/$defs/boot_code":    report.BootCode{},
		"common.json#/$defs/boot_link":    chain.Link{},
		"common.json#/$defs/partition":    report.Partition{},
		"common.json#/$defs/volume":       report.Volume{},
		"common.json#/$defs/disk":         report.Disk{},
		"common.json#/$defs/finding":      align.Finding{},
		"common.json#/$defs/move":         report.Move{},
		"common.json#/$defs/reference":    report.Reference{},
		"common.json#/$defs/patch":        report.Patch{},
		"common.json#/$defs/error":        report.Error{},
		"judge.json":                      opinion.Judge{},
		"judge.json#/$defs/answer":        opinion.Row{},
		"common.json#/$defs/impact":       report.Impact{},
		"common.json#/$defs/touched":      align.Change{},
		"common.json#/$defs/advice":       align.Advice{},
		"common.json#/$defs/measured":     report.Measured{},
		"common.json#/$defs/gain":         gauge.Gain{},
	} {
		t.Run(name, func(t *testing.T) {
			s := schemaNamed(t, name)
			var all, required []string // fields that encoding/json writes, and fields without omitempty
			for _, f := range reflect.VisibleFields(reflect.TypeOf(value)) {
				tag := f.Tag.Get("json")
				field, options, _ := strings.Cut(tag, ",")
				if tag == "" || field == "-" {
					continue
				}
				all = append(all, field)
				if !strings.Contains(options, "omit") {
					required = append(required, field)
				}
			}
			require.ElementsMatch(t, all, slices.Collect(maps.Keys(s.Properties)),
				"fields of %T, properties in docs/schema", value)
			require.ElementsMatch(t, required, s.Required, "fields of %T without omitempty, required in docs/schema",
				value)
		})
	}
}
