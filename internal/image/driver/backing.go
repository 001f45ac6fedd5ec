package driver

import (
	"encoding/json"
	"slices"
	"strings"
)

// BackingFiles returns the paths that the name of a backing file can mean to QEMU: a path, a protocol in front of one,
// or "json:" and the options of the block device. broken reports options that cannot be parsed. Source: QEMU,
// bdrv_parse_filename of block/file-posix.c, block/blkdebug.c and block/blkverify.c.
func BackingFiles(name string) (paths []string, broken bool) {
	for names := []string{name}; len(names) > 0; names = names[1:] { // what is added is shorter
		protocol, rest, _ := strings.Cut(names[0], ":")
		switch protocol {
		case "file", "host_device", "host_cdrom":
			names = append(names, rest)
		case "blkdebug": // its configuration comes first, and may be empty
			_, rest, _ = strings.Cut(rest, ":")
			names = append(names, rest)
		case "blkverify": // two images with the same bytes
			raw, test, _ := strings.Cut(rest, ":")
			names = append(names, raw, test)
		case "json":
			var v any
			if json.Unmarshal([]byte(rest), &v) != nil {
				broken = true
				continue
			}
			names = append(names, optionNames(v)...)
		default:
			if names[0] != "" {
				paths = append(paths, names[0])
			}
		}
	}
	return paths, broken
}

// nameOptions are the last parts of the options of a block device that hold the name of a file.
var nameOptions = []string{"filename", "x-image", "x-raw"}

// optionNames returns the file names among the options of a block device, which can be nested or dotted.
func optionNames(options any) (names []string) {
	for left := []any{options}; len(left) > 0; left = left[1:] {
		switch v := left[0].(type) {
		case []any:
			left = append(left, v...)
		case map[string]any:
			for key, value := range v {
				name, text := value.(string)
				if text && slices.Contains(nameOptions, key[strings.LastIndexByte(key, '.')+1:]) {
					names = append(names, name)
				}
				left = append(left, value)
			}
		}
	}
	return names
}
