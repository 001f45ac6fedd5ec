package linux_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// threeDisk is linuxDisk with an XFS, whose files trueup cannot read, as its third partition.
func threeDisk(t testing.TB, onBoot, onRoot map[string]string) *boot.Guest {
	t.Helper()
	f := linuxBytes(t, onBoot, onRoot)
	volumeforge.PutXFS(f, dataLBA, 2048)
	return boottest.GuestOf(t, f)
}

// onRoot returns files of the root beside a grub.cfg.
func onRoot(grubCfg string, more ...string) map[string]string {
	out := map[string]string{"boot/grub/grub.cfg": grubCfg}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

const place = "chainloader (hd0)63+1\n" // the first sector of partition 1

// A disk offset is found along all references: files that include others, values of variables, and embedded commands of
// the loader. Spec: GRUB manual, "Shell-like scripting", "source", "configfile", "search", "load_env"; GRUB legacy
// manual, "configfile"; syslinux wiki, "Config".
func TestPlacesThatAConfigurationLeadsTo(t *testing.T) {
	for name, tc := range map[string]struct {
		onBoot, onRoot map[string]string
		loader         *boot.Config
		in             string // the included file
	}{
		"source in the prefix": {
			onRoot: onRoot("source $prefix/x.cfg\n", "boot/grub/x.cfg", place), in: "/boot/grub/x.cfg",
		},
		"source beside it": {
			onRoot: onRoot("if [ -f ${config_directory}/c ]; then\n  source ${config_directory}/c\nfi", "boot/grub/c",
				place),
			in: "/boot/grub/c",
		},
		"dot": {onRoot: onRoot(". /x", "x", place), in: "/x"},
		"configfile on a device": {
			onBoot: map[string]string{"x": place}, onRoot: onRoot("configfile (hd0,msdos1)/x"), in: "/x",
		},
		"configfile by the number": {
			onBoot: map[string]string{"x": place}, onRoot: onRoot("configfile (hd0,1)/x"), in: "/x",
		},
		"of a file system": {
			onBoot: map[string]string{"x": place},
			onRoot: onRoot("search --no-floppy --fs-uuid --set=dev " + bootFS + "\nset p=($dev)/\nconfigfile ${p}x"),
			in:     "/x",
		},
		"of the root that is set": {
			onBoot: map[string]string{"x": place},
			onRoot: onRoot("menuentry 'a' {\n search --fs-uuid --set=root " + bootFS + "\n configfile /x\n}"), in: "/x",
		},
		"by a file": {
			onBoot: map[string]string{"only/here": "", "x": place},
			onRoot: onRoot("search --file --set=root /only/here\nconfigfile /x"), in: "/x",
		},
		"files in a circle": {
			onRoot: onRoot("source /a", "a", "source /b\nsource /boot/grub/grub.cfg", "b", "source /a\n"+place),
			in:     "/b",
		},
		"a file by a loop": {onRoot: onRoot("for i in a b; do source /$i; done", "b", place), in: "/b"},
		"menu of GRUB legacy": {
			onBoot: map[string]string{"x": place},
			onRoot: map[string]string{"boot/grub/menu.lst": "configfile (hd0,0)/x"}, in: "/x",
		},
		"menu of GRUB legacy in GRUB 2": {onRoot: onRoot("legacy_configfile /x", "x", place), in: "/x"},
		"SYSLINUX": {
			onRoot: map[string]string{
				"boot/syslinux/syslinux.cfg": "INCLUDE ../y.inc\n", "boot/y.inc": "MENU INCLUDE /z.inc",
				"z.inc": `APPEND --config-file="root (hd0,0);chainloader (hd0)63+1"`,
			}, in: "/z.inc",
		},
		"menu of SYSLINUX": {
			onRoot: map[string]string{
				"syslinux.cfg": "LABEL x\nKERNEL vesamenu.c32\nAPPEND more.cfg ~\n",
				"more.cfg":     "APPEND cryptkey=/dev/sda:32256:1",
			}, in: "/more.cfg",
		},
		"a variable": {onRoot: onRoot("set x=(hd0)63+1\nchainloader $x"), in: "/boot/grub/grub.cfg"},
		"two variables": {
			onRoot: onRoot("d=hd0\nset n='63+1'\nchainloader (${d})$n"), in: "/boot/grub/grub.cfg",
		},
		"a variable that comes later": {
			onRoot: onRoot("function f {\n chainloader $x\n}\nset x=\"(hd0)63+1\"\nf"), in: "/boot/grub/grub.cfg",
		},
		"one of its values": {
			onRoot: onRoot("if a; then set x=1; else set x=63; fi\nchainloader (hd0)$x+1"), in: "/boot/grub/grub.cfg",
		},
		"a value in the environment": {
			onRoot: onRoot("load_env\nchainloader $x", "boot/grub/grubenv", "# GRUB\nx=(hd0)63+1\n###"),
			in:     "/boot/grub/grub.cfg",
		},
		"one line": {
			onRoot: onRoot("menuentry x { set root=hd0; chainloader 63+1; }"), in: "/boot/grub/grub.cfg",
		},
		"a root for all entries": {
			onRoot: onRoot("set root=(hd0)\nmenuentry x {\n chainloader 63+1\n}"), in: "/boot/grub/grub.cfg",
		},
		"a list to the end": {onRoot: onRoot("loopback x (hd0)63+"), in: "/boot/grub/grub.cfg"},
		"a root for all titles": {
			onRoot: map[string]string{"boot/grub/menu.lst": "root (hd0)\ntitle x\nchainloader 63+1"},
			in:     "/boot/grub/menu.lst",
		},
		"commands built in": {
			loader: &boot.Config{
				Loader: "GRUB 2 in the MBR", Syntax: boot.GRUB2, Prefix: "(,msdos1)/grub", Script: place,
			}, in: "the configuration of GRUB 2 in the MBR",
		},
		"an unusual prefix": {
			onBoot: map[string]string{"odd/grub.cfg": place},
			loader: &boot.Config{Loader: "GRUB 2", Syntax: boot.GRUB2, Prefix: "(,msdos1)/odd"}, in: "/odd/grub.cfg",
		},
		"a prefix that is set": {
			onBoot: map[string]string{"odd/grub.cfg": place}, loader: &boot.Config{
				Loader: "GRUB 2", Syntax: boot.GRUB2, Prefix: "(,msdos2)/no",
				Script: "search.fs_uuid " + bootFS + " root hd0,msdos1\nset prefix=($root)'/odd'\n",
			}, in: "/odd/grub.cfg",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := linuxDisk(t, tc.onBoot, tc.onRoot)
			if tc.loader != nil {
				g.Configured(*tc.loader)
			}
			r := boottest.ReadGuest(t, g)
			require.NotEmpty(t, said(r), r.Issues)
			require.LessOrEqual(t, len(said(r)), 2, "where a value is set, and where it is used")
			require.Equal(t, ondisk.Unbootable, said(r)[0].Effect)
			require.Equal(t, 1, said(r)[0].Partition)
			require.Contains(t, said(r)[0].Text, tc.in)
			require.Empty(t, boottest.Issues(r, boottest.Unseen))
		})
	}
}

