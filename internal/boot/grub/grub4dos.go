package grub

import "github.com/trueup/trueup/internal/boot"

// ForDOS is the MBR of grub4dos. Its second part fills the sectors behind the first, and finds GRLDR by name in
// whatever partition it lies: nothing counts from the start of the disk but what stands in front of all partitions. It
// reads by CHS where the BIOS has no extensions. Every build has the message, by which bootlace.com and grubinst know
// it. Spec: grub4dos, README_GRUB4DOS.txt, "GRLDR".
var ForDOS = &boot.Code{
	ID: "grub4dos", Name: "grub4dos", ReadsCHS: true, Find: findGrub4DOS, Known: boot.Says("Missing MBR-helper."),
}

// grldrMBR is the length of grldr.mbr in sectors.
const grldrMBR = 16

func findGrub4DOS(g *boot.Guest, c *boot.Code) (f boot.Found, err error) {
	if g.Code != c {
		return f, nil
	}
	f.Link(0, "%s in sector 0 loads LBA 1 to %d, and looks for GRLDR in every partition", c.Name, grldrMBR-1)
	if g.FirstByte() < grldrMBR*512 {
		f.Unbootable("grub4dos", 0, "a part of grub4dos lies in the first partition, and would move with it",
			boot.InstallAgain)
	}
	return f, g.WithFile([]string{"grldr"}, func(p boot.Partition, _ string) {
		f.Link(p.Number, "GRLDR lies in partition %d", p.Number)
	})
}
