package linux_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/ondisk"
)

// script is a script image, as mkimage -T script writes it. Spec: U-Boot, include/image.h, struct legacy_img_hdr; the
// sizes of the scripts stand in front of them, and a zero ends them.
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

// A script of U-Boot that reads sectors of the disk breaks when the partition there moves. Its numbers are hexadecimal:
// 10bf is LBA 4287, where partition 3 starts, and 900 lies in partition 2.
func TestScriptsOfUBoot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path, text string
		partition  int // that must stay; 0: none
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
			t.Parallel()
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
