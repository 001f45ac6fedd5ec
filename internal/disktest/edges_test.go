package disktest

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

const module = "github.com/trueup/trueup/"

// everywhere lists packages that every package may import.
var everywhere = []string{"internal/units", "internal/ondisk", "internal/disk", "internal/shell"}

// edges lists the other imports that the architecture allows, one row for each package. A new edge is a decision, with
// a line and its reason here.
var edges = map[string][]string{
	"cmd/trueup": {"internal/cli"},

	"internal/units":  nil,
	"internal/shell":  nil,
	"internal/disk":   nil,
	"internal/ondisk": {"internal/disk"}, // structures are read from a disk
	"internal/ovf":    nil,
	"internal/sys":    nil, // what the operating system does
	// The journal beside a disk is opened through the gate. Its plan is opaque bytes.
	"internal/journal": {"internal/image/gate", "internal/sys"},

	"internal/image/driver": nil,
	"internal/image/qcow2":  {"internal/image/driver"},
	"internal/image/raw":    {"internal/image/driver"},
	"internal/image/vdi":    {"internal/image/driver"},
	"internal/image/vhd":    {"internal/image/driver"},
	"internal/image/vhdx":   {"internal/image/driver"},
	"internal/image/vmdk":   {"internal/image/driver"},
	// The gate opens files and has no formats, so that the list of formats can be above it.
	"internal/image/gate": {"internal/sys"},
	"internal/image": {
		"internal/image/driver", "internal/image/gate", "internal/image/qcow2", "internal/image/raw",
		"internal/image/vdi", "internal/image/vhd", "internal/image/vhdx", "internal/image/vmdk",
		"internal/ovf", "internal/sys",
	},
	// Before a file is made or replaced, the images of its folder are checked for references to it. A copy onto a
	// device is an output like those of store; while it is written, it is read as an image. The file behind a loop
	// device can have unfinished work beside it.
	"internal/image/store": {
		"internal/image", "internal/image/driver", "internal/image/gate", "internal/image/raw",
		"internal/journal", "internal/sys",
	},

	// A copy without its final name gets the names of its source, if no image of the folder needs them. The journal
	// identifies an original, which is then read-only. The disk that stays is read like an inspection before the other
	// one is removed.
	"internal/exchange": {
		"internal/boot", "internal/align", "internal/diskcopy", "internal/image", "internal/image/driver",
		"internal/image/gate", "internal/image/ova", "internal/image/raw", "internal/journal", "internal/layout",
		"internal/sys", "internal/table", "internal/volume",
	},

	// A package copies and compares its files like disks, and distinguishes errors of the system and of a package.
	"internal/image/ova": {
		"internal/diskcopy", "internal/image", "internal/image/driver", "internal/image/gate",
		"internal/image/store", "internal/ovf", "internal/sys", "internal/verify",
	},

	// Archives contain images: it selects one and passes its bytes to image. It decodes streams and archives, not
	// images.
	"internal/image/unpack": {
		"internal/image", "internal/image/driver", "internal/image/gate", "internal/image/ova", "internal/sys",
	},

	// table and volume never meet: layout decides whether sector 0 is an MBR or the boot sector of a volume.
	"internal/table": nil,
	// Results of probers, and the probers of volumes whose files are not read. identify adds the others.
	"internal/volume": nil,
	// Results of readers of files: the positions of a file's bytes. They have no partitions. A census of the files of a
	// volume counts runs of files, and has no structures of file systems.
	"internal/guestfile": nil,
	// Boot sectors and superblocks are decoded in one place, for the prober and for the reader of files.
	"internal/fs/ext":          {"internal/guestfile", "internal/volume"},
	"internal/fs/fat":          {"internal/guestfile", "internal/volume"},
	"internal/fs/ntfs":         {"internal/guestfile", "internal/volume"},
	"internal/volume/identify": {"internal/fs/ext", "internal/fs/fat", "internal/fs/ntfs", "internal/volume"},
	"internal/hive":            nil, // values in a file of a guest, and the positions of their bytes
	// The base of all boot packages: one package for each family, and the lists above them.
	"internal/boot": {
		"internal/fs/ext", "internal/fs/fat", "internal/fs/ntfs", "internal/guestfile", "internal/table",
		"internal/volume",
	},
	"internal/boot/firmware": {
		"internal/boot", "internal/guestfile", "internal/table", "internal/volume",
	}, // a move of exFAT recomputes its checksum
	// A replay of the journal of ext can change a configuration file. A field under a checksum of a file system is not
	// rewritten.
	"internal/boot/linux": {
		"internal/boot", "internal/fs/ext", "internal/guestfile", "internal/table", "internal/volume",
		"internal/volume/identify",
	},
	// A registry is a hive. The traits of a kind state what Windows can start from. Rewritten data must survive the
	// replay of an open log. A disk decides the role of a BitLocker volume that does not state it.
	"internal/boot/windows": {
		"internal/boot", "internal/fs/fat", "internal/fs/ntfs", "internal/guestfile", "internal/hive",
		"internal/table", "internal/volume", "internal/volume/identify",
	},
	// A layout is everything known of a disk. Members of arrays belong to the disk as a whole. A FAT counts sectors of
	// the disk, like its table.
	"internal/layout": {
		"internal/boot", "internal/boot/firmware", "internal/boot/linux", "internal/boot/windows", "internal/fs/fat",
		"internal/table", "internal/volume", "internal/volume/identify",
	},

	// Free space according to the volumes of a disk, and reasons not to trust it: the list of file systems with a
	// bitmap. The list of file systems whose files are counted.
	"internal/freespace": {
		"internal/boot", "internal/fs/ext", "internal/fs/fat", "internal/fs/ntfs", "internal/guestfile",
		"internal/layout", "internal/table", "internal/volume", "internal/volume/identify",
	},

	// The verdict is about partitions, and names kinds of partitions and file systems. The advice needs verdict and
	// cost, and whether firmware or boot code starts from the disk. How an image stores a disk: files of the driver,
	// the verdict's block, the workers that read. Files of the guest are runs.
	"internal/align": {
		"internal/boot", "internal/diskcopy", "internal/image/driver", "internal/layout",
		"internal/table", "internal/volume", "internal/volume/identify",
	},
	// A plan gets patches from a table and the references, and the kinds of partitions that can move.
	"internal/plan": {
		"internal/align", "internal/boot", "internal/freespace", "internal/layout", "internal/table",
	},

	"internal/diskcopy":     {"internal/sys"},
	"internal/scan/sandbox": {"internal/sys"}, // requests and answers are bytes to it
	// A comparison runs on the workers of the copy.
	"internal/verify": {
		"internal/align", "internal/boot", "internal/diskcopy", "internal/layout", "internal/plan",
		"internal/table",
	},

	// A move within a disk follows a plan, records its steps in a journal, and reads the disk like a copy.
	"internal/inplace": {
		"internal/diskcopy", "internal/image", "internal/image/driver", "internal/image/gate",
		"internal/image/raw", "internal/journal", "internal/plan", "internal/sys",
	},

	// Other commands of this program, as processes that confine themselves.
	"internal/self": {"internal/sys"},
	"internal/report": {
		"internal/align", "internal/bench/measured", "internal/boot", "internal/exchange", "internal/guestfile",
		"internal/freespace", "internal/image", "internal/image/ova", "internal/layout",
		"internal/plan", "internal/realign", "internal/table", "internal/journal", "internal/verify",
		"internal/volume", "internal/volume/identify",
	},
	// Rows of many images and their reports, made from reports of single images.
	"internal/scan/results": { // the states of a machine are defined in boot
		"internal/align", "internal/boot", "internal/report", "internal/report/pages",
	},
	// The frame of all pages: templates and styles, independent of the report.
	"internal/report/pages": nil,
	// A walk classifies files, and makes rows of files without a disk to judge. Its inspector is the pipe up to the
	// plan, and runs in workers. The gate counts bytes read of a file, and detects an unchanged one. A row depends on
	// the journals beside a disk, whose names are in exchange and journal.
	"internal/scan": {
		"internal/align", "internal/exchange", "internal/image", "internal/image/gate", "internal/image/ova",
		"internal/image/store", "internal/image/unpack", "internal/layout", "internal/ovf", "internal/realign",
		"internal/report", "internal/scan/results", "internal/scan/sandbox", "internal/sys", "internal/journal",
	},
	// The pipe: from an image to a proved copy. It prints nothing; its findings are values. DEST can be a device, whose
	// old content is read as a disk, by the kinds of its volumes.
	"internal/realign": {
		"internal/align", "internal/diskcopy", "internal/exchange", "internal/freespace", "internal/image",
		"internal/image/store", "internal/image/driver", "internal/image/gate", "internal/image/ova",
		"internal/image/raw", "internal/image/unpack", "internal/inplace", "internal/layout", "internal/ovf",
		"internal/nbd",
		"internal/plan", "internal/sys", "internal/table", "internal/journal", "internal/verify",
		"internal/volume",
	},
	// A disk for clients on a socket. It has no images and no plans; sys restricts the socket to this user.
	"internal/nbd":            {"internal/sys"},
	"internal/bench/measured": nil, // results as values: reports match them with partitions
	// It has no image, and returns its result as a report. Texts of guests and of a storage are escaped like those of
	// images.
	"internal/bench": {"internal/bench/measured", "internal/report", "internal/sys"},
	// They have no image, and return their results as reports.
	"internal/opinion": {"internal/report", "internal/self", "internal/sys"},
	"internal/trial":   {"internal/report", "internal/self", "internal/sys"},
	// It opens the folder of its journal, and speaks to QEMU as a trial does.
	"internal/handover": {
		"internal/image/gate", "internal/journal", "internal/report", "internal/self", "internal/sys", "internal/trial",
	},
	// Bars and lines of JSON, for copies and for scans.
	"internal/progress": {"internal/diskcopy", "internal/report", "internal/scan/results", "internal/sys"},
	// The commands, with everything that they use.
	"internal/cli": {
		"internal/align", "internal/bench", "internal/bench/measured", "internal/handover", "internal/image/store",
		"internal/journal",
		"internal/nbd", "internal/opinion", "internal/progress", "internal/realign", "internal/report",
		"internal/scan", "internal/scan/results", "internal/scan/sandbox", "internal/self", "internal/sys",
		"internal/trial",
	},

	// A fleet of hosts: jobs and their records; pure.
	"fleet": nil,
	// The two halves of NATS: the server, and a client that stores jobs there. They have no images.
	"fleet/engine": {"internal/sys"},
	"fleet/queue":  {"fleet"},
	// It decodes no image: each job is a trueup process.
	"fleet/work": {"fleet", "fleet/queue", "internal/sys"},
	// The state of a fleet, as metrics and as a page with the frame of reports; pure.
	"fleet/overview": {"fleet", "internal/report/pages"},
	"fleet/web":      {"fleet/overview", "fleet/queue"},
	"fleet/fleetcmd": {
		"fleet", "fleet/engine", "fleet/overview", "fleet/queue",
		"fleet/web", "fleet/work", "internal/sys",
	},
	"fleet/cmd/trueup-fleet": {"fleet/fleetcmd"},

	"internal/disktest":       nil, // for tests; nothing else may import it or its subpackages
	"internal/disktest/oddfs": {"internal/disktest"},
	// Forged structures, by family. They may import each other but nothing under test, not even packages that all may
	// import.
	"internal/disktest/forge": nil,
	// A boot sector ends like an MBR.
	"internal/disktest/forge/fsforge":   {"internal/disktest/forge", "internal/disktest/forge/tableforge"},
	"internal/disktest/forge/grubforge": {"internal/disktest/forge", "internal/disktest/forge/tableforge"},
	"internal/disktest/forge/liloforge": {"internal/disktest/forge"},
	"internal/disktest/forge/hiveforge": {"internal/disktest/forge"},
	"internal/disktest/forge/poolforge": {
		"internal/disktest/forge", "internal/disktest/forge/fsforge", "internal/disktest/forge/tableforge",
	}, // the boot sector of BitLocker has the fields of an NTFS
	"internal/disktest/forge/qcow2forge": {"internal/disktest/forge"},
	"internal/disktest/forge/tableforge": {"internal/disktest/forge"},
	"internal/disktest/forge/tarforge":   {"internal/disktest/forge"},
	"internal/disktest/forge/vhdforge":   {"internal/disktest/forge"},
	"internal/disktest/forge/vhdxforge":  {"internal/disktest/forge"},
	"internal/disktest/forge/vmdkforge":  {"internal/disktest/forge"},
	// HPFS begins with the fields of a FAT.
	"internal/disktest/forge/volumeforge": {
		"internal/disktest/forge", "internal/disktest/forge/fsforge", "internal/disktest/forge/tableforge",
	},
	// Trees of files, made by tools, for the tests of three readers.
	"internal/disktest/filetest": {"internal/disktest", "internal/guestfile"},
	"internal/disktest/pagetest": {"internal/disktest"}, // pages are tested in one browser
	// Images are opened, copied and compared in the tests of each format.
	"internal/disktest/imagetest": {
		"internal/diskcopy", "internal/disktest", "internal/image", "internal/image/driver",
		"internal/image/store",
	},
	// Forged images with one fault each, and the expected messages: for the owners of the rules, inspect and scan.
	"internal/disktest/hostile": {
		"internal/disktest", "internal/disktest/forge", "internal/disktest/forge/fsforge",
		"internal/disktest/forge/poolforge", "internal/disktest/forge/qcow2forge",
		"internal/disktest/forge/tableforge", "internal/disktest/forge/vhdforge",
		"internal/disktest/forge/vhdxforge", "internal/disktest/forge/vmdkforge",
		"internal/disktest/forge/volumeforge",
	},
	// It also fails the reads of a guest.
	"internal/disktest/boottest": {
		"internal/boot", "internal/layout", "internal/disktest", "internal/table", "internal/volume",
		"internal/volume/identify",
	},
	"internal/disktest/outcome": {"internal/disktest"}, // for the texts of skipped tests
	"internal/disktest/mutants": nil,                   // a separate program that runs the tests of other packages
}

