package linux

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/units"
)

// ubootDevices are the commands of U-Boot that read sectors of a device: "mmc read address block count". Source:
// U-Boot, cmd/mmc.c, cmd/usb.c, cmd/scsi.c, cmd/sata.c, cmd/ide.c, cmd/nvme.c, cmd/virtio.c.
var ubootDevices = []string{"mmc", "usb", "scsi", "sata", "ide", "nvme", "virtio"}

// scanUBoot reads a line of a script or an environment of U-Boot, and reports the sectors that it reads of a disk, in
// hexadecimal numbers. A script has a binary header in front of its first line, and lines of an environment hold
// scripts behind a "=".
func scanUBoot(c *config, _ []string) {
	w := ubootWords(c.command)
	for i := 0; i+3 < len(w); i++ {
		if !slices.Contains(ubootDevices, w[i]) || w[i+1] != "read" {
			continue
		}
		word, known := w[i+3], true
		if name, ok := strings.CutPrefix(word, "$"); ok {
			name = strings.Trim(name, "{}")
			if followsTable(c.text, name) {
				continue
			}
			word, known = ubootVariable(c.text, name)
		}
		n, err := strconv.ParseInt(strings.TrimPrefix(strings.ToLower(word), "0x"), 16, 64)
		if !known || err != nil || n < 0 || n > math.MaxInt64/units.SectorSize {
			c.miss(c.in.Number, c.at(), "the sector that "+w[i]+" read starts at is not known")
			continue
		}
		c.place("hd0", n*units.SectorSize, true)
	}
}

// ubootWords divides a line at blanks, separators and quotes. A comment follows a #.
func ubootWords(line string) []string {
	w := strings.FieldsFunc(line, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(";&|()='\"", r)
	})
	if i := slices.IndexFunc(w, func(s string) bool { return s[0] == '#' }); i >= 0 {
		w = w[:i]
	}
	return w
}

// followsTable reports whether "part start interface device:partition name" sets a variable: it reads the partition
// table at each boot. Source: U-Boot, doc/usage/cmd/part.rst.
func followsTable(text, name string) bool {
	for line := range strings.Lines(text) {
		w := ubootWords(line[:min(len(line), maxConfigLine)])
		for i := 0; i+4 < len(w); i++ {
			if w[i] == "part" && w[i+1] == "start" && w[i+4] == name {
				return true
			}
		}
	}
	return false
}

// ubootVariable returns the only value that a text gives a variable, by "setenv name value" or "name=value".
func ubootVariable(text, name string) (value string, ok bool) {
	for line := range strings.Lines(text) {
		w := ubootWords(line[:min(len(line), maxConfigLine)])
		for i := 0; i+1 < len(w); i++ {
			if w[i] != name || (i > 0 && w[i-1] != "setenv") {
				continue
			}
			if ok && value != w[i+1] {
				return "", false
			}
			value, ok = w[i+1], true
		}
	}
	return value, ok
}
