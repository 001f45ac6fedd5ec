package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/cli/flags"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
)

const (
	// variables begins the name of each variable that sets a flag.
	variables = "TRUEUP_"
	// configVariable names the configuration file.
	configVariable = variables + "CONFIG"
	// maxConfig bounds the configuration file, in bytes.
	maxConfig = 1 << 20
	// allCommands is the table of what holds for each command that has the flag.
	allCommands = "all"
)

// settable are the flags that have defaults of the user: how a run looks and is logged, what it may use, and by what it
// judges. A flag that names what is done or written, agrees to a danger or proves less is given each time.
var settable = []string{
	"accel", "allow-folder", "boundary",
	"catalog", "check", "color", "estimate", "exclude", "fail-on", "fragmentation", "ignore", "impact",
	"include", "jobs", "label", "log", "log-format", "memory", "output", "profiles", "progress", "qemu",
	"quiet", "require-sandbox", "resumable", "seconds", "settle", "storage", "title", "to", "verbose",
}

// fromSetting is the annotation of a flag whose default is one of the user.
const fromSetting = "trueup_setting"

// settings are texts for the flags of one command, from where it takes them.
type settings map[string][]setting

type setting struct{ from, text string }

// configure changes the defaults of the flags of a command: those of the configuration file, then those of variables.
// What the command line has goes before both; a flag that may be repeated has all of them.
func configure(root, cmd *cobra.Command, environ []string) error {
	if cmd.Hidden || aboutUse(cmd) {
		return nil
	}
	byVariables, config, err := variablesOf(root, environ)
	if configVariable+"="+config == shell.Unconfigured {
		return nil
	}
	var s settings
	if err == nil {
		s, err = configured(root, cmd, config)
	}
	maps.Copy(s, byVariables)
	set := func(f *pflag.Flag) {
		for _, v := range s[f.Name] {
			switch {
			case err != nil:
				return
			case !slices.Contains(settable, f.Name):
				err = fmt.Errorf("%s: --%s is taken from the command line only", v.from, f.Name)
			default:
				if err = f.Value.Set(v.text); err != nil {
					err = fmt.Errorf("%s: %w", v.from, command.WrongValue(f, v.text, err))
				}
			}
			f.DefValue = f.Value.String()
			if f.Annotations == nil {
				f.Annotations = map[string][]string{}
			}
			f.Annotations[fromSetting] = []string{v.from}
		}
	}
	cmd.LocalFlags().VisitAll(set)
	cmd.InheritedFlags().VisitAll(set)
	if err != nil {
		return command.Usage("%w", err)
	}
	return nil
}

// explained adds to an error of usage which flags have defaults of the user: the command line does not show them.
func explained(cmd *cobra.Command, err error) error {
	var from []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if setting := f.Annotations[fromSetting]; setting != nil && !f.Changed {
			from = append(from, fmt.Sprintf("--%s %s by %s", f.Name, f.Value, setting[0]))
		}
	})
	if len(from) == 0 || !errors.Is(err, ondisk.ErrUsage) {
		return err
	}
	return fmt.Errorf("%w (defaults that are set: %s)", err, strings.Join(from, "; "))
}

// aboutUse reports whether a command only says how to use the others.
func aboutUse(cmd *cobra.Command) bool {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent() // as completion bash
	}
	return !cmd.HasParent() || slices.Contains([]string{"help", "completion"}, cmd.Name()) ||
		strings.HasPrefix(cmd.Name(), cobra.ShellCompRequestCmd)
}

// variablesOf takes what variables of the environment say, and which configuration file they name. One that is a letter
// from that of a flag is an error; others with the prefix are those of other programs.
func variablesOf(root *cobra.Command, environ []string) (s settings, config string, err error) {
	named := map[string]string{}
	for name := range flagsOf(root) {
		named[variables+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] = name
	}
	s = settings{}
	for _, e := range environ {
		name, text, _ := strings.Cut(e, "=")
		switch flag, ok := named[name]; {
		case name == configVariable:
			config = text
		case ok:
			s[flag] = []setting{{"variable " + name, text}}
		case strings.HasPrefix(name, variables):
			for near := range named {
				if ondisk.Distance(near, name) == 1 {
					return nil, "", fmt.Errorf("unknown variable %s; did you mean %s?", name, near)
				}
			}
		}
	}
	return s, config, nil
}

