package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestAlignPackage is an OVA made by hand and what other programs say of the result: tar about its members, sha256sum
// about its manifest, qemu-img about the disk inside.
func TestAlignPackage(t *testing.T) {
	t.Parallel()
	for algorithm, subformat := range map[string]string{
		"SHA1": "streamOptimized", "SHA256": "streamOptimized",
		"SHA512": "monolithicSparse",
	} {
		t.Run(subformat+" "+algorithm, func(t *testing.T) {
			p := twoDisks(t)
			p.digest = algorithm
			sample := p.files["disk1.vmdk"]
			p.files["disk1.vmdk"] = filepath.Join(t.TempDir(), "disk.vmdk")
			disktest.Run(t, "qemu-img", "convert", "-O", "vmdk", "-o", "subformat="+subformat, sample,
				p.files["disk1.vmdk"])
			source, dest := p.ova(t), filepath.Join(t.TempDir(), "out.ova")
			before := hashFolder(t, filepath.Dir(source))
			answer := trueupJSON[jsonPackageAlign](t, 0, "align", source, dest)
			require.Equal(t, 1, answer.Moved)
			require.Equal(t, []string{"out.ova"}, answer.Files)
			require.Equal(t, dest+"!disk1.vmdk", answer.Disks[0].Dest)
			require.Equal(t, 1, answer.Disks[0].Moved)
			require.Equal(t, subformat, answer.Disks[0].Subformat)
			require.Equal(t, 0, answer.Disks[1].Moved)
			require.Equal(t, before, hashFolder(t, filepath.Dir(source)))
			require.Equal(t, []string{"out.ova"}, folderNames(t, filepath.Dir(dest)))
			p.checkResult(t, source, dest)
			require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
			require.False(t, trueupJSON[jsonPackageVerify](t, 5, "verify", dest, source).Equal)

			again := filepath.Join(t.TempDir(), "again.ova")
			require.Equal(t, 0, trueup(t, "align", "--jobs", "1", source, again).code)
			require.Equal(t, sha256Of(t, dest), sha256Of(t, again), "the same job gives the same bytes")
			require.Equal(t, 0, trueup(t, "align", "--force", dest, again).code)
			require.Equal(t, sha256Of(t, dest), sha256Of(t, again), "what is aligned is copied as it is")
		})
	}
}

// checkResult holds the aligned package against its source, for the package of twoDisks.
func (p *madePackage) checkResult(t *testing.T, source, dest string) {
	t.Helper()
	was, oldList := unpack(t, source)
	is, list := unpack(t, dest)
	require.Len(t, list, len(oldList))
	for i := range list {
		want, got := strings.Fields(oldList[i]), strings.Fields(list[i])
		want[2], got[2] = "", "" // the size
		require.Equal(t, want, got)
	}
	requireManifest(t, is, "vm.mf")
	for _, same := range []string{"disk2.vmdk", "vm.nvram"} {
		require.Equal(t, sha256Of(t, filepath.Join(was, same)), sha256Of(t, filepath.Join(is, same)))
	}

	alone := filepath.Join(t.TempDir(), "alone.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", filepath.Join(was, "disk1.vmdk"), alone).code)
	inside := filepath.Join(is, "disk1.vmdk")
	require.Equal(t, sha256Of(t, alone), sha256Of(t, formatSparse.rawOf(t, inside)))
	require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "vmdk", inside), "No errors were found")

	info := disktest.Stat(t, inside)
	oldInfo := disktest.Stat(t, filepath.Join(was, "disk1.vmdk"))
	old := disktest.ReadFile(t, filepath.Join(was, "vm.ovf"))
	text := disktest.ReadFile(t, filepath.Join(is, "vm.ovf"))
	held := trueupJSON[jsonInspect](t, 0, "inspect", dest+"!disk1.vmdk").Image.SizeBytes
	require.Equal(t, int64(8<<20), held, "this disk has room and does not grow")
	populated := match(t, string(text), `vmdisk1" ovf:fileRef="file1" ovf:populatedSize="(\d+)"`)
	want := strings.NewReplacer(
		fmt.Sprintf(`ovf:id="file1" ovf:size="%d"`, oldInfo.Size()), fmt.Sprintf(`ovf:id="file1" ovf:size="%d"`,
			info.Size()),
		`ovf:populatedSize="1"`, fmt.Sprintf("ovf:populatedSize=%q", populated),
	).Replace(string(old))
	require.NotEqual(t, want, string(old))
	require.Equal(t, want, strings.TrimRight(string(text), "\n")+"\n")
	require.Zero(t, number(t, string(text), `ovf:populatedSize="(\d+)"`)%(64<<10), "grains are 64 KiB")
}