// long is a file beyond the size limit of a configuration.
var long = strings.Repeat("\x00", 1<<20+1)

// manyFiles returns files of SYSLINUX, of which only some can be read.
func manyFiles(n int) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprintf("boot/syslinux/%d.cfg", i)] = ""
	}
	return out
}

// An unreadable configuration that a boot may use is reported once for the disk, with the place and the reason.
func TestConfigurationThatIsNotSeen(t *testing.T) {
	grub2 := func(prefix, script string) *boot.Config {
		return &boot.Config{Loader: "GRUB 2 in the MBR", Syntax: boot.GRUB2, Prefix: prefix, Script: script}
	}
	const xfs = "trueup does not read files in xfs (partition 3)"
	for name, tc := range map[string]struct {
		onRoot map[string]string
		loader *boot.Config
		says   []string
	}{
		"all of it": {
			loader: grub2("(,msdos3)/boot/grub", ""), says: []string{"the configuration of GRUB 2 in the MBR", xfs},
		},
		"all of it, and an old one": {
			loader: grub2("(,msdos3)/boot/grub", ""), onRoot: onRoot("set timeout=0"), says: []string{xfs},
		},
		"on LVM": {
			loader: grub2("(lvm/a-b)/boot/grub", ""), says: []string{"(lvm/a-b) is not a partition of the disk"},
		},
		"another disk": {
			loader: grub2("(hd1,msdos1)/boot/grub", ""), says: []string{"(hd1,msdos1) is not a partition of the disk"},
		},
		"a file system of nobody": {
			loader: grub2("", "search.fs_uuid 0000 root\nset prefix=($root)/boot/grub"),
			says:   []string{"LVM, RAID, encryption"},
		},
		"a file on it": {
			onRoot: onRoot("source (hd0,msdos3)/x"),
			says:   []string{`"/boot/grub/grub.cfg" of partition 2, line 1`, xfs},
		},
		"a file by the root": {onRoot: onRoot("set root=hd0,msdos3\nconfigfile /x"), says: []string{"line 2", xfs}},
		"entries":            {onRoot: onRoot("set root=hd0,msdos3\nblscfg"), says: []string{"blscfg", xfs}},
		"an argument": {
			onRoot: onRoot("function f {\nchainloader $1\n}"), says: []string{"line 2", "chainloader $1"},
		},
		"a file by an argument": {onRoot: onRoot("source $prefix/$1"), says: []string{"an unknown value"}},
		"a value that is probed": {
			onRoot: onRoot("probe --set=x --fs $root\nsource /$x"), says: []string{"an unknown value"},
		},
		"a long file": {
			onRoot: onRoot(long), says: []string{"\"/boot/grub/grub.cfg\" of partition 2", "limit"},
		},
		"a long file that is named": {
			onRoot: onRoot("source /x", "x", long), says: []string{"limit"},
		},
		"any place": {
			loader: &boot.Config{Loader: "Limine", Anywhere: true, Paths: []string{"limine.conf"}},
			says:   []string{"the configuration of Limine", xfs},
		},
		"a place of SYSLINUX": {
			loader: &boot.Config{Loader: "SYSLINUX", Syntax: boot.SYSLINUX, Home: 3, Paths: []string{"syslinux.cfg"}},
			says:   []string{"the configuration of SYSLINUX", xfs},
		},
		"a loader that cannot be read": {
			loader: &boot.Config{Loader: "a loader", Why: "it is odd"}, says: []string{"it is odd"},
		},
		"many": {
			onRoot: onRoot(strings.Repeat("source (hd0,msdos3)/x\n", 40)), says: []string{"and 15 more"},
		},
		"a long line": {
			onRoot: onRoot("menuentry x { " + strings.Repeat("echo; ", 3000) + "}"),
			says:   []string{"line 1", "16384 bytes"},
		},
		"many files of SYSLINUX": {onRoot: manyFiles(80), says: []string{"/boot/syslinux/", "limit"}},
		"values without end":     {onRoot: onRoot("set x=a$x\nsource /$x"), says: []string{"too deeply"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := threeDisk(t, nil, tc.onRoot)
			if tc.loader != nil {
				g.Configured(*tc.loader)
			}
			r := boottest.ReadGuest(t, g)
			require.Empty(t, said(r))
			issues := boottest.Issues(r, boottest.Unseen)
			require.Len(t, issues, 1)
			require.Equal(t, ondisk.Warn, issues[0].Effect)
			require.True(t, issues[0].OnMove)
			require.Contains(t, issues[0].Remedy, "(hd0)")
			for _, s := range append(tc.says, "not read") {
				require.Contains(t, issues[0].Text, s)
			}
		})
	}
}

