package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
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
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/opinion"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	trial "github.com/trueup/trueup/internal/trial"
)

// schemaFolder holds the JSON Schemas that users get.
const schemaFolder = "../../docs/schema"

// compiled keeps each schema: the whole suite asks for them.
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

// validateOutput requires that a command has printed one JSON object, or a scan and what looks at several images one in
// each line.
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

// validate requires that what a command printed is one JSON object, and that its schema allows it.
func validate(t testing.TB, stdout string) {
	t.Helper()
	// The package's own decoder keeps large numbers exact and refuses a second value.
	object, err := jsonschema.UnmarshalJSON(strings.NewReader(stdout))
	require.NoError(t, err, "one JSON object is wanted:\n%s", stdout)
	require.NoError(t, schemaNamed(t, schemaOf(t, object)).Validate(object), "%s", stdout)
}

// schemaOf picks the schema of an object: that of its command, unless it has nothing but an error to tell.
func schemaOf(t testing.TB, object any) string {
	t.Helper()
	fields, ok := object.(map[string]any)
	require.True(t, ok, "an object is wanted: %v", object)
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
	case "replace", "move", "view":
		command = "align"
	case "undo", "resume", "finish":
		command = "unfinished"
	}
	if packaged {
		command = "package-" + command
	}
	return command + ".json"
}

