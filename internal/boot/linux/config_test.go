package linux_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// The disks below have partitions at these sectors, of 2048 sectors each.
const (
	bootLBA = 63
	rootLBA = 2175
	dataLBA = 4287
	linuxID = 0x1234abcd // signature of the disk
	rootFS  = "4a3bb3bd-6a46-4d37-8f21-0f2d2ac5c7e1"
	bootFS  = "9f1cd8a2-7d37-4b54-a1a0-6b1a5ffb1f0c"
)

// tree writes files by path.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if strings.Trim(text, "\x00") == "" && text != "" {
			disktest.MakeBlank(t, path, int64(len(text)))
			continue
		}
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// extOf makes an ext file system of 1 MiB with mke2fs.
func extOf(t testing.TB, kind, uuid string, files map[string]string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ext")
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", kind, "-U", uuid, "-d", tree(t, files), path, "1M")
	b := disktest.ReadFile(t, path)
	return b
}

// linuxDisk has a boot file system, a root, and an unformatted data partition.
func linuxDisk(t testing.TB, onBoot, onRoot map[string]string) *boot.Guest {
	t.Helper()
	return boottest.GuestOf(t, linuxBytes(t, onBoot, onRoot))
}

func linuxBytes(t testing.TB, onBoot, onRoot map[string]string) forge.Bytes {
	t.Helper()
	f := tableforge.NewMBR(
		8192, tableforge.Slot{Type: 0x83, Start: bootLBA, Sectors: 2048},
		tableforge.Slot{Type: 0x83, Start: rootLBA, Sectors: 2048},
		tableforge.Slot{Type: 0x83, Start: dataLBA, Sectors: 2048},
	)
	f.U32(0x1b8, linuxID)
	f.Put(bootLBA*512, extOf(t, "ext2", bootFS, onBoot))
	f.Put(rootLBA*512, extOf(t, "ext4", rootFS, onRoot))
	return f
}

// said returns the findings about configuration.
func said(r *boot.Result) (out []ondisk.Issue) {
	for _, i := range r.Issues {
		if i.Code == "linux-configuration" {
			out = append(out, i)
		}
	}
	return out
}

// The configuration of a Debian from its installer (debian-installer and grub-mkconfig 2.06) contains no disk offsets.
const (
	debianFstab = `# /etc/fstab: static file system information.
#
# <file system> <mount point>   <type>  <options>       <dump>  <pass>
# / was on /dev/sda2 during installation
UUID=` + rootFS + ` /               ext4    errors=remount-ro 0       1
# /boot was on /dev/sda1 during installation
UUID=` + bootFS + ` /boot           ext2    defaults        0       2
/dev/sda3 /srv ext4 defaults 0 2
/dev/sr0        /media/cdrom0   udf,iso9660 user,noauto     0       0
/srv/disk.img   /mnt            ext4    loop,offset=1048576 0 0
`
	debianGRUB = `set default="0"
if [ x$feature_menuentry_id = xy ]; then
  menuentry_id_option="--id"
fi
insmod part_msdos
set root='hd0,msdos1'
if [ x$feature_platform_search_hint = xy ]; then
  search --no-floppy --fs-uuid --set=root --hint-bios=hd0,msdos1 --hint-efi=hd0,msdos1 --hint-baremetal=ahci0,msdos1  ` + bootFS + `
fi
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple' {
	echo	'Loading Linux 6.1.0-18-amd64 ...'
	linux	/vmlinuz-6.1.0-18-amd64 root=UUID=` + rootFS + ` ro  quiet resume_offset=34816 resume=UUID=` + rootFS + `
	initrd	/initrd.img-6.1.0-18-amd64
}
menuentry 'Windows' { 
	set root='hd0,msdos3'
	chainloader +1
	chainloader (hd0,msdos3)63+1
	chainloader (hd0)+1
}
`
)

