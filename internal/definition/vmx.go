package definition

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/ondisk"
)

// setting is one line of a VMX.
type setting struct {
	line  int
	value string
}

// buses are those that a VMX names disks by, as scsi0:1.
var buses = []string{"scsi", "ide", "sata", "nvme"}

// VMX reads the configuration of a machine of VMware: lines of key = "value", in which keys have no case, and |22
// stands for a quotation mark.
func VMX(text []byte) (*Definition, error) {
	if len(text) > MaxText {
		return nil, ondisk.In(ondisk.ErrLimit, "vmx: more than %d bytes; is it the configuration of a machine?",
			MaxText)
	}
	settings := map[string]setting{}
	n := 0
	for line := range bytes.Lines(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))) {
		n++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, value, err := cutLine(n, line)
		if err != nil {
			return nil, err
		}
		if before, twice := settings[key]; twice {
			return nil, badLine(n, "%q stands in line %d too", key, before.line)
		}
		settings[key] = setting{n, value}
	}
	return machine(settings)
}

func badLine(line int, format string, args ...any) error {
	return &ondisk.TextError{What: "vmx", Line: line, Msg: fmt.Sprintf(format, args...), Kind: ondisk.ErrFormat}
}

// cutLine takes a line apart.
func cutLine(n int, line []byte) (key, value string, err error) {
	k, v, ok := bytes.Cut(line, []byte("="))
	key, value = strings.ToLower(string(bytes.TrimSpace(k))), string(bytes.TrimSpace(v))
	if !ok || key == "" || bytes.IndexByte(line, 0) >= 0 {
		return "", "", badLine(n, `%.64q is not key = "value"`, line)
	}
	if quoted, ok := strings.CutPrefix(value, `"`); ok {
		if value, ok = strings.CutSuffix(quoted, `"`); !ok {
			return "", "", badLine(n, "the value of %.64q has no closing quotation mark", key)
		}
	}
	if strings.Contains(value, "|") {
		value, ok = unescape(value)
		if !ok {
			return "", "", badLine(n, "the value of %.64q has a | without two hexadecimal digits", key)
		}
	}
	return key, value, nil
}

// unescape replaces |XX by the byte.
func unescape(s string) (string, bool) {
	var out []byte
	for {
		plain, rest, more := strings.Cut(s, "|")
		out = append(out, plain...)
		if !more {
			return string(out), true
		}
		if len(rest) < 2 {
			return "", false
		}
		b, err := hex.DecodeString(rest[:2])
		if err != nil {
			return "", false
		}
		out, s = append(out, b...), rest[2:]
	}
}

// machine makes a definition of the settings.
func machine(settings map[string]setting) (*Definition, error) {
	d := &Definition{kind: vmx, name: settings["displayname"].value}
	if strings.EqualFold(settings["ctkenabled"].value, "true") {
		d.tracked = settings["ctkenabled"].line
	}
	for key, s := range settings {
		device, ok := strings.CutSuffix(key, ".filename")
		bus := strings.TrimRight(device, "0123456789:")
		if !ok || !slices.Contains(buses, bus) || strings.HasPrefix(settings[device+".devicetype"].value, "cdrom") ||
			settings[device+".devicetype"].value == "atapi-cdrom" ||
			strings.EqualFold(settings[device+".present"].value, "false") { // left over from a disk that was removed
			continue
		}
		path, err := decoded(s, settings[".encoding"])
		if err != nil {
			return nil, err
		}
		d.disks = append(d.disks, entry{line: s.line, device: "the disk " + device, path: path})
	}
	slices.SortFunc(d.disks, func(a, b entry) int { return a.line - b.line })
	return d, nil
}

// decoded returns a value in UTF-8, in which the names of files are on this machine.
func decoded(s, encoding setting) (string, error) {
	ascii := !strings.ContainsFunc(s.value, func(r rune) bool { return r >= utf8.RuneSelf })
	if !ascii && !ondisk.KnownCharset(encoding.value) {
		return "", badLine(encoding.line, "the encoding %.64q is not read; save the file as UTF-8, or rename the disk",
			encoding.value)
	}
	return ondisk.DecodeText(encoding.value, s.value), nil
}

// snapshotOf returns the end of the name of a snapshot of VMware, such as -000001.vmdk, empty for other names.
func snapshotOf(path string) string {
	const digits = 6
	stem, ok := strings.CutSuffix(path, ".vmdk")
	at := len(stem) - digits - 1
	if !ok || at < 1 || stem[at] != '-' || strings.Trim(stem[at+1:], "0123456789") != "" {
		return ""
	}
	return path[at:]
}
