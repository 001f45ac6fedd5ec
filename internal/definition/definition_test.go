package definition_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/definition"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// domainOf returns a domain with some disks, from line 6 on.
func domainOf(disks string) string {
	return `<domain type='kvm' id='3'>
  <name>xp</name>
  <memory unit='KiB'>524288</memory>
  <os><type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type></os>
  <devices>
` + disks + `
    <interface type='network'><mac address='52:54:00:11:22:33'/><source network='default'/></interface>
  </devices>
</domain>`
}

// diskOf returns one disk of a domain: its driver is in line 7, its source in line 8.
func diskOf(driver, source, more string) string {
	return domainOf("    <disk type='file' device='disk'>\n      " + driver + "\n      " + source +
		"\n      <target dev='hda' bus='ide'/>\n      " + more + "\n    </disk>")
}

const (
	qcow2 = `<driver name='qemu' type='qcow2'/>`
	here  = `<source file='/vm/xp.qcow2' index='1'/>`
	cdrom = "    <disk type='file' device='cdrom'>\n" +
		"      <source file='/vm/xp.qcow2'/><target dev='hdc' bus='ide'/><readonly/></disk>"
)

// fourDisks are the first of five.
var fourDisks = func() (out string) {
	for n := 1; n < 5; n++ {
		out += fmt.Sprintf("    <disk type='file' device='disk'><source file='/vm/%d'/>"+
			"<target dev='vd%d' bus='virtio'/></disk>\n", n, n)
	}
	return out
}()

// volumeOf returns a volume as virsh vol-dumpxml prints it: the capacity is in line 4, the format in line 8.
func volumeOf(capacity, format, below string) string {
	return "<volume type='file'>\n  <name>xp.qcow2</name>\n  <key>/vm/xp.qcow2</key>\n  " + capacity +
		"\n  <allocation unit='bytes'>200704</allocation>\n  <target>\n    <path>/vm/xp.qcow2</path>\n" +
		"    <format type='" +
		format + "'/>\n  </target>\n" + below + "</volume>"
}

func below(source string) string {
	return "<backingStore type='file'><format type='qcow2'/>" + source + "<backingStore/></backingStore>"
}

// vmxOf returns a VMX as VMware Workstation writes it, with more lines from line 5 on.
func vmxOf(lines ...string) string {
	return "#!/usr/bin/vmware\n.encoding = \"UTF-8\"\nconfig.version = \"8\"\nvirtualHW.version = \"8\"\n" +
		strings.Join(lines, "\r\n") + "\n"
}

// want is what a check says: the code and the text of each issue, or the error.
type want struct{ code, text string }

const refused = "refused"