// A readable configuration needs no report about the rest: the usual Linux disk whose root is an XFS, with the lines of
// grub-mkconfig and distribution packages.
func TestConfigurationThatIsSeen(t *testing.T) {
	const usual = debianGRUB + `
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then set default="${next_entry}"; fi
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
if [ x"${feature_timeout_style}" = xy ] ; then set timeout_style=menu; fi
insmod blscfg
blscfg
`
	debian := `if [ -z "$prefix" -o ! -e "$prefix" ]; then
	if ! search --file --set=root /.disk/info; then
		search --file --set=root /.disk/mini-info
	fi
	set prefix=($root)/boot/grub
fi
if [ -e $prefix/x86_64-efi/grub.cfg ]; then
	source $prefix/x86_64-efi/grub.cfg
elif [ -e $prefix/grub.cfg ]; then
	source $prefix/grub.cfg
else
	source $cmdpath/grub.cfg
fi
`
	for name, loader := range map[string]boot.Config{
		"Debian, BIOS": {Prefix: "(,msdos1)/grub"},
		"Debian, a file system": {
			Prefix: "/boot/grub", Script: "search.fs_uuid " + bootFS + " root hd0,msdos1\nset prefix=($root)'/grub'\n",
		},
		"Debian, UEFI":             {Prefix: "/grub", Home: 1, Script: debian, Paths: []string{"EFI/debian/grub.cfg"}},
		"no file":                  {Prefix: "(,msdos2)/nowhere"},
		"a BIOS, without a device": {Prefix: "/grub"},
	} {
		g := threeDisk(t, map[string]string{"grub/grub.cfg": usual}, map[string]string{"etc/fstab": debianFstab})
		loader.Loader, loader.Syntax = "GRUB 2", boot.GRUB2
		g.Configured(loader)
		r := boottest.ReadGuest(t, g)
		require.Empty(t, r.Issues, name)
		require.Equal(t, []boot.Unseen{{
			Partition: 3,
			What:      "the configuration of Linux and its loaders, and a swap file with a hibernated Linux",
			Why:       "trueup does not read files in xfs (partition 3)",
		}}, r.Unseen, name)
	}
}