// jsonCases are commands that, between them, print every kind of object.
func jsonCases(t *testing.T) map[string][]string {
	t.Helper()
	source, aligned := sampleDisk(t), sampleDisk(t)
	fresh := func() string { return filepath.Join(t.TempDir(), "aligned.vmdk") }
	require.Equal(t, 0, trueup(t, "align", "--force", source, aligned).code)
	broken := filepath.Join(t.TempDir(), "broken.raw")
	require.Equal(t, 0, trueup(t, "convert", "--to", "raw", source, broken).code)
	unbootable := filepath.Join(t.TempDir(), "unbootable.raw")
	require.Equal(t, 0, trueup(t, "convert", "--to", "raw", source, unbootable).code)
	disktest.WriteAt(t, unbootable, 0, noise("unknown code", 64))
	bare := filepath.Join(t.TempDir(), "bare.raw")
	require.Equal(t, 0, trueup(t, "convert", "--to", "raw", source, bare).code)
	disktest.WriteAt(t, bare, 0, readAt(t, bare, trackSectors*sectorSize, 2<<20)) // the NTFS alone
	disktest.WriteAt(t, broken, mbrEntryAt+12, []byte{0xff, 0xff, 0xff, 0xff})    // the partition ends behind the disk
	blank, unknown := filepath.Join(t.TempDir(), "blank.raw"), filepath.Join(t.TempDir(), "unknown.raw")
	require.NoError(t, os.WriteFile(blank, make([]byte, 1<<20), 0o600))
	require.NoError(t, os.WriteFile(unknown, noise("unknown", 1<<20), 0o600))
	packed := twoDisks(t).ova(t)
	packedAligned, packedBroken := filepath.Join(t.TempDir(), "aligned.ova"), twoDisks(t)
	require.Equal(t, 0, trueup(t, "align", packed, packedAligned).code)
	packedBroken.text = strings.Replace(packedBroken.text, `ovf:id="file2"`, `ovf:id="file2" ovf:compression="gzip"`, 1)
	freshOVA := func() string { return filepath.Join(t.TempDir(), "copy.ova") }
	return map[string][]string{
		"package, inspect":              {"inspect", packed},
		"package, inspect, malformed":   {"inspect", packedBroken.ova(t)},
		"package, align":                {"align", packed, freshOVA()},
		"package, align, skipped":       {"align", "--skip-aligned", packedAligned, freshOVA()},
		"package, convert":              {"convert", packed, freshOVA()},
		"package, verify":               {"verify", packed, packedAligned},
		"package, verify, different":    {"verify", packedAligned, packed},
		"package, plan of one disk":     {"plan", packed + "!disk1.vmdk"},
		"package, plan":                 {"plan", packed},
		"inspect, misaligned":           {"inspect", source},
		"inspect, with impacts":         {"inspect", "--impact", source},
		"inspect, fragmentation":        {"inspect", "--fragmentation", source},
		"inspect, a storage apart":      {"inspect", "--impact", "--storage", "flasharray", source},
		"inspect, larger blocks below":  {"inspect", "--boundary", "4K", "--storage", "128K", "--list", aligned},
		"inspect, aligned":              {"inspect", aligned},
		"inspect, below the boundary":   {"inspect", "--boundary", "16M", aligned},
		"inspect, a volume alone":       {"inspect", bare},
		"inspect, blank":                {"inspect", blank},
		"inspect, unknown":              {"inspect", unknown},
		"inspect, unknown, accepted":    {"inspect", "--allow-unknown", unknown},
		"scan, nothing to judge":        {"scan", blank, unknown},
		"inspect, malformed":            {"inspect", broken},
		"plan":                          {"plan", source},
		"plan, nothing moves":           {"plan", aligned},
		"plan, data only":               {"plan", "--data-only", source},
		"align, data only":              {"align", "--data-only", source, fresh()},
		"plan, refused":                 {"plan", unbootable},
		"align":                         {"align", source, fresh()},
		"align, structures only":        {"align", "--verify", "structure", source, fresh()},
		"align, nothing moves":          {"align", aligned, fresh()},
		"align, skipped":                {"align", "--skip-aligned", aligned, fresh()},
		"align, refused":                {"align", unbootable, fresh()},
		"convert":                       {"convert", "--to", "raw", source, fresh()},
		"verify, equal":                 {"verify", source, aligned},
		"verify, different":             {"verify", aligned, source},
		"version":                       {"version"},
		"error, no such file":           {"inspect", "absent.vmdk"},
		"scan":                          {"scan", source, aligned, unbootable, packed, filepath.Dir(broken)},
		"scan, check":                   {"scan", "--check", source, aligned, blank},
		"scan, nothing there":           {"scan", "absent.vmdk"},
		"scan, packages":                {"scan", packedBroken.ova(t), packedAligned},
		"scan, no path":                 {"scan"},
		"scan, no level":                {"scan", "--fail-on", "soon", source},
		"error, too few arguments":      {"align", source},
		"error, unknown command":        {"frobnicate"},
		"error, dest exists":            {"align", source, aligned},
		"error, dest is the source":     {"align", source, source},
		"error, no such partition":      {"plan", "--partition", "7", source},
		"error, a format it is not":     {"inspect", "--format", "raw", source},
		"error, a folder and no image":  {"inspect", t.TempDir()},
		"error, the table is malformed": {"align", broken, fresh()},
	}
}

// TestJSONMatchesSchemas holds every kind of JSON output against its schema. The other tests of this package do the
// same for
// all that they call.
func TestJSONMatchesSchemas(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for name, args := range jsonCases(t) {
		t.Run(name, func(t *testing.T) {
			r := trueup(t, append(args, "-o", "json")...)
			objects := []string{r.stdout}
			if args[0] == "scan" && strings.Contains(r.stdout, `"event"`) {
				objects = slices.Collect(strings.Lines(r.stdout))
			}
			for _, text := range objects {
				validate(t, text)
				var object map[string]any
				require.NoError(t, json.Unmarshal([]byte(text), &object))
				used[schemaOf(t, object)] = true
				if code, ok := object["exit_code"]; ok {
					require.InDelta(t, r.code, code, 0)
				}
				requireStrict(t, schemaOf(t, object), object)
			}
		})
	}
	require.ElementsMatch(t, []string{
		"inspect.json", "plan.json", "align.json", "verify.json", "convert.json", "version.json", "error.json",
		"package-inspect.json", "package-align.json", "package-convert.json", "package-verify.json", "scan-image.json",
		"scan-summary.json",
	}, slices.Collect(maps.Keys(used)))
}

