package align

import (
	"embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/pelletier/go-toml/v2"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Storage is what lies below a disk: it reads and writes whole blocks, or keeps each of them in another place.
type Storage struct {
	Name   string `json:"name"`  // "netapp"; of a plain size "64K"
	About  string `json:"about"` // for people
	Block  int64  `json:"block"` // bytes, a power of two
	Offset int64  `json:"offset,omitempty"`
	// Rewrites: a block that is written in part is read first, and written as a whole.
	Rewrites bool `json:"rewrites,omitempty"`
	// Documented: the maker or its manual names the size. Otherwise administrators use it.
	Documented bool   `json:"documented"`
	Source     string `json:"source,omitempty"` // where the size is from; lines
}

// profile is a storage as a file of profiles has it. The name is that of its table.
type profile struct {
	About      string `toml:"about"`
	Block      string `toml:"block"`
	Offset     string `toml:"offset"`
	Rewrites   bool   `toml:"read_modify_write"`
	Documented bool   `toml:"documented"`
	Source     string `toml:"source"`
}

// Range of the blocks of a storage, in bytes.
const (
	minStorage = units.SectorSize
	maxStorage = 4 * units.MiB
)

// generic is the profile that is assumed if the user names none.
const generic = "generic"

// Limits of a file of profiles, in bytes. What a profile is about stands in one line of a report.
const (
	MaxProfiles = 1 << 20
	maxAbout    = 80
	maxSource   = 4 << 10
)

//go:embed profiles/*.toml
var builtin embed.FS

// Profiles are the storages that a user can name.
type Profiles struct{ own []Storage }

// Generic returns the storage that is assumed if the user names none.
var Generic = sync.OnceValue(func() Storage {
	s, err := Profiles{}.Parse(generic)
	if err != nil {
		panic(err) // a test reads all embedded profiles
	}
	return s
})

// Names returns the names that Parse takes: those of the user first, generic before the other built-in ones.
func (p Profiles) Names() []string {
	var out []string
	for _, s := range p.own {
		out = append(out, s.Name)
	}
	out = append(out, generic)
	files, err := builtin.ReadDir("profiles")
	if err != nil {
		panic(err) // the folder is embedded
	}
	for _, f := range files {
		if name := strings.TrimSuffix(f.Name(), ".toml"); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Parse finds a profile by its name, or makes one of a size. Behind a plus sign stands the byte of the disk on which a
// block starts: that of a partition, a LUN or a datastore that is itself misaligned.
func (p Profiles) Parse(s string) (Storage, error) {
	name, plus, shifted := strings.Cut(s, "+")
	out, err := p.named(strings.ToLower(name))
	switch {
	case err != nil || !shifted:
		return out, err
	case out.Offset != 0:
		return out, fmt.Errorf("storage %.64q has an offset in its profile, %d; leave out +%.64s", name, out.Offset,
			plus)
	}
	out.Name += "+" + plus
	return out, out.shift(plus)
}

func (p Profiles) named(name string) (Storage, error) {
	if i := slices.IndexFunc(p.own, func(s Storage) bool { return s.Name == name }); i >= 0 {
		return p.own[i], nil
	}
	if slices.Contains(p.Names(), name) {
		text, err := builtin.ReadFile("profiles/" + name + ".toml")
		if err != nil {
			return Storage{}, err
		}
		own, err := ParseProfiles(text)
		if err != nil {
			return Storage{}, err
		}
		return own.own[0], nil
	}
	n, err := units.Parse(name)
	if err != nil || checkBlock(n) != nil {
		return Storage{}, fmt.Errorf("no storage %.256q, want one of %s, or a power of two from %s to %s%s", name,
			strings.Join(p.Names(), ", "), units.Short(minStorage), units.Short(maxStorage),
			ondisk.DidYouMean(name, p.Names()...))
	}
	return Storage{
		Name: units.Short(n), Block: n, About: "blocks of " + units.Format(n), Source: "--storage",
		Rewrites: n != minStorage,
	}, nil
}

func checkBlock(n int64) error {
	if n < minStorage || n > maxStorage || !units.IsPowerOfTwo(n) {
		return fmt.Errorf("want a power of two from %s to %s", units.Short(minStorage), units.Short(maxStorage))
	}
	return nil
}

// shift reads a byte on which a block starts, and keeps the first such byte.
func (s *Storage) shift(offset string) error {
	n, err := units.Parse(offset)
	if err == nil && (n < 0 || n%units.SectorSize != 0) {
		err = fmt.Errorf("want a multiple of %d", units.SectorSize)
	}
	if err != nil {
		return fmt.Errorf("storage %.64q, offset %.64q: %w", s.Name, offset, err)
	}
	if n %= s.Block; n != 0 {
		s.Offset, s.About = n, fmt.Sprintf("%s, from byte %d on", s.About, n)
	}
	return nil
}

// profileName has no plus sign, which --storage gives a meaning.
var profileName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,31}$`)

// ParseProfiles reads a file of profiles, in TOML: a table for each storage. An unknown key is an error with its line.
func ParseProfiles(text []byte) (Profiles, error) {
	if len(text) > MaxProfiles {
		return Profiles{}, fmt.Errorf("%d bytes of profiles, want at most %d", len(text), MaxProfiles)
	}
	var tables map[string]profile
	d := toml.NewDecoder(strings.NewReader(string(text))).DisallowUnknownFields()
	if err := d.Decode(&tables); err != nil {
		return Profiles{}, tomlError(err)
	}
	var out Profiles
	for name, t := range tables {
		s, err := t.storage(name)
		if err != nil {
			return Profiles{}, fmt.Errorf("[%.64s]: %w", name, err)
		}
		out.own = append(out.own, s)
	}
	if len(out.own) == 0 {
		return out, errors.New("no profile: want a table for each, such as [array1] with about and block")
	}
	slices.SortFunc(out.own, func(a, b Storage) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (t profile) storage(name string) (Storage, error) {
	s := Storage{
		Name: name, About: t.About, Rewrites: t.Rewrites, Documented: t.Documented, Source: strings.TrimSpace(t.Source),
	}
	if _, err := units.Parse(name); err == nil || !profileName.MatchString(name) {
		return s, errors.New("want a name of at most 32 small letters, digits, - and _, which is no size")
	}
	var err error
	if s.Block, err = units.Parse(t.Block); err == nil {
		err = checkBlock(s.Block)
	}
	switch {
	case err != nil:
		return s, fmt.Errorf("block = %.64q: %w", t.Block, err)
	case t.About == "" || len(t.About) > maxAbout:
		return s, fmt.Errorf("about has %d bytes, want 1 to %d: it names the storage in reports", len(t.About),
			maxAbout)
	case strings.ContainsFunc(t.About, func(r rune) bool { return !unicode.IsPrint(r) }):
		return s, fmt.Errorf("about = %q: want characters that can be printed, in one line", t.About)
	case len(t.Source) > maxSource:
		return s, fmt.Errorf("source has %d bytes, want at most %d", len(t.Source), maxSource)
	case t.Offset == "":
		return s, nil
	}
	return s, s.shift(t.Offset)
}

// tomlError names the line of an error, and the key that is not known.
func tomlError(err error) error {
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok && len(strict.Errors) > 0 {
		row, _ := strict.Errors[0].Position()
		return fmt.Errorf("line %d: unknown key %.256q, want about, block, offset, read_modify_write, "+
			"documented or source",
			row, strings.Join(strict.Errors[0].Key(), "."))
	}
	if bad, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, column := bad.Position()
		if strings.Contains(bad.Error(), "cannot decode TOML") { // and types of Go
			return fmt.Errorf("line %d, column %d: key %.64q: want a table such as [array1], with text in quotes, "+
				"true or false",
				row, column, strings.Join(bad.Key(), "."))
		}
		return fmt.Errorf("line %d, column %d: %w", row, column, err)
	}
	return err
}