// A character after a backslash is literal.
func TestNameWithASpace(t *testing.T) {
	const menu = `linux /vmlinuz\ old root=UUID=` + rootFS + "\n"
	r := boottest.ReadGuest(t, linuxDisk(t, map[string]string{"grub/grub.cfg": menu},
		map[string]string{"etc/fstab": ""}))
	require.Contains(t, boottest.Texts(r.Chain),
		`partition 1 has the kernel that GRUB starts: "/vmlinuz old", by "/grub/grub.cfg"`)
}

func TestAnOrdinaryLinux(t *testing.T) {
	r := boottest.ReadGuest(t, linuxDisk(t, map[string]string{"grub/grub.cfg": debianGRUB},
		map[string]string{
			"etc/fstab": debianFstab, "etc/crypttab": "swap /dev/sda3 /dev/urandom swap,offset=2048\n",
			"etc/initramfs-tools/conf.d/resume": "RESUME=UUID=" + rootFS + "\n",
		}))
	require.Empty(t, said(r))
	var chain []string
	for _, l := range r.Chain {
		chain = append(chain, l.Text)
		require.Contains(t, l.Text, "partition "+string(rune('0'+l.Partition))+" ")
	}
	require.Equal(t, []string{
		`partition 1 holds the configuration of GRUB: "/grub/grub.cfg"`,
		`partition 1 has the kernel that GRUB starts: "/vmlinuz-6.1.0-18-amd64", by "/grub/grub.cfg"`,
		`partition 2 is the root of the kernel (root="UUID=` + rootFS + `" in "/grub/grub.cfg" of partition 1)`,
		`partition 2 holds the root of Linux: "/etc/fstab"`,
		`partition 2 is mounted on / by "/etc/fstab" of partition 2`,
		`partition 1 is mounted on /boot by "/etc/fstab" of partition 2`,
	}, chain)
	require.True(t, r.Boots(1))
	require.True(t, r.Boots(2))
	require.False(t, r.Boots(3))
}

// An unreadable sector of the configuration is never mistaken for data.
func TestBadSectorsUnderConfiguration(t *testing.T) {
	boottest.EveryBadSector(t, linuxDisk(t, map[string]string{
		"grub/grub.cfg": debianGRUB, "syslinux/syslinux.cfg": "INCLUDE more.cfg\n",
		"syslinux/more.cfg": "LABEL a\n KERNEL /vmlinuz\n",
	}, map[string]string{
		"etc/fstab": debianFstab, "etc/crypttab": "swap /dev/sda3 /dev/urandom swap,offset=2048\n",
		"boot/grub/menu.lst": "kernel (hd0,1)/vmlinuz\n",
	}))
}

