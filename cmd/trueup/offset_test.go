package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// The partition of these disks starts at LBA 63.
const shiftedLength = 20000

// jsonOffset is what a user reads of the result of offset.
type jsonOffset struct {
	Offset struct {
		At                     int64 `json:"offset_bytes"`
		QEMU, Libvirt, Losetup string
		Partitions             []struct {
			Is string `json:"to_verdict"`
		}
	}
}

// shifted shifts the disk of source, and returns its options for QEMU as they are printed.
func shifted(t testing.TB, source, dest string) (o jsonOffset, options string) {
	t.Helper()
	o = trueupJSON[jsonOffset](t, 0, "offset", source, dest)
	return o, strings.Replace(strings.TrimPrefix(o.Offset.QEMU, "-blockdev "), "node-name=disk,", "", 1)
}

// requireSame requires that QEMU reads the disk of source in its shifted file.
func requireSame(t testing.TB, source string) {
	t.Helper()
	for _, name := range []string{"shifted.raw", "shifted.vmdk"} {
		_, options := shifted(t, source, filepath.Join(t.TempDir(), name))
		disktest.Run(t, "qemu-img", "compare", "--image-opts", "driver=raw,file.driver=file,file.filename="+source,
			options)
	}
}

// TestOffsetOfRefusedGuests shifts every kind of guest that align refuses: QEMU reads the same disk, and the storage
// finds its data on blocks.
func TestOffsetOfRefusedGuests(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   string
		kind   byte
		change func(disk, partition forge.Bytes)
	}{
		{"boot-code", 0x07, func(disk, _ forge.Bytes) { disk.Put(0, noise("code", 440)) }},
		{"encrypted-system", 0x07, func(disk, _ forge.Bytes) { disk.Text(6, "TrueCrypt Boot Loader") }},
		{"bitlocker", 0x07, func(_, partition forge.Bytes) { poolforge.PutBitLocker(partition, "PC C:", 0x0100) }},
		{"hibernated-linux", 0x82, func(_, partition forge.Bytes) { partition.Text(4086, "S1SUSPEND") }},
		{"ldm", 0x42, func(forge.Bytes, forge.Bytes) {}},
		{"array-of-disks", 0x83, func(disk, _ forge.Bytes) { poolforge.PutMD1(disk, "1.0", 20000) }},
	} {
		t.Run(c.code, func(t *testing.T) {
			disk := tableforge.NewMBR(20480, slot(c.kind, trackSectors, shiftedLength))
			disk.U8(tableforge.MBREntries, 0x80)
			fsforge.PutNTFS(disk, trackSectors, shiftedLength)
			c.change(disk, disk[trackSectors*sectorSize:][:shiftedLength*sectorSize])
			source := writeForged("disk.raw", disk)(t, t.TempDir())
			r := trueup(t, "align", source, filepath.Join(t.TempDir(), "none.raw"))
			require.Equal(t, 4, r.code, r.stdout)
			require.Contains(t, r.stderr, "trueup offset SOURCE DEST")
			require.Contains(t, refusalCodes(t, source), c.code)
			requireSame(t, source)
			dest := filepath.Join(t.TempDir(), "dest.raw")
			o, _ := shifted(t, source, dest)
			require.Equal(t, int64(65*sectorSize), o.Offset.At)
			require.Equal(t, 0, trueup(t, "inspect", "--offset", strconv.FormatInt(o.Offset.At, 10), dest).code)
		})
	}
}

// TestOffsetOfAHibernatedWindows shifts a system that no move can wake up.
func TestOffsetOfAHibernatedWindows(t *testing.T) {
	t.Parallel()
	source := windowsDisk{signature: windowsSignature, sectors: 100_000, volumes: []windowsVolume{{
		number: 1, kind: "ntfs", typ: "7", start: trackSectors, sectors: 80_000, loads: "NTLDR",
		files: map[string]string{"hiberfil.sys": hostFile(t, "hibr"+strings.Repeat("\x00", 8000))},
	}}}.make(t)
	require.Contains(t, refusalCodes(t, source), "hibernated")
	requireSame(t, source)
}