// A disk that grows has more capacity afterwards, in the unit of the OVF when that can express it.
func TestAlignPackageWithGrowingDisk(t *testing.T) {
	t.Parallel()
	disk := madeDisks[2]
	require.Greater(t, disk.wantSectors, disk.sectors)
	raw := disk.make(t, t.TempDir())
	for units, capacity := range map[string][2]string{
		"byte":         {"16450560", "17825792"},
		"byte * 2^20":  {"16", "17"},
		"byte * 2^9":   {"32130", "34816"},
		"byte * 2^10":  {"16065", "17408"},
		"byte * 10^3":  {"16451", "17825792"},
		"byte * 2 ^ 7": {"128520", "139264"},
	} {
		t.Run(units, func(t *testing.T) {
			p := twoDisks(t)
			p.text = strings.NewReplacer("CAPACITY1", capacity[0], "UNITS1", units).Replace(ovfText)
			p.files["disk1.vmdk"] = formatSparse.convert(t, raw, t.TempDir(), "disk", disk.adapter)
			source, dest := p.ova(t), filepath.Join(t.TempDir(), "out.ova")
			answer := trueupJSON[jsonPackageAlign](t, 0, "align", source, dest)
			require.Equal(t, disk.wantSectors*sectorSize, answer.Disks[0].NewSizeBytes)
			is, _ := unpack(t, dest)
			text := disktest.ReadFile(t, filepath.Join(is, "vm.ovf"))
			if units == "byte * 10^3" {
				units = "byte"
			}
			require.Contains(t, string(text), fmt.Sprintf("ovf:capacity=%q ovf:capacityAllocationUnits=%q\n",
				capacity[1], units))
			require.Equal(t, disk.wantSectors*sectorSize, qemuSize(t, filepath.Join(is, "disk1.vmdk")))
			requireManifest(t, is, "vm.mf")
			require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
		})
	}
}

func qemuSize(t testing.TB, path string) int64 {
	t.Helper()
	return number(t, disktest.Output(t, "qemu-img", "info", "--output=json", path), `"virtual-size": (\d+)`)
}

// Archives of other programs: GNU's own format, PAX with records for each member, and one that ends without padding.
func TestAlignPackagesOfOtherTars(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"gnu": {"--format=gnu"}, "pax": {"--format=pax", "--pax-option=comment:=made by hand"},
		"small records": {"--format=ustar", "-b", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := twoDisks(t)
			source, dest := p.ova(t, flags...), filepath.Join(t.TempDir(), "out.ova")
			require.Equal(t, 0, trueup(t, "align", source, dest).code)
			p.checkResult(t, source, dest)
			old := disktest.Stat(t, source)
			info := disktest.Stat(t, dest)
			require.Equal(t, old.Size()%10240 == 0, info.Size()%10240 == 0)
		})
	}
}

