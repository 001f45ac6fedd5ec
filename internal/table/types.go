package table

import (
	_ "embed" // the types of partitions
	"slices"
	"strings"
	"sync"
)

// Role is a property of a partition type. Types of one system can share a role.
type Role string

// Roles used in code. Roles of types that do not move are keys of the refusals of package layout.
const (
	ESP         Role = "esp"       // an EFI system partition. Spec: UEFI 2.10, table 5.7 and 5.2.2
	PReP        Role = "prep"      // code that PowerPC firmware boots. Spec: PowerPC reference platform
	BIOSBoot    Role = "bios-boot" // core.img of GRUB on a GPT. Spec: GRUB manual, "BIOS installation"
	FreeBSDBoot Role = "freebsd-boot"
	FreeBSD     Role = "freebsd"      // a disklabel in it counts from its start
	LDM         Role = "ldm"          // a partition of a Windows dynamic disk
	LDMDatabase Role = "ldm-database" // the partition of a dynamic disk with the database
	BeOS        Role = "beos"
	NoFiles     Role = "no-files" // unknown content of this type is no file system
	// Reserved marks partitions that a running guest neither reads nor writes: space kept free, or code that firmware
	// or a boot loader reads once. Sources: Microsoft, "CREATE_PARTITION_PARAMETERS" and "Windows and GPT FAQ" (MSR);
	// GRUB manual, "BIOS installation"; Linux, arch/powerpc, and sfdisk --list-types (PReP); FreeBSD, gpart(8),
	// freebsd-boot, which MidnightBSD has copied.
	Reserved Role = "reserved"
)

// partitionType is a line of types.txt.
type partitionType struct {
	name  string
	roles []Role
}

// types maps IDs to types of partitions.
var types = sync.OnceValue(func() map[string]partitionType {
	types := map[string]partitionType{}
	for line := range strings.Lines(typesText) {
		id, rest, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue // a comment
		}
		name, roles, _ := strings.Cut(rest, "\t")
		t := partitionType{name: name}
		for role := range strings.FieldsSeq(roles) {
			t.roles = append(t.roles, Role(role))
		}
		types[id] = t
	}
	return types
})

//go:embed types.txt
var typesText string

// TypeName returns the name of the partition's type, or "" if the type is unknown.
func (p Partition) TypeName() string { return types()[p.TypeID()].name }

// Roles returns the roles of the type with an ID.
func Roles(id string) []Role { return types()[id].roles }

// Is reports whether the type of a partition has a role.
func (p Partition) Is(role Role) bool { return slices.Contains(Roles(p.TypeID()), role) }