// TestShiftedDiskBoots starts a disk in its shifted file. It shows the same as the plain disk, and as its aligned copy.
func TestShiftedDiskBoots(t *testing.T) {
	t.Parallel()
	dest := filepath.Join(t.TempDir(), "shifted.raw")
	o, _ := shifted(t, bootDisk{code: assembled(ownLBACode), fat: 16, heads: 16}.raw(t), dest)
	require.Positive(t, o.Offset.At)
	flags := append([]string{"--offset", strconv.FormatInt(o.Offset.At, 10)}, loaderFlags...)
	judged{func(testing.TB) string { return dest }, flags, booted, nil}.run(t)
}

// TestRefusedGuestBootsInItsShiftedFile starts a guest that align refuses: it shows the same from both files.
func TestRefusedGuestBootsInItsShiftedFile(t *testing.T) {
	t.Parallel()
	raw, dest := bootDisk{code: assembled(ownLBACode), fat: 16, heads: 16, data: true}.raw(t),
		filepath.Join(t.TempDir(), "shifted.raw")
	disktest.Run(t, "sfdisk", "--quiet", "--part-type", raw, "2", "82")
	disktest.WriteAt(t, raw, windowOf(t, raw, 2).start*sectorSize+4086, []byte("S1SUSPEND"))
	o, _ := shifted(t, raw, dest)
	boot := func(code int, flags ...string) jsonTrial {
		return trueupJSON[jsonTrial](t, code, slices.Concat([]string{"boot", "--accel", "tcg"}, loaderFlags, flags)...)
	}
	boot(4, raw)
	plain, is := boot(0, "--as-is", raw), boot(0, "--as-is", "--offset", strconv.FormatInt(o.Offset.At, 10), dest)
	require.Nil(t, is.After)
	require.Contains(t, is.Before.shown(), booted)
	last := func(r jsonTrial) []string { return r.Before.Screens[len(r.Before.Screens)-1].Lines }
	require.Equal(t, last(plain), last(is))
}

// TestOffsetSavesBlocks counts the blocks of the storage that QEMU touches for the clusters of a guest.
func TestOffsetSavesBlocks(t *testing.T) {
	t.Parallel()
	source, dest := filepath.Join(t.TempDir(), "disk.raw"), filepath.Join(t.TempDir(), "shifted.raw")
	require.Equal(t, 0, trueup(t, "convert", "--to", "raw", sampleDisk(t), source).code)
	_, options := shifted(t, source, dest)
	require.InDelta(t, 2, blocksTouched(t, "driver=raw,file.driver=file,file.filename="+source), 0)
	require.InDelta(t, 1, blocksTouched(t, options), 0)
}

// request matches a read or a write of one cluster in the trace of QEMU.
var request = regexp.MustCompile(`p(?:read|write)(?:64|v)\(.*, (\d+)\) += 4096\n`)

// blocksTouched returns the blocks of 4 KiB that QEMU touches on average for a cluster of the partition at LBA 63.
func blocksTouched(t testing.TB, options string) float64 {
	t.Helper()
	const clusters = 16
	trace := filepath.Join(t.TempDir(), "trace")
	args := []string{"-f", "-o", trace, "-e", "trace=pread64,preadv,pwrite64,pwritev", disktest.Tool(t, "qemu-io")}
	for i := range clusters {
		off := trackSectors*sectorSize + int64(i)*28<<10
		args = append(args, "-c", fmt.Sprintf("%s %d 4k", []string{"read", "write"}[i%2], off))
	}
	disktest.Run(t, "strace", append(args, "--image-opts", options)...)
	calls := request.FindAllStringSubmatch(string(disktest.ReadFile(t, trace)), -1)
	require.Len(t, calls, clusters)
	touched := int64(0)
	for _, call := range calls {
		off, err := strconv.ParseInt(call[1], 10, 64)
		require.NoError(t, err)
		touched += (off+4095)/4096 - off/4096 + 1
	}
	return float64(touched) / clusters
}

// TestOffsetForLibvirt holds the lines for libvirt against its schema, also with a name that needs quoting.
func TestOffsetForLibvirt(t *testing.T) {
	t.Parallel()
	dest := filepath.Join(t.TempDir(), "a'b,<c> d.img")
	o := trueupJSON[jsonOffset](t, 0, "offset", sampleDisk(t), dest)
	domain := filepath.Join(t.TempDir(), "domain.xml")
	require.NoError(t, os.WriteFile(domain, []byte(`<domain type="qemu"><name>vm</name><memory>65536</memory>`+
		`<os><type>hvm</type></os><devices><disk type="file" device="disk"><driver name="qemu" type="raw"/>`+
		o.Offset.Libvirt+`<target dev="vda" bus="virtio"/></disk></devices></domain>`), 0o600))
	require.Contains(t, disktest.Output(t, "xmllint", "--xpath", "string(//source/@file)", domain), dest)
	disktest.Run(t, "virt-xml-validate", domain, "domain")
}