// The folder form, and from one form to the other. Whatever it was, the parts are the same.
func TestAlignFolderPackages(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	p.signed = true
	for _, source := range []string{p.ova(t), p.folder(t)} {
		for _, ext := range []string{".ova", ".ovf"} {
			t.Run(filepath.Ext(source)+" to "+ext, func(t *testing.T) {
				dest := filepath.Join(t.TempDir(), "new"+ext)
				answer := trueupJSON[jsonPackageAlign](t, 0, "align", source, dest)
				require.Equal(t, []string{"vm.cert"}, answer.Dropped)
				require.Equal(t, "certificate-dropped", answer.Findings[len(answer.Findings)-1].Code)
				require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
				dir, stem := filepath.Dir(dest), "new"
				if ext == ".ova" {
					dir, _ = unpack(t, dest)
					stem = "vm"
				}
				require.ElementsMatch(t, []string{stem + ".ovf", stem + ".mf", "disk1.vmdk", "disk2.vmdk", "vm.nvram"},
					folderNames(t, dir))
				requireManifest(t, dir, stem+".mf")
				require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "vmdk",
					filepath.Join(dir, "disk1.vmdk")), "No errors were found")
				require.Equal(t, 1, trueupJSON[jsonError](t, 1, "align", source, dest).ExitCode, "DEST exists")
			})
		}
	}
	again := trueupJSON[jsonError](t, 1, "align", "--force", p.folder(t), p.folder(t))
	require.Equal(t, "output", again.Error.Code)
}

// convert copies a package byte for byte, signature and all.
func TestConvertPackage(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	p.signed = true
	source, dest := p.ova(t), filepath.Join(t.TempDir(), "out.ova")
	answer := trueupJSON[jsonPackageAlign](t, 0, "convert", source, dest)
	require.Empty(t, answer.Dropped)
	require.Equal(t, sha256Of(t, source), sha256Of(t, dest))
}

// One disk of a package is an image like any other.
func TestDisksInsidePackages(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	for _, source := range []string{p.ova(t), p.folder(t)} {
		inside := trueupJSON[jsonInspect](t, 3, "inspect", source+"!disk1.vmdk")
		require.Equal(t, source+"!disk1.vmdk", inside.Image.Path)
		require.Equal(t, "vmdk", inside.Image.Format)
		require.Equal(t, 1, trueupJSON[jsonPlan](t, 0, "plan", source+"!disk1.vmdk").Moved)
		dest := filepath.Join(t.TempDir(), "disk1.vmdk")
		require.Equal(t, 1, trueupJSON[jsonAlign](t, 0, "align", source+"!disk1.vmdk", dest).Moved)
		require.True(t, trueupJSON[jsonVerify](t, 0, "verify", p.files["disk1.vmdk"], dest).Equal)

		several := trueupJSON[jsonError](t, 64, "plan", source)
		require.Contains(t, several.Error.Message, "'"+source+"!disk1.vmdk', '"+source+"!disk2.vmdk'")
		require.Contains(t, trueupJSON[jsonError](t, 64, "plan", source+"!vm.nvram").Error.Message, "no disk")
	}
	dir := t.TempDir()
	odd := filepath.Join(dir, "vm.ova!disk1.vmdk")
	disktest.Run(t, "cp", p.files["disk2.vmdk"], odd)
	disktest.Run(t, "cp", p.ova(t), filepath.Join(dir, "vm.ova"))
	require.Equal(t, "aligned", trueupJSON[jsonInspect](t, 0, "inspect", odd).Verdict,
		"a file that has such a name is meant")
	require.Contains(t, trueupJSON[jsonError](t, 64, "inspect", p.files["disk1.vmdk"]+"!x").Error.Message, "no package")
}

// A package of one disk needs no name for it.
func TestPackageOfOneDisk(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	p.order = []string{"disk1.vmdk"}
	p.text = `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"
 xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
<References><File ovf:href="disk1.vmdk" ovf:id="f"/></References>
<DiskSection><Disk ovf:capacity="8388608" ovf:diskId="d" ovf:fileRef="f"/></DiskSection></Envelope>`
	source := p.ova(t)
	require.Len(t, trueupJSON[jsonPackageInspect](t, 3, "inspect", source).Disks, 1)
	require.Equal(t, 1, trueupJSON[jsonPlan](t, 0, "plan", source).Moved)
	dest := filepath.Join(t.TempDir(), "out.vmdk")
	require.Equal(t, 1, trueupJSON[jsonAlign](t, 0, "align", source, dest).Moved)
	require.True(t, trueupJSON[jsonVerify](t, 0, "verify", source, dest).Equal)
	out := filepath.Join(t.TempDir(), "out.ova")
	require.Equal(t, 0, trueup(t, "align", source, out).code)
	is, _ := unpack(t, out)
	old := disktest.ReadFile(t, filepath.Join(filepath.Dir(p.folder(t)), "vm.ovf"))
	text := disktest.ReadFile(t, filepath.Join(is, "vm.ovf"))
	require.Equal(t, string(old), string(text), "it states no size that could change")
}

