package main

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// qemuOptions are the values with which each option of qemu-img create is tried, by qemu-img's name of the format. A
// value may bring further options that it needs.
var qemuOptions = map[string]map[string][]string{
	"raw": {},
	"vmdk": {
		"adapter_type": {"ide", "lsilogic", "buslogic", "legacyESX"}, "compat6": {"on", "off"},
		"hwversion": {"4", "17"},
		"subformat": {
			"monolithicSparse", "monolithicFlat", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat", "streamOptimized",
		},
		"toolsversion": {"2147483647"}, "zeroed_grain": {"on", "off", "on,subformat=twoGbMaxExtentSparse"},
	},
	"vpc": {
		"force_size": {"on", "off"}, "subformat": {"dynamic", "fixed", "dynamic,force_size=on", "fixed,force_size=on"},
	},
	"vhdx": {
		"block_size": {"0", "1M", "2M", "32M", "256M"}, "block_state_zero": {"on", "off"}, "log_size": {"1M", "4M"},
		"subformat": {"dynamic", "fixed"},
	},
	"qcow2": {
		"cluster_size": {"512", "1k", "4k", "64k", "2M"}, "compat": {"0.10", "1.1", "v2", "v3"},
		"compression_type": {"zlib", "zstd"},
		"extended_l2":      {"on", "on,cluster_size=16k", "on,cluster_size=2M"}, "lazy_refcounts": {"on", "off"},
		"preallocation": {"off", "metadata", "falloc", "full"}, "refcount_bits": {"1", "2", "8", "16", "32", "64"},
	},
}

// qemuOptionsElsewhere have scripts of their own: parents in snapshots.txtar, images that are refused in
// qemu_refused.txtar. The size is that of every test.
var qemuOptionsElsewhere = regexp.MustCompile(`^(size|backing_.*|data_file.*|encrypt.*)$`)

// knownWarnings are true of good images: blocks of some containers do lie off 4 KiB, a forged NTFS has no files, and
// some disks are noise.
var knownWarnings = regexp.MustCompile(
	`warning: .*(its blocks of 4 KiB lie off|the files of the partition cannot|there is no partition table|if ` +
		`Windows starts from another disk)`)

// TestEveryOptionOfQemu has QEMU write into new images with every option of its writers, in make test with the first
// value of each, and compares the disks that QEMU and trueup read.
func TestEveryOptionOfQemu(t *testing.T) {
	t.Parallel()
	for format, options := range qemuOptions {
		help := disktest.Run(t, "qemu-img", "create", "-f", format, "-o", "help")
		var names []string // of the options that it offers
		for _, m := range regexp.MustCompile(`(?m)^  ([a-z_0-9.-]+)=<`).FindAllStringSubmatch(help, -1) {
			if !qemuOptionsElsewhere.MatchString(m[1]) {
				names = append(names, m[1])
			}
		}
		require.ElementsMatch(t, slices.Collect(maps.Keys(options)), names,
			"qemu-img knows other options of %s than are tried here", format)
		for _, name := range names {
			for i, value := range options[name] {
				if i > 0 && !disktest.Exhaustive {
					break
				}
				t.Run(format+" "+name+"="+value, func(t *testing.T) {
					t.Parallel()
					dir, option := t.TempDir(), name+"="+value
					image := filepath.Join(dir, "disk."+format)
					disktest.Run(t, "qemu-img", "create", "-q", "-f", format, "-o", option, image, "9M")
					code := 0 // noise is no table, and no volume
					if strings.Contains(option, "streamOptimized") {
						code = 3
						// qemu-io cannot write into one: each grain is written once.
						disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", format, "-o", option, pairDisk(t),
							image)
					} else {
						disktest.Run(t, "qemu-io", "-f", format, "-c", "write -P 1 0 1M", "-c", "write -P 2 3000k 300k",
							"-c", "write -P 3 700k 10k", "-c", "write -z 256k 192k", "-c", "write -P 4 8M 1M", "-c",
							"discard 8200k 128k", image)
					}
					raw, ours := filepath.Join(dir, "qemu.raw"), filepath.Join(dir, "ours.raw")
					disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", image, raw)
					r := trueup(t, "convert", "--to", "raw", image, ours)
					require.Equal(t, 0, r.code, r.stderr)
					disktest.Run(t, "cmp", raw, ours)

					r = trueup(t, "inspect", "--allow-unknown", image)
					require.Equal(t, code, r.code, r.stderr)
					require.NotRegexp(t, `(?m)^(error|warning):`, knownWarnings.ReplaceAllString(r.stdout, ""))
				})
			}
		}
	}
}