// TestChecks has definitions of all kinds and the disk /vm/xp.qcow2 of 8 GiB.
func TestChecks(t *testing.T) {
	const gib8, grown = 8 << 30, 8<<30 + 1<<20
	vmdk := func(c *definition.Case) { c.Format, c.Base = "vmdk", "xp.vmdk" }
	for name, c := range map[string]struct {
		text   string
		change func(*definition.Case)
		want   []want
	}{
		"as it should be": {
			diskOf(qcow2, here, ""), nil,
			[]want{{"definition", "d, line 8: the disk hda is this one"}},
		},
		"grown": {
			diskOf(qcow2, here, ""), func(c *definition.Case) { c.New = grown }, []want{{"definition", "line 8"}},
		},
		"a CD-ROM beside": {
			strings.Replace(diskOf(qcow2, here, ""), "  <devices>\n", "  <devices>\n"+cdrom+"\n", 1), nil,
			[]want{{"definition", "d, line 10: the disk hda"}},
		},
		"only a CD-ROM": {
			domainOf(cdrom), nil, []want{{refused, "d names no disk that leads to xp.qcow2, and no disk at all"}},
		},
		"another disk": {
			diskOf(qcow2, `<source file='/vm/other.qcow2'/>`, ""), nil,
			[]want{{refused, `it names "/vm/other.qcow2"; give the definition`}},
		},
		"five others": {
			strings.Replace(diskOf(qcow2, `<source file='/vm/0'/>`, ""), "  <devices>\n", "  <devices>\n"+fourDisks, 1),
			nil,
			[]want{{refused, `it names "/vm/1", "/vm/2", "/vm/3", "/vm/4", and 1 more`}},
		},
		"a link": {diskOf(qcow2, `<source file='/link/xp.qcow2'/>`, ""), nil, []want{{"definition", "line 8"}}},
		"raw by the driver": {
			diskOf(`<driver name='qemu' type='raw'/>`, here, ""), nil,
			[]want{{"definition-format", "d, line 7: the format is raw, and the disk is qcow2"}},
		},
		"raw without a type": {
			diskOf(`<driver name='qemu' cache='none'/>`, here, ""), nil,
			[]want{{"definition-format", "d, line 7: the format is raw"}},
		},
		"a copy": {
			diskOf(qcow2, here, ""), func(c *definition.Case) { c.Dest, c.Format = "/vm/new.img", "raw" },
			[]want{{"definition-path", "d, line 8: the disk hda leads to the disk as it was"}, {
				"definition-format",
				"the format is qcow2, and the disk is raw",
			}},
		},
		"VHD": {
			diskOf(`<driver name='qemu' type='vpc'/>`, here, ""), func(c *definition.Case) { c.Format = "vhd" },
			[]want{{"definition", "line 8"}},
		},
		"geometry": {
			diskOf(qcow2, here, "<geometry cyls='1044' heads='255' secs='63'/>"),
			func(c *definition.Case) { c.New = grown },
			[]want{{"definition-geometry", "d, line 10: <geometry> describes"}},
		},
		"geometry, as large": {
			diskOf(qcow2, here, "<geometry cyls='1044' heads='255' secs='63'/>"), nil,
			[]want{{"definition", "line 8"}},
		},
		"below a snapshot": {
			diskOf(qcow2, `<source file='/vm/xp.snap1'/>`, below(here)), nil,
			[]want{{
				refused,
				`d, line 10: the disk hda "xp" runs from "/vm/xp.snap1", and the disk is its backing file`,
			}},
		},
		"below two": {diskOf(qcow2, `<source file='/vm/xp.snap2'/>`, "<backingStore type='file'><format type='qcow2'/>"+
			"<source file='/vm/xp.snap1'/>"+below(here)+"</backingStore>"), nil, []want{{refused, "backing file"}}},
		"a block job": {
			diskOf(qcow2, `<source file='/vm/old.qcow2'/>`,
				"<mirror type='file' job='copy'><format type='qcow2'/>"+here+"</mirror>"), nil,
			[]want{{refused, "its mirror"}},
		},
		"a slice": {
			diskOf(`<driver name='qemu' type='raw'/>`, "<source file='/vm/xp.qcow2'><slices><slice "+
				"type='storage' offset='512' size='1024'/></slices></source>", ""), nil,
			[]want{{refused, "only a part of the file"}},
		},
		"a volume of a pool": {strings.Replace(diskOf(qcow2, `<source pool='default' volume='xp.qcow2'/>`, ""),
			"'file'", "'volume'", 1), nil, []want{{"definition", "line 8"}}},
		"a block device": {strings.Replace(diskOf(`<driver name='qemu' type='raw'/>`, `<source dev='/dev/vg0/xp'/>`,
			""),
			"'file'", "'block'", 1), nil, []want{{refused, `it names "/dev/vg0/xp"`}}},

		"volume": {
			volumeOf("<capacity unit='bytes'>8589934592</capacity>", "qcow2", ""), nil,
			[]want{{"definition", "d, line 7: the volume is this one"}},
		},
		"volume in GiB": {
			volumeOf("<capacity unit='GiB'>8</capacity>", "qcow2", ""), nil,
			[]want{{"definition", "line 7"}},
		},
		"volume that grows": {
			volumeOf("<capacity>8589934592</capacity>", "qcow2", ""),
			func(c *definition.Case) { c.New = grown },
			[]want{{"definition-size", "d, line 4: the capacity is 8589934592 bytes, and the aligned disk has " +
				"8590983168"}},
		},
		"volume of another format": {
			volumeOf("<capacity unit='G'>8</capacity>", "raw", ""), nil,
			[]want{{"definition-format", "d, line 8: the format is raw"}},
		},
		"volume over the disk": {
			strings.ReplaceAll(volumeOf("<capacity unit='KB'>8</capacity>", "qcow2",
				"  <backingStore><path>/vm/base</path><format type='qcow2'/></backingStore>\n"), "/vm/base",
				"/link/xp.qcow2"), nil,
			[]want{{refused, "d, line 10: the volume"}},
		},

		"VMX": {
			vmxOf(`scsi0.present = "TRUE"`, `scsi0:0.present = "TRUE"`, `scsi0:0.fileName = "xp.vmdk"`,
				`ide1:0.deviceType = "cdrom-image"`, `ide1:0.fileName = "other.iso"`), vmdk,
			[]want{{"definition", "d, line 7: the disk scsi0:0 is this one"}},
		},
		"VMX, tracked": {
			vmxOf(`ctkEnabled = "TRUE"`, `SATA0:1.FILENAME = "xp.vmdk"`), vmdk,
			[]want{{"definition-tracking", "d, line 5: changed blocks"}},
		},
		"VMX, letters": {vmxOf(`nvme0:0.fileName = "x|70.vmdk"`), vmdk, []want{{"definition", "line 5"}}},
		"VMX, Windows": {
			strings.Replace(vmxOf("ide0:0.fileName = \"\xe4\x80.vmdk\""), "UTF-8", "windows-1252", 1),
			func(c *definition.Case) {
				vmdk(c)
				c.Same = func(p string) bool { return p == "ä€.vmdk" }
			},
			[]want{{"definition", "line 5"}},
		},
		"VMX, Chinese Windows": {
			strings.Replace(vmxOf("ide0:0.fileName = \"\xd6\xd0.vmdk\""), "UTF-8", "GBK", 1),
			func(c *definition.Case) {
				vmdk(c)
				c.Same = func(p string) bool { return p == "中.vmdk" }
			},
			[]want{{"definition", "line 5"}},
		},
		"VMX, snapshot": {
			vmxOf(`scsi0:0.fileName = "xp-000002.vmdk"`), vmdk,
			[]want{{refused, `d, line 5: the disk scsi0:0 runs from "xp-000002.vmdk", a snapshot of the disk`}},
		},
		"VMX, a disk that was removed": {
			vmxOf(`scsi0:0.fileName = "xp.vmdk"`, `scsi0:0.present = "FALSE"`), vmdk,
			[]want{{refused, "no disk at all"}},
		},
		"VMX, a snapshot that was removed": {
			vmxOf(`scsi0:0.fileName = "xp-000002.vmdk"`, `scsi0:0.present = "FALSE"`, `scsi0:1.fileName = "xp.vmdk"`),
			vmdk,
			[]want{{"definition", "line 7"}},
		},
		"VMX, another": {
			vmxOf(`scsi0:0.fileName = "other-000002.vmdk"`), vmdk,
			[]want{{refused, `names "other-000002.vmdk"`}},
		},
		"VMX, a copy that is raw": {
			vmxOf(`scsi0:0.fileName = "xp.vmdk"`),
			func(c *definition.Case) { vmdk(c); c.Dest, c.Format = "/vm/x.img", "raw" },
			[]want{{"definition-path", "line 5"}, {"definition-format", "a VMX names VMDKs"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := definition.Case{
				File: "d", Disk: "xp.qcow2", Base: "xp.qcow2", Format: "qcow2", Old: gib8, New: gib8,
				Same: func(p string) bool { return p == "/vm/xp.qcow2" || p == "/link/xp.qcow2" || p == "xp.vmdk" },
			}
			if c.change != nil {
				c.change(&o)
			}
			read := definition.Libvirt
			if strings.HasPrefix(c.text, "#") {
				read = definition.VMX
			} else {
				requireValid(t, c.text)
			}
			d, err := read([]byte(c.text))
			require.NoError(t, err)
			issues, err := d.Check(o)
			if err != nil {
				issues = []ondisk.Issue{{Code: refused, Text: err.Error()}}
			}
			require.Len(t, issues, len(c.want), "%v", issues)
			for n, w := range c.want {
				require.Equal(t, w.code, issues[n].Code, "%v", issues[n])
				require.Contains(t, issues[n].Text, w.text)
			}
		})
	}
}

// schemas are those of libvirt, of the package libvirt0 or libvirt-daemon of Debian.
const schemas = "/usr/share/libvirt/schemas"

// requireValid requires that libvirt would accept a definition, as virt-xml-validate judges it.
func requireValid(t *testing.T, text string) {
	t.Helper()
	schema := "domain.rng"
	if strings.HasPrefix(text, "<volume") {
		schema = "storagevol.rng"
	}
	if _, err := os.Stat(filepath.Join(schemas, schema)); err != nil {
		return // the texts are those that were valid where the schemas are
	}
	path := filepath.Join(t.TempDir(), "definition.xml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	disktest.Run(t, "xmllint", "--noout", "--relaxng", filepath.Join(schemas, schema), path)
}

// TestWrongDefinitions has texts that are no definitions, or not whole.
func TestWrongDefinitions(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "line 1: no element; want the <domain>",
		"<domain><devices></domain>": "line 1: <devices> is closed by </domain>; save it anew with virsh dumpxml",
		"<domain>\n<devices>":        "line 2: the file ends inside of <devices>: it is truncated; save it anew",
		"<volume>\n<!-- x":           "line 2: the file ends inside of <volume>",
		"<domain>\n<a":               "line 2: the file ends inside of <domain>",
		"</domain>":                  "line 1: </domain> closes no element that is open",
		"<domain>\n<a b=c/>":         "line 2: an attribute is not name='value'",
		"<domain>\n<a b/>":           "line 2: an attribute is not name='value'",
		"<domain>\n<a ='x'/>":        "line 2: an attribute is not name='value'",
		"<domain>\n<a b='<'/>":       "line 2: a value holds <, or lacks its closing quotation mark",
		"<domain>\n\xff":             "line 2: a byte is not UTF-8",
		"<domain>\n\x01":             "line 2: the character U+0001 is not allowed",
		"<domain>\n<<":               "line 2: this is not XML; save it anew",
		"<domain>\nR&D </domain>":    "line 2: &D (no semicolon) stands for no letter; & itself is written &amp;",
		"<domain><" + strings.Repeat("a", 1<<10) + "></b>": "line 1: <" + strings.Repeat("a", 63) +
			" is closed by </b>",
		"<?xml version='1.1'?><domain/>":                          "the version of XML is not 1.0",
		"<pool type='dir'/>":                                      "the root element is <pool>; want the <domain>",
		"<domain/>\n<domain/>":                                    "line 2: a second root element, <domain>",
		"<!DOCTYPE domain [<!ENTITY a 'b'>]><domain>&a;</domain>": "line 1: a document type",
		"<domain>&a;</domain>":                                    "line 1: &a; stands for no letter",
		"<?xml version='1.0' encoding='utf-16'?><domain/>":        `line 1: the encoding "utf-16" is not read; save`,
		"<domain>" + strings.Repeat("<a>", 300) + "</domain>":     "more than 256 elements",
		"<volume><name>x</name></volume>":                         "no <path> in <target>",
		"<volume><target><path>/x</path></target></volume>":       "no <capacity>",
		"<volume><capacity unit='bit'>8</capacity></volume>":      `capacity "8" with the unit "bit"`,
		"<volume><capacity unit='E'>16</capacity></volume>":       `capacity "16" with the unit "E"`,
		"<volume><capacity>-1</capacity></volume>":                `capacity "-1"`,
		"#\nscsi0:0.fileName \"x\"": `line 2: "scsi0:0.fileName \"x\"" is not ` +
			`key = "value"`,
		"#\na = \"x":              "no closing quotation mark",
		"#\na = \"x|2\"":          "without two hexadecimal digits",
		"#\na = \"x|zz\"":         "without two hexadecimal digits",
		"#\na = \"1\"\nA = \"2\"": `line 3: "a" stands in line 2 too`,
		"#\na\x00 = \"1\"":        "is not key",
		"#\n= \"x\"":              "is not key",
		"#\n.encoding = \"klingon\"\nscsi0:0.fileName = \"\xd6\xd0.vmdk\"": `line 2: the encoding ` +
			`"klingon" is not read`,
		"#" + strings.Repeat(" ", definition.MaxText):                      "more than 1048576 bytes",
		"<domain>" + strings.Repeat(" ", definition.MaxText) + "</domain>": "more than 1048576 bytes",
	} {
		read := definition.Libvirt
		if strings.HasPrefix(text, "#") {
			read = definition.VMX
		}
		_, err := read([]byte(text))
		require.ErrorContains(t, err, want, "%.80q", text)
		if strings.Contains(err.Error(), "save it as UTF-8") {
			require.Contains(t, want, "encoding", "%v", err)
		}
	}
}

func FuzzLibvirt(f *testing.F) {
	f.Add([]byte(diskOf(qcow2, here, below(here))))
	f.Add([]byte(volumeOf("<capacity unit='GiB'>8</capacity>", "qcow2", "")))
	f.Fuzz(func(t *testing.T, text []byte) { fuzzed(t, definition.Libvirt, text) })
}

func FuzzVMX(f *testing.F) {
	f.Add([]byte(vmxOf(`scsi0:0.fileName = "x|70.vmdk"`, `ctkEnabled = "TRUE"`)))
	f.Fuzz(func(t *testing.T, text []byte) { fuzzed(t, definition.VMX, text) })
}

// fuzzed requires that lines are those of the text, and that a path has no issue where no name leads to the disk.
func fuzzed(t *testing.T, read func([]byte) (*definition.Definition, error), text []byte) {
	t.Helper()
	d, err := read(text)
	if err != nil {
		return
	}
	_, err = d.Check(definition.Case{File: "f", Base: "", Same: func(string) bool { return false }})
	require.Error(t, err)
	_, err = d.Check(definition.Case{File: "f", Same: func(string) bool { return true }, Format: "vmdk"})
	if err != nil {
		var refusal *ondisk.Refusal
		require.ErrorAs(t, err, &refusal)
	}
}
