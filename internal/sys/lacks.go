package sys

import "slices"

// Lack is what this program does not do on a system, or does in another way.
type Lack struct {
	Feature string `json:"feature"`
	Text    string `json:"text"` // what happens instead
}

// lacks are those of all systems but Linux, each with the only systems that it is of; none: all. The same are in
// docs/systems.md, and the features in docs/schema/version.json.
var lacks = []struct {
	Lack
	of []string
}{
	{Lack{"attributes", "of what a copy replaces it gets the permissions alone; the report says what was lost"}, nil},
	{Lack{"bench", "refused"}, nil},
	{Lack{"block-devices", `refused; on Windows \\.\PhysicalDriveN is read as SOURCE`}, nil},
	{Lack{"confinement", "`isolation` in JSON says so; `--require-sandbox` refuses"}, nil},
	{Lack{"exchange-of-names", "without hard links `replace` renames twice; in between the name is missing"}, nil},
	{Lack{"file-system-names", "rows of `scan` have no `file_system`"}, nil},
	{Lack{"folder-flush", "a loss of power soon after the run could lose the copy, as reported"}, []string{"windows"}},
	{Lack{"holes", "all of a file is read as data"}, []string{"darwin"}},
	{Lack{"page-cache", "what is read and written stays in memory as the system decides"}, nil},
	{Lack{"qemu-locks", "a disk that QEMU has open is noticed when it changes, on Windows when a copy begins"}, nil},
	{Lack{"scripts", "`scan --script`, which writes for bash, is refused"}, []string{"windows"}},
	{Lack{"shared-blocks", "what could be shared with the source is copied"}, nil},
}

// Lacks returns what the program lacks on a system that Go calls so.
func Lacks(system string) []Lack {
	out := []Lack{}
	for _, l := range lacks {
		if system != "linux" && (l.of == nil || slices.Contains(l.of, system)) {
			out = append(out, l.Lack)
		}
	}
	return out
}