// TestOffsetForLosetup attaches a shifted disk with the options of the line for losetup.
func TestOffsetForLosetup(t *testing.T) {
	t.Parallel()
	source, dest := sampleDisk(t), filepath.Join(t.TempDir(), "a'b,<c> d.img")
	o := trueupJSON[jsonOffset](t, 0, "offset", source, dest)
	args := strings.Split(strings.TrimSpace(disktest.Output(t, "sh", "-c", `losetup() { printf '%s\n' "$@"; }; `+
		o.Offset.Losetup)), "\n")
	options, file := args[:len(args)-1], args[len(args)-1]
	require.Equal(t, dest, file)
	require.Equal(t, []string{"--find", "--show"}, options[:2])
	disktest.Run(t, "qemu-img", "compare", "-F", "raw", source, disktest.LoopDevice(t, dest, options[2:]...))
}

// TestPlacesInFixedDisks finds the bytes of a partition where inspect has it in the file of a fixed VHD and VHDX.
func TestPlacesInFixedDisks(t *testing.T) {
	t.Parallel()
	raw := tableforge.NewMBR(20480, slot(0x83, trackSectors, shiftedLength))
	raw.Text(trackSectors*sectorSize, "the first bytes of the partition")
	source := writeForged("disk.raw", raw)(t, t.TempDir())
	for format, options := range map[string]string{"vpc": "subformat=fixed,force_size=on", "vhdx": "subformat=fixed"} {
		file := filepath.Join(t.TempDir(), "fixed")
		disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", format, "-o", options, source, file)
		r := trueupJSON[struct {
			Partitions []struct {
				Start  int64 `json:"start_bytes"`
				InFile int64 `json:"file_start_bytes"`
			}
		}](t, 3, "inspect", file)
		require.Len(t, r.Partitions, 1)
		at := cmp.Or(r.Partitions[0].InFile, r.Partitions[0].Start)
		require.Equal(t, raw[trackSectors*sectorSize:][:512], forge.Bytes(readAt(t, file, at, 512)), format)
	}
}

// TestOffsetInALibvirtGuest has a guest of libvirt write to its disk through the slice of the result.
func TestOffsetInALibvirtGuest(t *testing.T) {
	t.Parallel()
	d, dest := newHandedDisk(t, "a"), filepath.Join(t.TempDir(), "a'b,<c> d.img")
	o, _ := shifted(t, d.source, dest)
	uri, start := defineGuest(t, "<driver name='qemu' type='raw'/>"+o.Offset.Libvirt)
	g := start()
	g.ask(t, guestRequest{Op: "mount", Source: d.device, Target: d.mount, Type: "ext4"})
	for n := range 4 {
		d.write(t, g, n)
	}
	g.ask(t, guestRequest{Op: "umount", Target: d.mount})
	g.powerOff(t)
	disktest.WaitFor(t, "the end of QEMU", func() bool {
		return strings.HasPrefix(disktest.Output(t, "virsh", "-c", uri, "domstate", "guest"), "shut off")
	})
	plain := filepath.Join(t.TempDir(), "plain.raw")
	r := trueup(t, "convert", "--offset", strconv.FormatInt(o.Offset.At, 10), dest, plain)
	require.Equal(t, 0, r.code, r.stderr)
	d.requireFiles(t, plain, trackSectors)
}

