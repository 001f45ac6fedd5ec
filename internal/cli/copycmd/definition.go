package copycmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// definitionFlags name the definitions of the machine that uses SOURCE.
type definitionFlags struct {
	libvirt, vmx []string
	definitions  []realign.Definition
}

func (d *definitionFlags) addDefinitions(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&d.libvirt, "libvirt-xml", nil,
		"say what must change in this domain or volume of libvirt, `FILE` (repeatable)")
	cmd.Flags().StringArrayVar(&d.vmx, "vmx", nil, "say what must change in this VMX `FILE` (repeatable)")
}

// readDefinitions reads the files, which can be pipes. They are parsed when the process is confined.
func (d *definitionFlags) readDefinitions() error {
	for _, name := range d.libvirt {
		if err := d.readDefinition("--libvirt-xml", name, false); err != nil {
			return err
		}
	}
	for _, name := range d.vmx {
		if err := d.readDefinition("--vmx", name, true); err != nil {
			return err
		}
	}
	return nil
}

func (d *definitionFlags) readDefinition(flag, name string, vmx bool) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, realign.MaxDefinition+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s %s: %w", flag, name, err)
	}
	d.definitions = append(d.definitions, realign.Definition{File: name, Text: text, VMX: vmx})
	return nil
}

// checkDefinitions refuses flags for a DEST that no such definition names, and reads the files.
func (f *alignFlags) checkDefinitions(dest string) error {
	switch {
	case len(f.libvirt)+len(f.vmx) == 0:
		return nil
	case realign.IsPackage(dest):
		return command.Usage("--libvirt-xml and --vmx are for the disk of a machine, and %s is a package, from which "+
			"a machine gets a definition of its own when it is imported; leave them out", dest)
	case f.dev.device && !f.inPlace && len(f.vmx) > 0:
		return command.Usage("--vmx: a VMX names VMDKs, and DEST %s is a device; leave it out, and name the device in "+
			"a mapping file (vmkfstools -r)", dest)
	}
	return f.readDefinitions()
}

// defined adds to a report what must change in the definitions of the machine. skipped: nothing will be written.
func (f *alignFlags) defined(s *realign.Source, p *realign.Plan, r *report.Align, skipped bool) error {
	dest, format := r.Dest, cmp.Or(f.to.Format, s.Image.Format)
	if f.replace || f.inPlace || skipped {
		dest, format = "", s.Image.Format
	}
	if f.view && !skipped {
		format = "vmdk"
	}
	if f.dev.device && !f.inPlace {
		format = "raw"
	}
	issues, err := s.Defined(f.definitions, p, dest, format, f.dev.device)
	for _, i := range issues {
		r.Findings = append(r.Findings, align.FromIssue(i))
	}
	return err
}