func TestInspectPackage(t *testing.T) {
	t.Parallel()
	source := twoDisks(t).ova(t)
	answer := trueupJSON[jsonPackageInspect](t, 3, "inspect", source)
	require.Equal(t, "ova", answer.Package.Kind)
	require.Equal(t, []string{"SHA256"}, answer.Package.Algorithms)
	require.Len(t, answer.Package.Members, 5)
	require.Equal(t, "manifest", answer.Package.Members[1].Role)
	require.Len(t, answer.Disks, 2)
	require.Equal(t, "misaligned", answer.Disks[0].Inspect.Verdict)
	require.Equal(t, "aligned", answer.Disks[1].Inspect.Verdict)
	require.Equal(t, int64(8<<20), answer.Disks[0].Capacity)
	require.Equal(t, []string{"vmdisk2"}, answer.Disks[1].IDs)
	text := trueup(t, "inspect", source)
	require.Equal(t, 3, text.code)
	for _, want := range []string{
		"OVA package, 5 files, manifest with SHA256", "vm.ova!disk1.vmdk: VMDK",
		"vm.ova!disk2.vmdk: VMDK", "trueup align " + source,
	} {
		require.Contains(t, text.stdout, want)
	}
}

// An image that no disk of the OVF names is inspected, and copied as it is.
func TestUnnamedImageIsCopied(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	p.text = strings.Replace(p.text, `ovf:href="vm.nvram"`, `ovf:href="extra.vmdk"`, 1)
	p.order = []string{"disk1.vmdk", "disk2.vmdk", "extra.vmdk"}
	p.files["extra.vmdk"] = p.files["disk1.vmdk"]
	source, dest := p.ova(t), filepath.Join(t.TempDir(), "out.ova")
	answer := trueupJSON[jsonPackageInspect](t, 3, "inspect", source)
	require.Len(t, answer.Disks, 3)
	require.Empty(t, answer.Disks[2].IDs)
	require.Equal(t, "misaligned", answer.Disks[2].Inspect.Verdict)
	require.Equal(t, 1, trueupJSON[jsonPackageAlign](t, 0, "align", source, dest).Moved)
	is, _ := unpack(t, dest)
	require.Equal(t, sha256Of(t, p.files["extra.vmdk"]), sha256Of(t, filepath.Join(is, "extra.vmdk")))
	require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
}

// --skip-aligned writes nothing only when nothing in the package has to move.
func TestSkipAlignedPackage(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	dest := filepath.Join(t.TempDir(), "out.ova")
	require.True(t, trueupJSON[jsonPackageAlign](t, 0, "align", "--skip-aligned", p.ova(t), dest).Written)
	none := filepath.Join(t.TempDir(), "none.ova")
	require.False(t, trueupJSON[jsonPackageAlign](t, 0, "align", "--skip-aligned", dest, none).Written)
	require.NoFileExists(t, none)
}

func TestPackageUsage(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	source := p.ova(t)
	out := filepath.Join(t.TempDir(), "out.ova")
	for says, args := range map[string][]string{
		"keep their format": {"align", "--to", "raw", source, out},
		"is one disk":       {"align", p.files["disk1.vmdk"], out},
		"has 2 disks":       {"align", source, filepath.Join(filepath.Dir(out), "out.vmdk")},
		"are the same file": {"align", "--force", source, source},
		"name of an image":  {"inspect", "--out", source, source},
	} {
		require.Contains(t, trueupJSON[jsonError](t, 64, args...).Error.Message, says)
	}
	require.Empty(t, folderNames(t, filepath.Dir(out)))
}