// Hostile scripts end within the limits: growing values, files that include each other, endless words.
func TestHostileScripts(t *testing.T) {
	var many, vars strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&many, "source /n/%d\n", i)
		fmt.Fprintf(&vars, "set v%d=$v%d$v%d$v%d\n", i, i+1, i+2, i)
	}
	for name, text := range map[string]string{
		"many files": many.String(), "many variables": vars.String(), "braces": strings.Repeat("}{", 10_000),
		"dollars": strings.Repeat("${a", 10_000) + strings.Repeat("$", 10_000), "quotes": strings.Repeat(`"'`, 5001),
		"sets": strings.Repeat("set =\nset\nsearch\nsearch --set=\nsource\nload_env -f\nregexp -s\nfor\nnormal\n", 500),
	} {
		r := boottest.ReadGuest(t, linuxDisk(t, nil, onRoot(text)))
		require.LessOrEqual(t, len(r.Issues), 17, name)
	}
}

// script is a script image, like mkimage -T script. Spec: U-Boot, include/image.h, struct legacy_img_hdr; the sizes of
// the scripts precede them, and a zero ends them.
func script(text string) string {
	be := binary.BigEndian
	b := be.AppendUint32(nil, 0x27051956)
	b = append(b, make([]byte, 8)...)
	b = be.AppendUint32(b, uint32(len(text)+8))
	b = append(b, make([]byte, 12)...)
	b = append(b, 5, 2, 6, 0)
	b = append(b, make([]byte, 32)...)
	b = be.AppendUint32(b, uint32(len(text)))
	return string(be.AppendUint32(b, 0)) + text
}