// Of several images each is an object of its own, that of its kind, in a line.
func TestSeveralMatchSchemas(t *testing.T) {
	t.Parallel()
	var used []string
	args := []string{"inspect", "--json", sampleDisk(t), "absent.vmdk", twoDisks(t).ova(t)}
	r := trueup(t, args...)
	require.Equal(t, 1, r.code)
	for line := range strings.Lines(r.stdout) {
		object, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		require.NoError(t, err)
		used = append(used, schemaOf(t, object))
	}
	validateOutput(t, args, r.stdout)
	require.Equal(t, []string{"inspect.json", "error.json", "package-inspect.json"}, used)
}

// requireStrict proves that the schema forbids what it should: a field that is not known, wherever it stands, and the
// lack of one that is required.
func requireStrict(t *testing.T, schema string, object map[string]any) {
	t.Helper()
	s := schemaNamed(t, schema)
	for place, part := range objectsIn("", object) {
		if strings.HasSuffix(place, "/descriptor") || strings.HasPrefix(place, "/reuse/identity") ||
			place == "/formats" || place == "/errors" {
			continue // its fields are those of the image, names of formats and errors, or for trueup alone
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

// TestSchemasNameEveryField compares the fields of the Go structures with those of the schemas, so that a field which
// no
// test disk happens to need is not forgotten.
func TestSchemasNameEveryField(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]any{
		"inspect.json":                    report.Inspect{},
		"plan.json":                       report.Plan{},
		"align.json":                      report.Align{},
		"convert.json":                    report.Align{},
		"verify.json":                     report.Verify{},
		"serve.json":                      report.Serve{},
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
		"package-align.json":              report.PackageAlign{},
		"package-convert.json":            report.PackageAlign{},
		"package-verify.json":             report.PackageVerify{},
		"scan-image.json":                 results.Image{},
		"scan-image.json#/$defs/disk":     results.Disk{},
		"scan-summary.json":               results.Summary{},
		"scan-summary.json#/$defs/merged": results.Merged{},
		"scan-summary.json#/$defs/label":  results.LabelSum{},
		"scan-image.json#/$defs/priority": results.Priority{},
		"common.json#/$defs/image":        report.Image{},
		"common.json#/$defs/package":      report.Package{},
		"common.json#/$defs/file":         report.File{},
		"common.json#/$defs/link":         report.Link{},
		"common.json#/$defs/usage":        report.Usage{},
		"common.json#/$defs/table":        report.Table{},
		"common.json#/$defs/boot_code":    report.BootCode{},
		"common.json#/$defs/boot_link":    report.BootLink{},
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
			all, required := jsonFields(reflect.TypeOf(value))
			require.ElementsMatch(t, all, slices.Collect(maps.Keys(s.Properties)))
			require.ElementsMatch(t, required, s.Required)
		})
	}
}

// jsonFields lists the fields that encoding/json writes for a structure, and those that it always writes.
func jsonFields(structure reflect.Type) (all, always []string) {
	for _, f := range reflect.VisibleFields(structure) {
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		if tag == "" || name == "-" {
			continue
		}
		all = append(all, name)
		if !strings.Contains(options, "omit") {
			always = append(always, name)
		}
	}
	return all, always
}

// TestProgressMatchesSchema is about the one JSON output that goes to standard error.
func TestProgressMatchesSchema(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	dest := filepath.Join(t.TempDir(), "aligned.vmdk")
	for _, args := range [][]string{{"align", source, dest}, {"verify", source, dest}} {
		r := trueup(t, append(args, "--progress", "json")...)
		require.Equal(t, 0, r.code, r.stderr)
		lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
		for _, line := range lines {
			object, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
			require.NoError(t, err, line)
			require.NoError(t, schemaNamed(t, "progress.json").Validate(object), line)
		}
		var last struct {
			Command string `json:"command"`
			Done    int64  `json:"done_bytes"`
			Total   int64  `json:"total_bytes"`
		}
		require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
		require.Equal(t, args[0], last.Command)
		require.Equal(t, last.Total, last.Done, "the last line tells the end")
	}
}
