package windows

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// fuzzDevice is the content of a plain element: no GUID, then a partition of an MBR disk at LBA 63.
func fuzzDevice() forge.Bytes {
	d := make(forge.Bytes, 0x58)
	d.U32(0x10, devicePartition)
	d.U32(0x18, deviceLength)
	d.U64(0x20, 63*512)
	d.U32(0x34, styleMBR)
	d.U32(0x38, 0x1b2c3d4e)
	return d
}

// Devices are inside their element, do not overlap, and are found again with another offset.
func FuzzBootDevices(f *testing.F) {
	f.Add([]byte(fuzzDevice()))
	f.Add(append(make([]byte, 0x34), fuzzDevice()...))
	f.Add([]byte(append(fuzzDevice(), fuzzDevice()...)))
	f.Fuzz(func(t *testing.T, data []byte) {
		at, found := devices(data)
		require.Len(t, found, len(at))
		changed := bytes.Clone(data)
		for i, off := range at {
			require.LessOrEqual(t, off+deviceLength, int64(len(data)))
			require.Equal(t, found[i].Offset, binary.LittleEndian.Uint64(data[off+deviceOffset:]))
			if i > 0 && off < at[i-1]+deviceLength {
				return // one inside of another; references that lie over each other are refused by Read
			}
			binary.LittleEndian.PutUint64(changed[off+deviceOffset:], 1<<20)
		}
		again, _ := devices(changed)
		require.Equal(t, at, again)
	})
}

const fuzzAgent = "<?xml version='1.0'?>\n<WindowsRE version=\"2.0\">\n  <WinreLocation path=\"\\Recovery\" id=\"0\" " +
	"offset=\"32256\" guid=\"{0}\"/>\n" +
	"  <!-- <ALocation offset='1'/> --><ImageLocation offset='65536'/></WindowsRE>"

// The output of Encode has the same length, the same tags, and the new number in place.
func FuzzReAgent(f *testing.F) {
	f.Add([]byte(fuzzAgent), int64(1<<20))
	f.Add([]byte("\ufeff"+fuzzAgent), int64(512))
	f.Add([]byte("\x00  <Location offset=\"00000\">"), int64(1<<20)) // like UTF-16 without white space
	wide := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(fuzzAgent)) {
		wide = binary.LittleEndian.AppendUint16(wide, u)
	}
	f.Add(wide, int64(1<<20))
	f.Fuzz(func(t *testing.T, raw []byte, to int64) {
		if to < 0 {
			return
		}
		text, in := decodeText(raw)
		all := locations(text)
		for i, l := range all {
			from, end := in.start+int64(l.from*in.unit), in.start+int64(l.to*in.unit)
			require.LessOrEqual(t, end, int64(len(raw)))
			b, err := stretch{in, l.tag - l.from, l.number - l.from, l.to - l.from}.encode(raw[from:end], to)
			if err != nil {
				continue
			}
			require.Len(t, b, int(end-from))
			changed := bytes.Clone(raw)
			copy(changed[from:], b)
			now, _ := decodeText(changed)
			again := locations(now)
			require.Len(t, again, len(all))
			require.Equal(t, l.name, again[i].name)
			require.Equal(t, l.id, again[i].id)
			require.Equal(t, to, again[i].offset)
			require.Equal(t, l.to, again[i].to, "the number ends where it did")
		}
	})
}

// An untrusted menu refers only to existing partitions, and to no file outside the volume.
func FuzzBootIni(f *testing.F) {
	f.Add([]byte("[boot loader]\ndefault=multi(0)disk(0)rdisk(0)partition(1)\\WINDOWS\n" +
		"[operating systems]\nC:\\BOOTSECT.DOS=\"MS-DOS\"\n"))
	f.Fuzz(func(t *testing.T, menu []byte) {
		g := &boot.Guest{Partitions: []boot.Partition{
			{Partition: table.Partition{Number: 1, Kind: table.Primary}},
			{Partition: table.Partition{Number: 5, Kind: table.Logical}},
		}}
		var found boot.Found
		checkArc(&found, g, g.Partitions[0], menu)
		for _, l := range found.Chain {
			require.Contains(t, []int{1, 5}, l.Partition)
		}
		require.LessOrEqual(t, len(found.Chain)+len(found.Issues), maxSaved)
		for _, name := range savedPaths(menu) {
			require.NotContains(t, name, ":")
			require.LessOrEqual(t, len(strings.Split(name, "/")), 129)
		}
	})
}

// Partitions in the registry of Windows NT are inside the value, one after the other, and are found again after a
// change of their starts.
func FuzzDiskInformation(f *testing.F) {
	one := make(forge.Bytes, 44+4+8+52)
	one.U32(0, diskVersion)
	one.U32(12, 44)
	one.U32(16, uint32(len(one)-44))
	one.U16(44, 1)
	one.U16(48, 1)
	one.U32(56, notFTMember)
	one.U64(64, 63*512)
	f.Add([]byte(one))
	f.Fuzz(func(t *testing.T, data []byte) {
		parts, err := knownPartitions(data)
		if err != nil {
			require.True(t, ondisk.Understood(err), err)
			return
		}
		changed, end := bytes.Clone(data), int64(0)
		for _, p := range parts {
			require.GreaterOrEqual(t, p.start, end)
			end = p.start + 8
			require.LessOrEqual(t, end, int64(len(data)))
			binary.LittleEndian.PutUint64(changed[p.start:], 1<<20)
		}
		again, err := knownPartitions(changed)
		require.NoError(t, err)
		require.Equal(t, parts, again)
	})
}

// Sizes of the structures, packed by 4 as their headers say.
func TestDiskInformationSizes(t *testing.T) {
	require.Equal(t, []int{44, 4, 8, 52}, []int{
		binary.Size(diskConfig{}), binary.Size(diskRegistry{}), binary.Size(diskDescription{}),
		binary.Size(diskPartition{}),
	})
}

// The number of log entries kept for their hashes is limited, and no position is outside a value.
func TestSealsAreBounded(t *testing.T) {
	made := func(data string) forge.Bytes {
		return hiveforge.New(3, hiveforge.Key{Name: "root", Keys: []hiveforge.Key{
			{Name: "key", Values: []hiveforge.Value{{Name: "v", Type: regBinary, Data: []byte(data)}}},
		}})
	}
	was, is := made("before it"), made("behind it")
	h := &guestHive{}
	var err error
	h.recovery, err = hive.NewBudget().Recover(bytes.NewReader(hiveforge.Dirty(was, 7)),
		hive.Log{Name: "log", Source: bytes.NewReader(hiveforge.Log(was, 6, is))})
	require.NoError(t, err)
	require.NoError(t, h.recovery.Each(func(state *hive.Hive) error {
		h.Hive = state
		return nil
	}))
	key, err := h.Key("key")
	require.NoError(t, err)
	v, err := key.Value("v")
	require.NoError(t, err)
	_, _, err = h.position("kind", v, 2)
	require.ErrorIs(t, err, fs.ErrInvalid)

	at, err := v.Where(0, 8)
	require.NoError(t, err)
	h.at, h.seals, h.bytes = map[int64][]int{}, map[sealed]*boot.Seal{}, maxSealed
	err = h.add(boot.Ref{Target: 1, At: []disk.Range{{Len: 8}}}, h.Places(at[0]))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "log entries of a registry hive")
	require.Empty(t, h.refs)
}