// What verify of packages must see: a byte of a disk, of another file, of the OVF, of the manifest.
func TestVerifyPackageSeesDifferences(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	source, dest := p.folder(t), filepath.Join(t.TempDir(), "out.ovf")
	require.Equal(t, 0, trueup(t, "align", source, dest).code)
	at := func(name string) string { return filepath.Join(filepath.Dir(dest), name) }
	flip := func(path string, off int64) {
		b := readAt(t, path, off, 1)
		disktest.WriteAt(t, path, off, []byte{b[0] ^ 1})
	}
	for name, off := range map[string]int64{"disk1.vmdk": 1 << 20, "vm.nvram": 100, "out.ovf": 45, "out.mf": 80} {
		flip(at(name), off)
		answer := trueupJSON[jsonPackageVerify](t, 5, "verify", source, dest)
		require.NotEmpty(t, answer.Differences, name)
		flip(at(name), off)
		require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
	}
}

// A disk that is taken out of a package is held against the manifest too.
func TestOneDiskAgainstTheManifest(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	path := p.folder(t)
	disktest.WriteAt(t, filepath.Join(filepath.Dir(path), "disk1.vmdk"), 1<<20, []byte("flipped"))
	for name, code := range map[string]int{"disk1.vmdk": 1, "disk2.vmdk": 0} {
		require.Equal(t, code, trueup(t, "align", path+"!"+name, filepath.Join(t.TempDir(), "out.vmdk")).code, name)
	}
}

// A run that was killed while it gave an OVF's files their names leaves these with a second link: the next run knows
// them by that. Files of others stay.
func TestFolderPackageAfterAKill(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	source, dir := p.folder(t), t.TempDir()
	dest := filepath.Join(dir, "new.ovf")
	at := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(at(".disk1.vmdk.partial"), []byte("unfinished"), 0o644))
	require.NoError(t, os.Link(at(".disk1.vmdk.partial"), at("disk1.vmdk")))
	require.NoError(t, os.WriteFile(at(".new.ovf.partial"), []byte("unfinished"), 0o644))
	require.NoError(t, os.WriteFile(at(".vm.nvram.partial"), []byte("unfinished"), 0o644))
	require.Equal(t, 0, trueup(t, "align", source, dest).code)
	require.ElementsMatch(t, []string{"new.ovf", "new.mf", "disk1.vmdk", "disk2.vmdk", "vm.nvram"}, folderNames(t, dir))
	requireManifest(t, dir, "new.mf")

	other := t.TempDir()
	disktest.Run(t, "cp", p.files["vm.nvram"], filepath.Join(other, "disk2.vmdk"))
	before := hashFolder(t, other)
	require.Equal(t, "output", trueupJSON[jsonError](t, 1, "align", source, filepath.Join(other, "new.ovf")).Error.Code)
	require.Equal(t, before, hashFolder(t, other), "what belongs to others stays, and nothing comes beside it")
}

// The OVF need not come first, and its files may lie in a folder of the archive, with blanks that are escaped in a URI.
func TestOtherOrdersAndFolders(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	disktest.Run(t, "cp", p.files["disk1.vmdk"], filepath.Join(dir, "sub", "a disk.vmdk"))
	ovf := smallOVF("a%20disk.vmdk", `ovf:size="1245184"`, "")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "vm.ovf"), ovf.Data, 0o644))
	source, dest := filepath.Join(dir, "vm.ova"), filepath.Join(t.TempDir(), "out.ova")
	disktest.Run(t, "tar", "--format=ustar", "-C", dir, "-cf", source, "sub/a disk.vmdk", "sub/vm.ovf")
	require.Equal(t, 0, trueup(t, "align", source, dest).code)
	require.Equal(t, "sub/a disk.vmdk\nsub/vm.ovf\n", disktest.Output(t, "tar", "-tf", dest))
	is, _ := unpack(t, dest)
	text := disktest.ReadFile(t, filepath.Join(is, "sub", "vm.ovf"))
	require.Equal(t, strings.Replace(string(ovf.Data), "1245184", "1310720", 1), string(text))
	require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
	require.Equal(t, 1, trueup(t, "align", source, filepath.Join(t.TempDir(), "out.ovf")).code,
		"a folder form has no folders inside")
}