// flagsOf returns the names of the flags of a command and of those below it.
func flagsOf(cmd *cobra.Command) map[string]bool {
	out := map[string]bool{}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { out[f.Name] = true })
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			maps.Copy(out, flagsOf(c))
		}
	}
	return out
}

// configured reads the configuration file: the table of all commands, then that of this one.
func configured(root, cmd *cobra.Command, path string) (settings, error) {
	named := path != ""
	if !named {
		dir, err := os.UserConfigDir()
		if err != nil {
			return settings{}, nil //nolint:nilerr // no folder, no file
		}
		path = filepath.Join(dir, "trueup", "config.toml")
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && path != os.DevNull {
		return nil, fmt.Errorf("configuration %s: it is not a regular file", path)
	}
	text, err := flags.ReadFile(path, maxConfig+1)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return settings{}, nil
	}
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("%s: want at most %d bytes", path, maxConfig)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration (%s): %w", configVariable, err)
	}
	out := settings{}
	tables := tablesOf(root)
	decoder := toml.NewDecoder(strings.NewReader(string(text))).DisallowUnknownFields()
	if err := decoder.Decode(tables.Addr().Interface()); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, tomlError(err))
	}
	for i := range tables.NumField() {
		table := tables.Type().Field(i).Tag.Get("toml")
		if table != allCommands && table != cmd.Name() {
			continue
		}
		if err := out.table(fmt.Sprintf("configuration %s, [%s]", path, table), tables.Field(i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// tablesOf returns a structure with a table for all commands, which comes first, and one for each; their keys are the
// flags. With it the decoder knows which names are wrong, and in which line.
func tablesOf(root *cobra.Command) reflect.Value {
	var tables []reflect.StructField
	add := func(name string, of map[string]bool) {
		var keys []reflect.StructField
		for flag := range of {
			keys = append(keys, field(len(keys), flag, reflect.TypeFor[any]()))
		}
		tables = append(tables, field(len(tables), name, reflect.StructOf(keys)))
	}
	add(allCommands, flagsOf(root))
	for _, c := range root.Commands() {
		if !c.Hidden {
			own := flagsOf(c)
			c.InheritedFlags().VisitAll(func(f *pflag.Flag) { own[f.Name] = true })
			add(c.Name(), own)
		}
	}
	return reflect.New(reflect.StructOf(tables)).Elem()
}

func field(n int, key string, t reflect.Type) reflect.StructField {
	tag := reflect.StructTag(fmt.Sprintf("toml:%q", key))
	return reflect.StructField{Name: fmt.Sprintf("F%d", n), Type: t, Tag: tag}
}

// table takes the values of one table.
func (s settings) table(from string, keys reflect.Value) error {
	for i := range keys.NumField() {
		if keys.Field(i).IsNil() {
			continue
		}
		flag := keys.Type().Field(i).Tag.Get("toml")
		values, list := reflect.TypeAssert[[]any](keys.Field(i))
		if !list {
			values = []any{keys.Field(i).Interface()}
		}
		s[flag] = nil
		for _, v := range values {
			switch v.(type) {
			case string, int64, bool:
				s[flag] = append(s[flag], setting{from, fmt.Sprint(v)})
			default:
				return fmt.Errorf("%s: %s = %v: want a text in quotes, a number, true or false, or a list of them",
					from, flag, v)
			}
		}
	}
	return nil
}

// tomlError names the line of an error, and the key that is not known.
func tomlError(err error) error {
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok && len(strict.Errors) > 0 {
		row, _ := strict.Errors[0].Position()
		return fmt.Errorf("line %d: unknown key %.256q; want a table [%s] or [COMMAND], and in it its flags", row,
			strings.Join(strict.Errors[0].Key(), "."), allCommands)
	}
	if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, column := bad.Position()
		if strings.Contains(bad.Error(), "cannot decode TOML") { // and types of Go
			return fmt.Errorf("line %d, column %d: want a table [%s] or [COMMAND]", row, column, allCommands)
		}
		return fmt.Errorf("line %d, column %d: %s", row, column, strings.TrimPrefix(bad.Error(), "toml: "))
	}
	return err
}
