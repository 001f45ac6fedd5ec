package copycmd

import (
	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/realign"
)

// checkRemote refuses an image of a server for what needs a file.
func (f *alignFlags) checkRemote(src, dest string) error {
	works := f.needFiles()
	if realign.IsPackage(dest) {
		works = append(works, "a copy that is a package")
	}
	for _, work := range works {
		for _, image := range append(f.With, src) {
			if err := realign.Local(image, work); err != nil {
				return err
			}
		}
	}
	if realign.IsRemote(dest) {
		return command.Usage("DEST %s is an image of a server, which trueup only reads; name a file", dest)
	}
	return nil
}

// needFiles lists the flags that are given and that need SOURCE in a file of its own.
func (f *alignFlags) needFiles() (out []string) {
	for _, work := range []struct {
		name string
		on   bool
	}{
		{"--replace", f.replace},
		{"--view", f.view},
	} {
		if work.on {
			out = append(out, work.name)
		}
	}
	return out
}