// A U-Boot script that reads sectors of the disk breaks when that partition moves. Its numbers are hexadecimal: 10bf is
// LBA 4287, where partition 3 starts, and 900 is in partition 2.
func TestScriptsOfUBoot(t *testing.T) {
	for name, tc := range map[string]struct {
		path, text string
		partition  int // the partition that must stay; 0: none
		says       string
		unseen     bool
	}{
		"a kernel by its sector": {
			"boot.scr", script("setenv bootargs root=/dev/mmcblk0p2\nmmc read ${loadaddr} 0x10bf 0x800\nbootm\n"), 3,
			`"/boot.scr" of partition 1, line 2, means byte 2194944 of the disk, which is byte 0 of partition 3`, false,
		},
		"in the first line": {
			"boot/boot.scr", script("mmc dev 0; mmc read 82000000 900 400; bootz 82000000"), 2, "", false,
		},
		"in an environment": {
			"uEnv.txt", "bootargs=console=ttyS0\nuenvcmd=mmc read 0x82000000 0x10BF 0x4000; bootm 0x82000000\n",
			3, `line 2`, false,
		},
		"another device": {"boot.scr.uimg", script("if usb read $loadaddr 10bf 800; then bootm; fi\n"), 3, "", false},
		"by a variable": {
			"boot.scr", script("setenv start 0x10bf\nmmc read ${loadaddr} ${start} 0x800\n"), 3, "", false,
		},
		"by a variable of an environment": {
			"uEnv.txt", "start=10bf\nuenvcmd=mmc read 82000000 $start 800\n", 3, "", false,
		},
		"by a variable of elsewhere": {
			"boot.scr", script("mmc read ${loadaddr} ${kernel_start} 0x800\n"), 0, "", true,
		},
		"by a variable with two values": {
			"uEnv.txt", "start=10bf\nstart=900\nuenvcmd=mmc read 82000000 $start 800\n", 0, "", true,
		},
		"by the partition table": {
			"boot.scr", script("part start mmc 0:3 at\nmmc read ${loadaddr} ${at} 0x800\n"), 0, "", false,
		},
		"a file":                    {"boot.scr", script("load mmc 0:1 ${kernel_addr_r} /Image\n"), 0, "", false},
		"a comment":                 {"uEnv.txt", "# mmc read 82000000 10bf 800\n", 0, "", false},
		"in front of partitions":    {"uEnv.txt", "uenvcmd=mmc read 82000000 10 8\n", 0, "", false},
		"behind the disk":           {"uEnv.txt", "uenvcmd=mmc read 82000000 10000000 8\n", 0, "", false},
		"a number beyond 63 bits":   {"uEnv.txt", "uenvcmd=mmc read 82000000 ffffffffffffffff 8\n", 0, "", true},
		"a command that ends early": {"uEnv.txt", "uenvcmd=mmc read 82000000\n", 0, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := boottest.ReadGuest(t, linuxDisk(t, map[string]string{tc.path: tc.text}, nil))
			require.Contains(t, boottest.Texts(r.Chain), `partition 1 holds the script of U-Boot: "/`+tc.path+`"`)
			found := said(r)
			switch {
			case tc.partition > 0:
				require.Len(t, found, 1)
				require.Equal(t, ondisk.Unbootable, found[0].Effect)
				require.Equal(t, tc.partition, found[0].Partition)
				require.Contains(t, found[0].Text, tc.says)
			case tc.unseen:
				require.Empty(t, found)
				require.Len(t, boottest.Issues(r, "boot-configuration-unseen"), 1)
			default:
				require.Empty(t, found)
				require.Empty(t, boottest.Issues(r, "boot-configuration-unseen"))
			}
		})
	}
}