// Disk offsets in a configuration break when their partition moves. LBAs: 63 = 3fh, 2175, 4287.
func TestPlacesThatAMoveBreaks(t *testing.T) {
	const unbootable, warn = ondisk.Unbootable, ondisk.Warn
	for name, c := range map[string]struct {
		file, text string
		partition  int
		effect     ondisk.Effect
		says       string // parts of the text, separated by semicolons
	}{
		"block list": {
			"boot/grub/grub.cfg", "menuentry x {\n chainloader (hd0)63+1\n}\n", 1, unbootable,
			`line 2; byte 32256; byte 0 of partition 1; "chainloader (hd0)63+1"`,
		},
		"hexadecimal": {"boot/grub/grub.cfg", "chainloader (hd0)0x3f+1\n", 1, unbootable, "byte 32256"},
		"a second block": {
			"boot/grub/menu.lst", "kernel (hd0)1+8,2275+4\n", 2, unbootable,
			"byte 51200 of partition 2",
		},
		"root is the disk": {
			"boot/grub/menu.lst", "title a\nrootnoverify (hd0)\nchainloader 4287+1\n", 3,
			unbootable,
			"line 3; byte 0 of partition 3",
		},
		"root is the disk, in GRUB 2": {
			"boot/grub/grub.cfg", "set root='(hd0)'\nchainloader 4287+1\n", 3, unbootable, "",
		},
		"behind all partitions": {"boot/grub2/grub.cfg", "linux16 (hd0)7000+8\n", 0, unbootable, "byte 3584000"},
		"between partitions":    {"boot/grub/custom.cfg", "linux (hd0)2120+1\n", 0, unbootable, ""},
		"partnew": {
			"boot/grub/grub.conf", "title x\npartnew (hd0,2) 0x83 4287 2048\n", 3,
			unbootable,
			"writes it into the partition table",
		},
		"over two lines": {"boot/grub/grub.cfg", "x\nchainloader \\\n (hd0)63+1\n", 1, unbootable, "line 2,"},
		"partitions of the kernel": {
			"boot/loader/entries/a.conf",
			"title x\noptions root=/dev/sda2 blkdevparts=sda:1048576@32256(boot),1M@1113600(root),-@2194944(data)\n", 1,
			unbootable,
			"byte 32256",
		},
		"partitions one behind another": {
			"boot/extlinux/extlinux.conf", "append blkdevparts=mmcblk0:32256,1M(boot)\n",
			1, unbootable, "",
		},
		"mapping at boot": {
			"boot/syslinux/syslinux.cfg",
			`APPEND dm-mod.create="lroot,,,rw, 0 2048 linear /dev/sda 2175" root=/dev/dm-0` + "\n", 2, unbootable,
			"byte 0 of partition 2",
		},
		"mapping by number": {
			"etc/kernel/cmdline", `dm-mod.create="lroot,,,rw, 0 2048 linear 8:0 2175"`, 2, unbootable, "",
		},
		"key on the disk": {
			"etc/default/grub", `GRUB_CMDLINE_LINUX="quiet cryptkey=/dev/sda:1113700:512"` + "\n", 2, unbootable,
			"byte 100 of partition 2",
		},
		"key, dracut": {
			"etc/dracut.conf.d/10-key.conf",
			`kernel_cmdline="cryptkey=/dev/disk/by-id/ata-DISK_1:1113700:512"` + "\n", 2, unbootable, "",
		},
		"LILO's append": {"etc/lilo.conf", `append="cryptkey=/dev/sda:1113700:512"` + "\n", 2, unbootable, ""},
		"LILO's geometry": {
			"etc/lilo.conf", "disk=/dev/hda\n partition=/dev/hda1\n  start = 63\n", 1, warn, "LBA 63",
		},
		"mount": {
			"etc/fstab", "/dev/sda /old ext4 loop,ro,offset=32256 0 0\n", 1, warn, "byte 0 of partition 1",
		},
		"mount of another name": {"etc/fstab", "/dev/sdb /old ext4 loop,ro,offset=32256 0 0\n", 1, warn, ""},
		"plain encryption":      {"etc/crypttab", "x /dev/nvme0n1 /dev/urandom plain,offset=4287\n", 3, warn, ""},
		"key in a partition": {
			"etc/crypttab",
			"x UUID=1 /dev/disk/by-path/pci-0-ata-1 keyfile-offset=33000,keyfile-size=32\n", 1, warn, "",
		},
		"losetup": {
			"etc/rc.local", "#!/bin/sh\n/sbin/losetup -o $((4287*512)) /dev/loop0 /dev/sda\n", 3, warn, "",
		},
		"losetup, long":     {"etc/rc.d/rc.local", "losetup --offset=2194944 /dev/loop0 /dev/sda\n", 3, warn, ""},
		"cryptsetup":        {"etc/init.d/boot.local", "cryptsetup create --offset 4287 x /dev/sda\n", 3, warn, ""},
		"mount in a script": {"etc/rc.local", "mount -o loop,offset=2194944 /dev/sda /mnt\n", 3, warn, ""},
		"dmsetup":           {"etc/rc.local", "echo '0 2048 linear /dev/sda 4287' | dmsetup create x\n", 3, warn, ""},
		"dmtab":             {"etc/dmtab", "x: 0 4096 striped 2 128 /dev/sda 4287 /dev/sdb 100\n", 3, warn, ""},
		"udev": {"etc/udev/rules.d/90-x.rules", `KERNEL=="sda*", ATTR{start}=="4287", SYMLINK+="data"` +
			"\n", 3, warn, "LBA 4287"},
		"udev's own name": {
			"etc/udev/rules.d/90-x.rules", `ENV{ID_PART_ENTRY_OFFSET}=="2175", SYMLINK+="data"` + "\n", 2, warn, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			issues := said(boottest.ReadGuest(t, linuxDisk(t, nil, map[string]string{c.file: c.text})))
			require.NotEmpty(t, issues)
			require.Equal(t, c.partition, issues[0].Partition, issues[0].Text)
			require.Equal(t, c.effect, issues[0].Effect)
			require.True(t, issues[0].OnMove)
			require.NotEmpty(t, issues[0].Remedy)
			for _, text := range append(strings.Split(c.says, "; "), `"/`+c.file+`" of partition 2, line `) {
				require.Contains(t, issues[0].Text, text)
			}
		})
	}
}