type listed struct {
	ImportPath, Dir string
	Imports         []string
	GoFiles         []string
}

// packages lists the packages of the core and of the fleet, without their tests.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles", "./...", "./fleet/...")
	cmd.Dir = moduleRoot(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			return all
		}
		require.NoError(t, err)
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		if len(p.GoFiles) > 0 {
			all = append(all, p)
		}
	}
}

// Readers of JSON reject codes that are not listed.
func TestCodesOfRefusals(t *testing.T) {
	literal := regexp.MustCompile(`(?:Refusal\{\s*Code:|\bs\.refuse\(|r\.Code =) *"([^"]*)"`)
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			for _, code := range literal.FindAllSubmatch(ReadFile(t, path), -1) {
				require.Contains(t, ondisk.Codes, string(code[1]), "%s: add the code to ondisk.Codes", path)
			}
		}
	}
}

func TestImportEdges(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		allowed, ok := edges[p.ImportPath]
		require.True(t, ok, "package %s has no row in the table of imports", p.ImportPath)
		seen[p.ImportPath] = true
		for _, to := range p.Imports {
			to, ours := strings.CutPrefix(to, module)
			if !ours {
				continue
			}
			// Packages that all may import follow the order, too.
			fine := slices.Contains(allowed, to) ||
				(slices.Contains(everywhere, to) && !slices.Contains(everywhere, p.ImportPath))
			require.True(t, fine, "%s imports %s: a new edge", p.ImportPath, to)
			const forge = "internal/disktest/forge"
			independent := !strings.HasPrefix(p.ImportPath, forge) || strings.HasPrefix(to, forge)
			require.True(t, independent, "%s imports %s: forged structures use nothing under test", p.ImportPath, to)
		}
	}
	for path := range edges {
		require.True(t, seen[path], "the table of imports names %s, which is gone", path)
	}
}

