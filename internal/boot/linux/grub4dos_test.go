package linux_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// grub4dosCode is what the MBRs of grub4dos 0.4.4 to 0.4.6 have in common, for a second part that ends behind 16
// sectors.
var grub4dosCode = boottest.Code("eb5e80",
	"31f631ffb9df00fcf3a5bbfc1f66b8475255aa6639077503e89819eab800002016 1f663907",
	"83c60c81fefe0172eb")

// putGrub4DOS writes both parts of grub4dos.
func putGrub4DOS(f forge.Bytes) {
	f.Put(0, grub4dosCode)
	f.Text(0x1a0, "Missing helper.")
	f.Text(0x1ffc, "GR\x55\xaa")
}

// TestGrub4DOSWithASecondMark puts the instruction that the place of the second part is looked for by at the very start
// too, where no place stands in front of it, and one with another mark.
func TestGrub4DOSWithASecondMark(t *testing.T) {
	for at, first := range []string{"66b8475255aa", "66b8475255aa", "90909066b811223344"} {
		f := tableforge.NewMBR(60000, tableforge.Slot{Type: 6, Flag: 0x80, Start: 63, Sectors: 40000})
		code := boottest.Code(first, "31f631ffb9df00fcf3a5bbfc1f66b8475255aa6639077503e89819eab800002016 1f663907",
			"83c60c81fefe0172eb")
		at %= 2
		f.Put(int64(at), code[:len(code)-at])
		f.Text(0x1ffc, "GR\x55\xaa")
		r := boottest.Read(t, f)
		require.Equal(t, linux.ForDOS, r.Code)
		require.Equal(t, "grub4dos in sector 0 loads LBA 1 to 15, and looks for GRLDR in every partition",
			r.Chain[0].Text)
	}
}

// grub4dos finds GRLDR by its name, and boots from the partition that holds it, whichever is active.
func TestGrub4DOS(t *testing.T) {
	volume, grldr := filepath.Join(t.TempDir(), "fat"), filepath.Join(t.TempDir(), "grldr")
	require.NoError(t, os.WriteFile(volume, make([]byte, 40000*512), 0o600))
	require.NoError(t, os.WriteFile(grldr, []byte("a loader"), 0o600))
	disktest.Run(t, "mkfs.fat", "-F", "16", "-h", "63", volume)
	disktest.Run(t, "mcopy", "-i", volume, grldr, "::/grldr")
	files := disktest.ReadFile(t, volume)
	f := tableforge.NewMBR(60000, tableforge.Slot{Type: 6, Flag: 0x80, Start: 63, Sectors: 40000},
		tableforge.Slot{Type: 7, Start: 40063, Sectors: 10000})
	f.Put(63*512, files)
	putGrub4DOS(f)
	r := boottest.Read(t, f)
	require.Equal(t, linux.ForDOS, r.Code)
	require.Equal(t, []boot.Link{
		{Text: "grub4dos in sector 0 loads LBA 1 to 15, and looks for GRLDR in every partition"},
		{Partition: 1, Text: "GRLDR lies in partition 1"},
	}, r.Chain)
	require.True(t, r.Boots(1))
	require.False(t, r.Boots(2))
	for _, i := range r.Issues {
		require.NotEqual(t, "boot-code", i.Code)
		require.NotEqual(t, "grub4dos", i.Code)
	}
}

// The mark of the second part differs between builds, and installers can choose one. The code goes on in a segment that
// differs too. Spec: grub4dos, stage2/grldrstart.S, disk_serial_number_structure; 0.4.4 has 054DCB93h.
func TestGrub4DOSWithAnyMark(t *testing.T) {
	for mark, jump := range map[string]string{
		"\x93\xcb\x4d\x05": "eab8000020", "\x00\x00\x00\x00": "eab8000094", "\xff\xee\xdd\xcc": "16 6ab8 cb",
	} {
		first := fmt.Sprintf("31f631ffb9df00fcf3a5bbfc1f66b8%x6639077503e89819 %s 161f663907", mark, jump)
		code := boottest.Code("eb5e80", first, "83c60c81fefe0172eb")
		f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x83, Start: 2000, Sectors: 4000})
		f.Put(0, code)
		f.Text(0x1a0, "Missing helper.")
		f.Text(0x1ffc, mark)
		r := boottest.Read(t, f)
		require.Equal(t, linux.ForDOS, r.Code)
		require.Empty(t, r.Issues)
		f.U8(0x1ffd, 0x11)
		require.Len(t, boottest.Read(t, f).Issues, 1)
	}
}

func TestGrub4DOSInsideOfAPartition(t *testing.T) {
	f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x83, Start: 15, Sectors: 4000})
	putGrub4DOS(f)
	f.Text(0x1ffc, "GR\x55\xaa")
	r := boottest.Read(t, f)
	require.Len(t, boottest.But(r, boottest.Unseen), 1)
	require.Equal(t, ondisk.Unbootable, r.Issues[0].Effect)
	require.Contains(t, r.Issues[0].Text, "first partition")
}