// Lines that no move breaks, and ambiguous ones, are not reported.
func TestPlacesThatStay(t *testing.T) {
	for file, lines := range map[string][]string{
		"boot/grub/grub.cfg": {
			"chainloader (hd0,1)63+1", "chainloader (hd0,msdos1)+1", "chainloader (hd1)63+1", "chainloader (hd0)+1",
			"linux (hd0)1+62", "# chainloader (hd0)63+1", "root (hd0,0)\nchainloader 63+1",
			"root (hd0)\ntitle b\nchainloader 63+1", "linux (hd0)63+1/vmlinuz", "linux (hd0)/63+1", "echo 63+1",
			"linux (hd0)9999999999+1", "linux /vmlinuz blkdevparts=mmcblk1:1M(a),2M(b)",
			"linux /vmlinuz blkdevparts=sda:x@y(a)", "linux /vmlinuz cryptkey=/dev/sda:512:512",
			"linux /x cryptkey=/dev/sda1:40000:512", "linux /vmlinuz resume=/dev/sda3 resume_offset=63",
			"partnew (hd0,2) 0x83 0 2048", "linux /x blkdevparts=sda:9223372036854775807@9223372036854775807(a),1@1",
		},
		"etc/fstab": {
			"/dev/sda1 /x ext4 loop,offset=32256", "/dev/sdb /x ext4 loop,offset=40000",
			"/disk.img /x ext4 loop,offset=32256", "/dev/sda /x ext4 offset=x",
			"/dev/disk/by-id/ata-X-part1 /x ext4 offset=32256 0 0",
		},
		"etc/crypttab": {
			"x /dev/sda3 none offset=63", "x UUID=1 /key keyfile-offset=32256",
			"x /dev/sda none luks", "x /dev/disk/by-id/dm-name-x none offset=63",
		},
		"etc/rc.local": {
			"losetup -o 32256 /dev/loop0 /disk.img", "dd if=/dev/sda of=/x skip=63",
			"echo 0 2048 linear /dev/sda3 63", "linear /dev/sda 63", "losetup -o -32256 /dev/loop0 /dev/sda",
		},
		"etc/lilo.conf":               {"start=64", "boot=/dev/sda", "root=/dev/sda2"},
		"etc/udev/rules.d/90-x.rules": {`ATTR{start}=="64"`, `ATTR{start}=="*"`},
		"etc/mtab":                    {"/dev/sda /x ext4 loop,offset=32256"},
	} {
		r := boottest.ReadGuest(t, linuxDisk(t, nil, map[string]string{file: strings.Join(lines, "\n") + "\n"}))
		require.Empty(t, said(r), file)
		for _, line := range lines {
			require.Empty(t, said(boottest.ReadGuest(t, linuxDisk(t, nil, map[string]string{file: line}))), line)
		}
	}
}

