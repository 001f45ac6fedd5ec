package disktest

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/trueup/trueup/"

// everywhere may be imported by every package.
var everywhere = []string{"internal/units", "internal/ondisk", "internal/disk", "internal/shell"}

// edges are the imports that the architecture allows beside those, one row for each package. A new edge is a decision:
// it comes with a line here and its reason.
var edges = map[string][]string{
	"cmd/trueup": {"internal/cli"},

	"internal/units": nil,
	"internal/shell": nil,
	"internal/disk":  nil,
	// Expressions cost a start, when they are compiled there.
	"internal/ondisk": {"internal/disk"},
	"internal/ovf":    nil,
	"internal/sys":    nil, // what the operating system does
	// What a run keeps for the next one: bytes of its owner, of which it knows nothing.
	// Which work a run has left open on a disk: a journal beside it, opened through the gate.
	"internal/journal": {"internal/image/gate", "internal/sys"},

	"internal/image/driver": nil,
	"internal/image/qcow2":  {"internal/image/driver"},
	"internal/image/raw":    {"internal/image/driver"},
	"internal/image/vdi":    {"internal/image/driver"},
	"internal/image/vhd":    {"internal/image/driver"},
	"internal/image/vhdx":   {"internal/image/driver"},
	"internal/image/vmdk":   {"internal/image/driver"},
	// The gate knows files and no formats, so that the list of formats can stand above it.
	"internal/image/gate": {"internal/sys"},
	"internal/image": {
		"internal/image/driver", "internal/image/gate", "internal/image/qcow2", "internal/image/raw",
		"internal/image/vdi", "internal/image/vhd", "internal/image/vhdx", "internal/image/vmdk",
		"internal/ovf", "internal/sys",
	},
	// Before a file is made or replaced, the images of its folder are asked whether they need what is there.
	// A copy onto a device is an output as those of store; while it is written it is read as an image.
	// The file behind a loop device can have open work beside it.
	"internal/image/store": {
		"internal/image", "internal/image/driver", "internal/image/gate", "internal/image/raw",
		"internal/journal", "internal/sys",
	},

	// A copy that has no name yet gets those of its source: what the folder needs is asked of its images.
	// By its journal an original is known, which is then only read. The disk that stays is read as an inspection reads
	// it before the other one goes.
	"internal/exchange": {
		"internal/boot", "internal/align", "internal/diskcopy", "internal/image", "internal/image/driver",
		"internal/image/gate", "internal/image/ova", "internal/image/raw", "internal/journal", "internal/layout",
		"internal/sys", "internal/table", "internal/volume",
	},

	// A package copies and compares its files as disks are, and knows an error of the system from one of a package.
	"internal/image/ova": {
		"internal/diskcopy", "internal/image", "internal/image/driver", "internal/image/gate",
		"internal/image/store", "internal/ovf", "internal/sys", "internal/verify",
	},

	// What lies in archives are images: it chooses among them, and hands their bytes to image.
	// Streams and archives are bytes to it.
	"internal/image/unpack": {
		"internal/image", "internal/image/driver", "internal/image/gate", "internal/image/ova", "internal/sys",
	},

	// table and volume never meet: whether sector 0 is an MBR or the boot sector of a volume is settled by layout.
	"internal/table": nil,
	// What a prober returns, and the probers of volumes whose files are not read. identify puts the others in front.
	"internal/volume": nil,
	// What a reader of files returns: where the bytes of a file lie. It knows no partitions.
	// What a walk over the files of a volume counts: runs of files, and no structures of file systems.
	"internal/guestfile": nil,
	// Boot sectors and superblocks are decoded once, for the prober and for the reader of files.
	"internal/fs/ext":          {"internal/guestfile", "internal/volume"},
	"internal/fs/fat":          {"internal/guestfile", "internal/volume"},
	"internal/fs/ntfs":         {"internal/guestfile", "internal/volume"},
	"internal/volume/identify": {"internal/fs/ext", "internal/fs/fat", "internal/fs/ntfs", "internal/volume"},
	"internal/hive":            nil, // values in a file of a guest, and where their bytes lie
	// What all knowledge of booting is made of, one package for each family of it, and the lists above them.
	"internal/boot": {
		"internal/fs/ext", "internal/fs/fat", "internal/fs/ntfs", "internal/guestfile", "internal/table",
		"internal/volume",
	},
	"internal/boot/firmware": {
		"internal/boot", "internal/guestfile", "internal/table", "internal/volume",
	}, // a move of exFAT makes its checksum anew
	// room in volumes
	"internal/boot/linux": {
		"internal/boot", "internal/fs/ext", "internal/guestfile", "internal/table", "internal/volume",
		"internal/volume/identify",
	},
	// A registry is a hive. The traits of a kind say what Windows starts from.
	// What is rewritten must outlast the replay of an open log. A disk decides what a BitLocker volume is that does not
	// say.
	"internal/boot/windows": {
		"internal/boot", "internal/fs/fat", "internal/fs/ntfs", "internal/guestfile", "internal/hive",
		"internal/table", "internal/volume", "internal/volume/identify",
	},
	// A disk is asked for all that is known. Members of arrays are of the disk as a whole.
	"internal/layout": {
		"internal/boot", "internal/boot/firmware", "internal/boot/linux", "internal/boot/windows",
		"internal/table", "internal/volume", "internal/volume/identify",
	},

	// What the volumes of a disk call free, and why that is not believed: the list of file systems with a bitmap.
	// The list of file systems whose files are counted.
	"internal/freespace": {
		"internal/boot", "internal/fs/ext", "internal/fs/fat", "internal/fs/ntfs", "internal/guestfile",
		"internal/layout", "internal/table", "internal/volume", "internal/volume/identify",
	},

	// The verdict is on partitions, and names kinds of partitions and file systems.
	// The advice asks verdict and cost, and whether firmware or boot code starts from the disk.
	// How an image stores a disk: files of the driver, the verdict's block, the workers that read.
	// Files of the guest are runs.
	"internal/align": {
		"internal/boot", "internal/diskcopy", "internal/image/driver", "internal/layout",
		"internal/table", "internal/volume", "internal/volume/identify",
	},
	// A plan asks a table and the references for their patches, and knows which kinds of partitions can move.
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

	// A move inside of a disk follows a plan, keeps what it does in a journal, and reads the disk as a copy does.
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
	// Rows of many images and their reports: made of what is reported of one.
	"internal/scan/results": { // the states of a machine are those of boot
		"internal/align", "internal/boot", "internal/report", "internal/report/pages",
	},
	// The frame of all pages: templates and styles, and nothing of what they report.
	"internal/report/pages": nil,
	// A walk tells what files are, and makes rows of those that have no disk to judge.
	// Its inspector is the pipe up to the plan, and runs in workers.
	// The gate counts what is read of a file, and says when one is unchanged.
	// A row depends on the journals beside a disk: exchange and unfinished know their names.
	"internal/scan": {
		"internal/align", "internal/exchange", "internal/image", "internal/image/gate", "internal/image/ova",
		"internal/image/store", "internal/image/unpack", "internal/layout", "internal/ovf", "internal/realign",
		"internal/report", "internal/scan/results", "internal/scan/sandbox", "internal/sys", "internal/journal",
	},
	// The pipe: from an image to a proved copy. It reports nothing; what it finds are values.
	// DEST can be a device, whose old content is read as a disk, by the kinds of its volumes.
	"internal/realign": {
		"internal/align", "internal/diskcopy", "internal/exchange", "internal/freespace", "internal/image",
		"internal/image/store", "internal/image/driver", "internal/image/ova", "internal/image/raw",
		"internal/image/unpack", "internal/inplace", "internal/layout", "internal/ovf", "internal/nbd",
		"internal/plan", "internal/sys", "internal/table", "internal/journal", "internal/verify",
		"internal/volume",
	},
	// A disk for clients on a socket. It knows no images and no plans; sys keeps the socket to this user.
	"internal/nbd":            {"internal/sys"},
	"internal/bench/measured": nil, // results as values: reports match them with partitions
	// It knows no image, and returns its result as a report.
	// Texts of guests and of a storage are escaped as those of images are.
	"internal/bench": {"internal/bench/measured", "internal/report", "internal/sys"},
	// They know no image, and return their results as reports.
	"internal/opinion": {"internal/report", "internal/self", "internal/sys"},
	"internal/trial":   {"internal/report", "internal/self", "internal/sys"},
	// Bars and lines of JSON, for copies and for scans.
	"internal/progress": {"internal/diskcopy", "internal/report", "internal/scan/results", "internal/sys"},
	// The commands, by all that they use.
	"internal/cli": {
		"internal/align", "internal/bench", "internal/bench/measured", "internal/image/store", "internal/journal",
		"internal/nbd", "internal/opinion", "internal/progress", "internal/realign", "internal/report",
		"internal/scan", "internal/scan/results", "internal/scan/sandbox", "internal/self", "internal/sys",
		"internal/trial",
	},

	// A fleet of hosts: what a job is, and what is known of it; pure.
	"fleet": nil,
	// The two halves of NATS: the server, and a client that keeps jobs there. They know nothing of images.
	"fleet/engine": {"internal/sys"},
	"fleet/queue":  {"fleet"},
	// It decodes no image: trueup does each job, in a process of its own.
	"fleet/work": {"fleet", "fleet/queue", "internal/sys"},
	// How a fleet is, as metrics and as a page, which has the frame of reports; pure.
	"fleet/overview": {"fleet", "internal/report/pages"},
	"fleet/web":      {"fleet/overview", "fleet/queue"},
	"fleet/fleetcmd": {
		"fleet", "fleet/engine", "fleet/overview", "fleet/queue",
		"fleet/web", "fleet/work", "internal/sys",
	},
	"fleet/cmd/trueup-fleet": {"fleet/fleetcmd"},

	"internal/disktest":       nil, // for tests; nothing else may import it, nor what is in its folder
	"internal/disktest/oddfs": {"internal/disktest"},
	// Forged structures, by family. They know each other and nothing under test, not even what all may import.
	"internal/disktest/forge": nil,
	// A boot sector ends as an MBR does.
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
	"internal/disktest/pagetest": {"internal/disktest"}, // pages are looked at in one browser
	// Images are opened, copied and compared in the tests of each format.
	"internal/disktest/imagetest": {
		"internal/diskcopy", "internal/disktest", "internal/image", "internal/image/driver",
		"internal/image/store",
	},
	// Forged images with one thing wrong, and what is said to them: for the owners of the rules, inspect and scan.
	"internal/disktest/hostile": {
		"internal/disktest", "internal/disktest/forge", "internal/disktest/forge/fsforge",
		"internal/disktest/forge/poolforge", "internal/disktest/forge/qcow2forge",
		"internal/disktest/forge/tableforge", "internal/disktest/forge/vhdforge",
		"internal/disktest/forge/vhdxforge", "internal/disktest/forge/vmdkforge",
		"internal/disktest/forge/volumeforge",
	},
	// It lets the reads of a guest fail, too.
	"internal/disktest/boottest": {
		"internal/boot", "internal/layout", "internal/disktest", "internal/table", "internal/volume/identify",
	},
	"internal/disktest/outcome": {"internal/disktest"}, // for the texts of skipped tests
	"internal/disktest/mutants": nil,                   // a program of its own: it builds and runs the tests of others
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
			// Those that everybody may import look down only, too.
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

// The core neither links NATS nor requires it.
func TestCoreRequiresNoNATS(t *testing.T) {
	requirements := func(mod string) string {
		text, err := os.ReadFile(filepath.Join(moduleRoot(t), mod))
		require.NoError(t, err)
		return string(text)
	}
	require.NotContains(t, requirements("go.mod"), "nats-io")
	require.Contains(t, requirements("fleet/go.mod"), "nats-io")
}

// The table itself must have no cycle, and neither formats nor families of boot loaders must meet: a slip in it would
// allow what it is there to forbid.
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