// Without the mark at its end the second part is not there, or is of another make.
func TestGrub4DOSWithoutItsSecondPart(t *testing.T) {
	for name, change := range map[string]func(forge.Bytes){
		"another mark":       func(f forge.Bytes) { f.U8(0x1ffd, 'r') },
		"not behind sectors": func(f forge.Bytes) { f.U16(15, 0x1ff0); f.Text(0x1ff0, "GR\x55\xaa") },
		"behind a track":     func(f forge.Bytes) { f.U16(15, 0x7ffc); f.Text(0x7ffc, "GR\x55\xaa") },
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x83, Start: 2000, Sectors: 4000})
			putGrub4DOS(f)
			require.Empty(t, boottest.Read(t, f).Issues)
			change(f)
			r := boottest.Read(t, f)
			require.Equal(t, linux.ForDOS, r.Code)
			require.Len(t, r.Issues, 1)
			require.Equal(t, ondisk.Unbootable, r.Issues[0].Effect)
			require.Contains(t, r.Issues[0].Text, "second part")
		})
	}
}

// grub4dos can run the MBR that it replaced, with the table of today.
func TestGrub4DOSRunsThePreviousMBR(t *testing.T) {
	standard := []byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13}
	for name, tc := range map[string]struct {
		flags, later byte // at bytes 2 and 5ah
		code         []byte
		when         string
		effects      []ondisk.Effect
	}{
		"standard code, first": {0, 0, standard, "unless a key is pressed", nil},
		"standard code, last":  {0x80, 0, standard, "if it finds no GRLDR", nil},
		"unknown code, first": {
			0, 0,
			[]byte{0xfa, 1, 2},
			"unless a key is pressed",
			[]ondisk.Effect{ondisk.Unbootable},
		},
		"unknown code, first, of 0.4.6": {
			0x90, 0,
			[]byte{0xfa, 1, 2},
			"unless a key is pressed",
			[]ondisk.Effect{ondisk.Unbootable},
		},
		"unknown code, last, of 0.4.6": {
			0x90, 0x80,
			[]byte{0xfa, 1, 2},
			"if it finds no GRLDR",
			[]ondisk.Effect{ondisk.Warn},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0xda, Flag: 0x80, Start: 2000, Sectors: 4000})
			putGrub4DOS(f)
			f.U8(2, tc.flags)
			f.U8(0x5a, tc.later)
			f.Put(512, tc.code)
			f.U16(1022, 0xaa55)
			r := boottest.Read(t, f)
			require.Contains(t, boottest.Texts(r.Chain)[1], tc.when)
			var effects []ondisk.Effect
			for _, i := range r.Issues {
				effects = append(effects, i.Effect)
			}
			require.Equal(t, tc.effects, effects)
		})
	}
}

// LBA 1 without the signature of an MBR, or without code, is none that grub4dos kept.
func TestGrub4DOSWithoutAPreviousMBR(t *testing.T) {
	for _, tc := range []struct {
		signature uint16
		code      []byte
	}{{0xaa00, []byte{0xfa}}, {0x0055, []byte{0xfa}}, {0xaa55, nil}} {
		f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0xda, Flag: 0x80, Start: 2000, Sectors: 4000})
		putGrub4DOS(f)
		f.Put(512, tc.code)
		f.U16(1022, tc.signature)
		require.Len(t, boottest.Read(t, f).Chain, 1)
	}
}

// A build with other instructions is no standard code, though it reads the table.
func TestGrub4DOSOfAnUnknownBuild(t *testing.T) {
	code := boottest.Code("bebe01", "b402", "cd13")
	require.Equal(t, firmware.GenericCHS, layout.Identify(code))
	copy(code[0x1a0:], "Missing MBR-helper.")
	require.Equal(t, boot.Unknown, layout.Identify(code))
}

// Whatever the place of the mark, the flags and LBA 1 are: it is said where the second part should be, and a missing
// one is refused.
func FuzzGrub4DOS(f *testing.F) {
	f.Add(uint16(0x1ffc), uint16(0x1ffc), byte(0x80), grub4dosCode)
	f.Add(uint16(0xfffe), uint16(0), byte(0x90), []byte{0xfa})
	f.Fuzz(func(t *testing.T, place, mark uint16, flags byte, previous []byte) {
		disk := tableforge.NewMBR(128, tableforge.Slot{Type: 0xda, Start: 63, Sectors: 60})
		disk.Put(0, grub4dosCode)
		disk.U16(15, place)
		disk.U8(2, flags)
		copy(disk[512:1024], previous)
		copy(disk[mark:], "GR\x55\xaa")
		d := boottest.Disk(disk)
		tab, err := table.Read(d)
		if err != nil {
			return
		}
		g := boottest.Guest(d, tab, nil)
		r := boottest.ReadGuest(t, g)
		if r.Code != linux.ForDOS {
			return // the mark lies over the code
		}
		require.NotEmpty(t, r.Chain)
		whole := (int(place)+4)%512 == 0 && int(place)+4 <= 63*512 && string(disk[place:place+4]) == "GR\x55\xaa"
		require.Equal(t, whole, !strings.Contains(fmt.Sprint(r.Issues), "second part"))
	})
}