// A partition is found by every name that Linux gives it.
func TestNamesOfPartitions(t *testing.T) {
	for _, name := range []string{
		"UUID=" + bootFS, "UUID=" + strings.ToUpper(bootFS), `UUID="` + bootFS + `"`, "/dev/disk/by-uuid/" + bootFS,
		"PARTUUID=1234abcd-01", "PARTUUID=1234ABCD-01", "/dev/disk/by-partuuid/1234abcd-01", "/dev/sda1", "/dev/hda1",
		"/dev/vda1", "/dev/xvda1", "/dev/nvme0n1p1", "/dev/mmcblk0p1",
	} {
		r := boottest.ReadGuest(t, linuxDisk(t, nil,
			map[string]string{"etc/fstab": name + " /boot ext2 defaults 0 2\n"}))
		require.True(t, r.Boots(1), name)
	}
	for _, name := range []string{
		"UUID=" + rootFS[1:], "PARTUUID=1234abcd-04", "PARTUUID=1234abce-01", "PARTUUID=1",
		"/dev/sdb1", "/dev/sda11", "/dev/nvme0n2p1", "LABEL=", "UUID=", "PARTLABEL=", "none",
	} {
		r := boottest.ReadGuest(t, linuxDisk(t, nil,
			map[string]string{"etc/fstab": name + " /boot ext2 defaults 0 2\n"}))
		require.False(t, r.Boots(1), name)
	}
}

// The text of untrusted files reaches a terminal escaped, and long files do not make a long report.
func TestHostileConfiguration(t *testing.T) {
	g := linuxDisk(t, nil, map[string]string{
		"boot/grub/grub.cfg": strings.Repeat("chainloader (hd0)63+1 \x1b[2J\x9b\u202e\n", 5) +
			strings.Repeat("linux (hd0)64+1\n", 9000) +
			strings.Repeat("linux (hd0)4288+1 \\\n", 3000) + strings.Repeat("x ", 20000) + "\x00\"'\\",
		"etc/fstab": strings.Repeat("UUID="+bootFS+" /boot ext2\n", 5000),
	})
	r := boottest.ReadGuest(t, g)
	require.Len(t, said(r), 17)
	require.Less(t, len(r.Chain), 32)
	for _, i := range r.Issues {
		require.Less(t, len(i.Text), 600)
		for _, b := range []string{"\x1b", "\x9b", "\u202e", "\n", "\x00"} {
			require.NotContains(t, i.Text, b)
		}
	}
	require.Contains(t, said(r)[16].Text, "further lines")
}

// With --data-only, partitions that the system needs stay, and on a bootable disk also unreadable partitions.
func TestNeeds(t *testing.T) {
	needs := func(g *boot.Guest) (out []string) {
		r := boottest.ReadGuest(t, g)
		for _, p := range g.Partitions {
			out = append(out, r.Needs(p))
		}
		return out
	}
	files := map[string]string{"etc/fstab": "/dev/sda2 / ext4 defaults 0 1\n"}
	got := needs(linuxDisk(t, nil, files))
	require.Empty(t, got[0], "an ext without a system")
	require.Contains(t, got[1], "it is in the boot chain: partition 2 holds the root of Linux")
	require.Contains(t, got[2], "trueup cannot read its files")

	got = needs(linuxDisk(t, nil, map[string]string{"home/me": "x"}))
	require.Equal(t, []string{"", "", ""}, got, "a disk that nothing boots from")

	g := linuxDisk(t, nil, nil)
	g.Partitions[0].Active = true
	g.Partitions[1].Type = 0xef
	got = needs(g)
	require.Contains(t, got[0], "active")
	require.Contains(t, got[1], "an EFI system partition")
	require.Contains(t, got[2], "trueup cannot read its files")
}
