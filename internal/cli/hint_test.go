package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A command line that is nearly right, or right for another tool, says what was meant.
func TestDidYouMean(t *testing.T) {
	own(t)
	require.NoError(t, os.Mkdir("lib", 0o700))
	for line, want := range map[string]string{
		"inspct src.img":                  "did you mean trueup inspect?",
		"help inspct":                     "did you mean trueup inspect?",
		"info src.img":                    "did you mean trueup inspect?",
		"check src.img":                   "did you mean trueup inspect?",
		"compare src.img b":               "did you mean trueup verify?",
		"src.img":                         `to inspect the file: trueup inspect src.img`,
		"frobnicate":                      `unknown command "frobnicate"; see trueup --help`,
		"align --dry-run src.img b":       "did you mean trueup plan, which writes nothing?",
		"convert -O vmdk src.img b":       "did you mean --to?",
		"convert -f raw src.img b":        "did you mean --format for the image format, or -o FORMAT",
		"inspect -f json src.img":         "did you mean --format for the image format, or -o FORMAT",
		"inspect --output-format json x":  "did you mean -o FORMAT, such as -o json?",
		"inspect -f csv src.img":          "did you mean --format for the image format, or -o FORMAT",
		"scan -f csv src.img":             "did you mean -o FORMAT, such as -o json?",
		"convert -o vmdk src.img b":       "; the format of a copy is --to vmdk",
		"convert -o vpc src.img b":        "; the format of a copy is --to vhd",
		"-V":                              "did you mean --version?",
		"inspect --boundaryy 1M src.img":  "did you mean --boundary?",
		"align --after true src.img b":    "--after, which was removed; append && COMMAND to the trueup command; see",
		"plan --dynamic-disks src.img":    "--dynamic-disks, which was removed; convert the disk",
		"align --resumable a b":           "--resumable, which was removed; run the copy again; trueup resume",
		"align --replace src.img":         "--replace, which was removed; use trueup replace DISK; see",
		"align --in-place src.img":        "--in-place, which was removed; use trueup move DISK; see",
		"align --view src.img b.vmdk":     "--view, which was removed; use trueup view SOURCE DEST; see",
		"convert --device src.img b":      "--device, which was removed; name the block device as DEST",
		"inspect --bogus src.img":         "unknown flag: --bogus; see trueup inspect --help",
		"inspect":                         "inspect takes IMAGE..., 0 given; see trueup inspect --help",
		"inspect --with c a b":            "--with is for 1 IMAGE, 2 given; give one",
		"plan a.img b.img":                "plan: 1 image allowed, 2 given; for several: trueup scan PATH...",
		"inspect lib":                     "lib is a folder, not an image; for all images in it: trueup scan lib",
		"plan lib":                        "lib is a folder, not an image; for all images in it: trueup scan lib",
		"inspect s3://bucket/x.vmdk":      "mount it, or serve it by NBD with nbdkit",
		"inspect [datastore1]/vm/vm.vmdk": "mount it, or serve it by NBD with nbdkit",
		"inspect lib/*.vmdk":              "no such file or directory; if it is a pattern, give it without quotes",
		"inspect --boundary 65 src.img":   "65 is 65 bytes; did you mean 64K?",
		"inspect --boundary 1 src.img":    "boundary of 1 bytes: must be",
	} {
		r := trueup(t, strings.Fields(line)...)
		require.NotZero(t, r.code, line)
		require.Contains(t, r.stderr, want, line)
		require.Equal(t, 1, strings.Count(r.stderr, "\n"), line)
	}
}

// A flag with its default excludes no other one, and needs none.
func TestFlagsThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	for line, refused := range map[string]string{
		"plan --data-only --partition 1":       "leave out one of them",
		"plan --data-only=false --partition 1": "",
		"plan --partition 1":                   "",
		"plan --with a --partition 1":          "leave out one of them",
		"plan --with a --data-only":            "",
		"plan --boundary 1M --data-only":       "",
		"verify --flatten a b":                 "--flatten needs --with DISK",
		"verify --flatten --with c a b":        "",
		"verify --flatten=false a b":           "",
		"finish --dry-run a":                   "--dry-run needs --below DIR",
		"scan --changed a":                     "--changed needs --since FILE",
		"scan --replace a":                     "--replace needs --script FILE",
		"scan --replace --script s a":          "",
		"scan --template t -o csv a":           "leave out one of them",
		"scan --template t -o text a":          "",
		"inspect --with c a b":                 "--with is for 1 IMAGE, 2 given; give one",
		"inspect --with c a":                   "",
		"undo --journal j a b":                 "--journal is for 1 PATH, 2 given; give one",
		"undo --journal j --below d":           "a journal belongs to one disk",
		"replace --by c a b":                   "--by is for 1 DISK, 2 given; give one",
		"replace --checksums s a b":            "--checksums is for 1 DISK, 2 given; give one",
		"align --checksums s a b":              "",
	} {
		words := strings.Fields(line)
		cmd, args, err := newRoot("test", &Base{}).Find(words)
		require.NoError(t, err, line)
		require.NoError(t, cmd.ParseFlags(args), line)
		err = checkFlags(cmd, cmd.Flags().Args())
		if refused == "" {
			require.NoError(t, err, line)
		} else {
			require.ErrorContains(t, err, refused, line)
		}
	}
}