// TestOffsetOnDevice writes onto a device, whose old table is gone, and attaches the disk as the result says. A guest
// writes through it, and the file system is sound in the file and in the plain disk.
func TestOffsetOnDevice(t *testing.T) {
	t.Parallel()
	const size = 12 << 20
	raw := tableforge.NewMBR(20480, slot(0x83, trackSectors, shiftedLength))
	part := filepath.Join(t.TempDir(), "part")
	disktest.MakeBlank(t, part, shiftedLength*sectorSize)
	disktest.Run(t, "mkfs.ext4", "-q", "-b", "4096", part)
	raw.Put(trackSectors*sectorSize, disktest.ReadFile(t, part))
	source := writeForged("disk.raw", raw)(t, t.TempDir())
	device, file := destDevice(t, size)
	require.NoError(t, os.WriteFile(file, append(raw, make([]byte, size-len(raw))...), 0o600))
	r := trueup(t, "offset", source, device)
	require.Equal(t, 4, r.code)
	flag := overwriteFlag.FindStringSubmatch(r.stderr)
	o := trueupJSON[jsonOffset](t, 0, "offset", "--overwrite-content", flag[1], source, device)
	require.Equal(t, make([]byte, o.Offset.At), readAt(t, file, 0, o.Offset.At))
	require.Equal(t, []byte(raw), readAt(t, file, o.Offset.At, int64(len(raw))))
	require.Contains(t, trueup(t, "inspect", "--offset", "65s", device).stdout, "Aligned by offset")

	folder := t.TempDir()
	guest := disktest.LoopDevice(t, file, "--offset", strconv.FormatInt(o.Offset.At+trackSectors*sectorSize, 10),
		"--sizelimit", strconv.Itoa(shiftedLength*sectorSize))
	disktest.Run(t, "unshare", "--mount", "sh", "-ec", `mount "$1" "$2"; cp "$0" "$2"/written; umount "$2"`,
		source, guest, folder)
	disktest.Run(t, "e2fsck", "-fn", guest)
	back := filepath.Join(t.TempDir(), "back.raw")
	require.Equal(t, 0, trueup(t, "convert", "--offset", "65s", device, back).code)
	disktest.Run(t, "e2fsck", "-fn", fmt.Sprintf("%s?offset=%d", back, trackSectors*sectorSize))
}

// TestOffsetOfSlices shifts tables that no program rewrites. The place of each slice in the file decides, and its place
// on the disk in a plain copy.
func TestOffsetOfSlices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lba          uint32
		shift        int
		is, plan     int // exit codes
		verdict, row string
		finding      string
	}{
		{63, 65 * sectorSize, 0, 4, "Aligned by offset", `8255\s+2 MiB\s+yes`, `at byte 65536 of the file, a\s+mult`},
		{128, sectorSize, 3, 0, "Misaligned", `8320\s+2 MiB\s+no`, `at byte 66048 of the file, 512 bytes past`},
	} {
		disk := make(forge.Bytes, 8<<20)
		tableforge.PutDisklabel(disk, sectorSize, tableforge.Slice{Start: c.lba, Sectors: 2048, Type: 7},
			tableforge.Slice{Start: c.lba + 8192, Sectors: 4096, Type: 7})
		file := writeForged("disk.raw", append(make(forge.Bytes, c.shift), disk...))(t, t.TempDir())
		offset := strconv.Itoa(c.shift)
		r := trueup(t, "inspect", "--offset", offset, file)
		require.Equal(t, c.is, r.code, r.stdout)
		require.Contains(t, r.stdout, c.verdict)
		require.Regexp(t, c.row, r.stdout)
		require.Regexp(t, c.finding, r.stdout)
		require.NotContains(t, r.stdout, "misaligned inside")
		require.Equal(t, c.plan, trueup(t, "plan", "--offset", offset, file).code)
		plain := filepath.Join(t.TempDir(), "plain.raw")
		require.Equal(t, 0, trueup(t, "convert", "--offset", offset, file, plain).code)
		require.Equal(t, 3-c.is, trueup(t, "inspect", plain).code)
	}
}

// TestProofOfAGPTOnADevice proves a GPT on a larger device by the command of the result. Its backup is at the end of
// the disk, and not of the device.
func TestProofOfAGPTOnADevice(t *testing.T) {
	t.Parallel()
	raw := filepath.Join(t.TempDir(), "gpt.raw")
	require.Equal(t, 0, trueup(t, "convert", "--to", "raw", gptBootDisk(t), raw).code)
	st, err := os.Stat(raw)
	require.NoError(t, err)
	device, file := destDevice(t, st.Size()+3<<20)
	at := strconv.FormatInt(trueupJSON[jsonOffset](t, 0, "offset", raw, device).Offset.At, 10)
	require.NotEqual(t, "0", at)
	r := trueup(t, "verify", "--dest-offset", at, raw, device)
	require.Equal(t, 0, r.code, r.stdout)
	disktest.WriteAt(t, file, st.Size(), []byte("other"))
	require.Equal(t, 5, trueup(t, "verify", "--dest-offset", at, raw, device).code)
}