// The core neither links nor requires NATS.
func TestCoreRequiresNoNATS(t *testing.T) {
	requirements := func(mod string) string {
		text, err := os.ReadFile(filepath.Join(moduleRoot(t), mod))
		require.NoError(t, err)
		return string(text)
	}
	require.NotContains(t, requirements("go.mod"), "nats-io")
	require.Contains(t, requirements("fleet/go.mod"), "nats-io")
}

// The table itself must have no cycle, and neither formats nor families of boot loaders may meet: an error in it would
// allow the imports that it must forbid.
func TestTheTableOfImportsIsSound(t *testing.T) {
	const open, sound = 1, 2
	seen := map[string]int{}
	var visit func(path string)
	visit = func(path string) {
		require.NotEqual(t, open, seen[path], "a cycle through %s", path)
		if seen[path] == sound {
			return
		}
		seen[path] = open
		for _, to := range edges[path] {
			visit(to)
		}
		seen[path] = sound
	}
	for path, tos := range edges {
		visit(path)
		for _, to := range tos {
			tests := strings.HasPrefix(path, "internal/disktest/")
			require.False(t, strings.HasPrefix(to, "internal/disktest") && !tests, path)
			format := func(p string) bool {
				return filepath.Dir(p) == "internal/image" && slices.Contains(edges["internal/image"], p) &&
					p != "internal/image/driver" && p != "internal/image/gate"
			}
			require.False(t, format(path) && format(to), "%s imports %s", path, to)
			family := func(p string) bool { return filepath.Dir(p) == "internal/boot" }
			require.False(t, family(path) && family(to) && path != "internal/layout", "%s imports %s", path, to)
		}
	}
	for path, tos := range edges {
		finds := strings.HasPrefix(path, "internal/volume") || strings.HasPrefix(path, "internal/fs/")
		require.False(t, finds && slices.Contains(tos, "internal/table"), path)
	}
	require.False(t, slices.ContainsFunc(edges["internal/table"], func(to string) bool {
		return strings.HasPrefix(to, "internal/volume") || strings.HasPrefix(to, "internal/fs/")
	}))
}