// The place of the OVF in the archive is settled before the sizes that stand in it are known. What is left of its last
// block is filled with line ends when there could have been one block more.
func TestOVFThatFillsItsBlocks(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	plain := p.text
	// One digit becomes seven, in the populatedSize of disk 1; its file size keeps seven.
	info, err := os.Stat(p.folder(t))
	require.NoError(t, err)
	for _, left := range []int64{0, 1, 511} {
		fill := (2*512 - (info.Size()+6)%512 - left) % 512
		p.text = strings.Replace(plain, "made by hand", "made by hand"+strings.Repeat(".", int(fill)), 1)
		source, dest := p.ova(t), filepath.Join(t.TempDir(), "out.ova")
		require.Equal(t, 0, trueup(t, "align", source, dest).code)
		is, _ := unpack(t, dest)
		text := disktest.ReadFile(t, filepath.Join(is, "vm.ovf"))
		bare := strings.TrimRight(string(text), "\n") + "\n"
		require.Equal(t, left, (512-int64(len(bare))%512)%512, "the case is what it says")
		require.Equal(t, left == 0, len(text) > len(bare), "%d bytes are left", left)
		p.checkResult(t, source, dest)
	}
}

// Without a manifest, too, verify compares what the OVF says with what is there.
func TestVerifyComparesCapacities(t *testing.T) {
	t.Parallel()
	p := twoDisks(t)
	p.digest = ""
	source, dest := p.folder(t), filepath.Join(t.TempDir(), "out.ovf")
	require.Equal(t, 0, trueup(t, "align", source, dest).code)
	require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
	replaceInFile(t, dest, `ovf:capacity="8" `, `ovf:capacity="7" `)
	answer := trueupJSON[jsonPackageVerify](t, 5, "verify", source, dest)
	require.Empty(t, answer.Differences)
	require.Contains(t, answer.Disks[0].Differences[0].Text, "capacity of 7340032 bytes")
	replaceInFile(t, dest, `ovf:capacity="7" `, `ovf:capacity="8" `)
	replaceInFile(t, dest, `ovf:id="file3" ovf:size="8684"`, `ovf:id="file3" ovf:size="8685"`)
	require.Contains(t, trueupJSON[jsonPackageVerify](t, 5, "verify", source, dest).Differences[0], "8685 bytes")
}

// What was written is listed with its digest, of a package as of a disk.
func TestChecksumsAreReported(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "sha256sum")
	vm := twoDisks(t).ova(t)
	for name, source := range map[string]string{"copy.ova": vm, "copy.ovf": vm, "copy.vmdk": sampleDisk(t)} {
		copied := func(args ...string) (dest, stdout string) {
			dest = filepath.Join(t.TempDir(), name)
			sums := filepath.Join(t.TempDir(), "sums")
			r := trueup(t, append(args, "--checksums", sums, source, dest)...)
			require.Equal(t, 0, r.code, r.stderr)
			require.Contains(t, disktest.Run(t, "sha256sum", "--strict", "-c", sums), dest+": OK")
			return dest, r.stdout
		}
		for _, command := range []string{"align", "convert"} {
			_, object := copied(command, "--json")
			validate(t, object)
			require.Contains(t, object, `"checksums": [`)
		}
		dest, text := copied("align")
		digest, _, _ := strings.Cut(disktest.Run(t, "sha256sum", "-b", dest), " ")
		require.Contains(t, text, fmt.Sprintf("\n  SHA-256 %s  %s\n", digest, name))
		if suffix := filepath.Ext(name); source == vm {
			require.Contains(t, text, "govc import"+suffix+" -ds DATASTORE "+dest)
		}
	}
}
