package ovf

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// odd is an envelope as no tool formats it and every XML parser reads it: other prefixes, both kinds of quotes,
// blanks around equal signs, comments, CDATA and references that look like attributes.
const odd = `<?xml version='1.0' encoding="UTF-8"?>
<!-- <File ovf:href="no.vmdk" ovf:id="no" ovf:size="1"/> -->
<o:Envelope xmlns:o='http://schemas.dmtf.org/ovf/envelope/1' xmlns:v="http://www.vmware.com/schema/ovf">
 <o:References>
  <o:File o:href = "a b.vmdk"
          o:size
          = '1000' o:id='f1' v:size="7" note='x="o:size=&quot;9&quot;"'/>
  <o:File o:id="f2" o:href="b&#45;2.vmdk"></o:File>
 </o:References>
 <o:DiskSection>
  <o:Info><![CDATA[<o:Disk o:diskId="no" o:capacity="1"/>]]></o:Info>
  <o:Disk o:diskId="d1" o:fileRef="f1" o:capacity=' &#49;0 ' o:capacityAllocationUnits="byte * 2^30"
   o:populatedSize="5" o:format="u"/>
  <o:Disk o:diskId="d2" o:fileRef="f2" capacity="4096" o:parentRef="d1"/>
  <o:Disk o:diskId="d3" o:capacity="${size}"/>
 </o:DiskSection>
 <v:References><v:File v:id="f9" v:href="c"/></v:References>
</o:Envelope>
<!-- end -->`

func TestOddFormatting(t *testing.T) {
	e, err := Parse([]byte(odd))
	require.NoError(t, err)
	require.Len(t, e.Files, 2)
	require.Equal(t, "a b.vmdk", e.Files[0].Href)
	require.Equal(t, int64(1000), e.Files[0].Size)
	require.Equal(t, "b-2.vmdk", e.Files[1].Href)
	require.Equal(t, int64(-1), e.Files[1].Size)
	require.Len(t, e.Disks, 3)
	require.Equal(t, int64(10<<30), e.Disks[0].Capacity)
	require.Equal(t, int64(5), e.Disks[0].PopulatedSize)
	require.Equal(t, "d1", e.Disks[1].ParentRef)
	require.Equal(t, int64(4096), e.Disks[1].Capacity)
	require.Equal(t, int64(-1), e.Disks[2].Capacity)
	require.True(t, Looks([]byte(odd)))
}

// An envelope in another character set is read and written as the same text in UTF-8. Bytes by MAPPINGS/VENDORS/MICSFT
// of unicode.org.
func TestOtherEncodings(t *testing.T) {
	text := func(charset, quote, href string) string {
		return "<?xml version='1.0' encoding = " + quote + charset + quote + "?>\n" +
			envelope(`<File ovf:id="f" ovf:href="`+href+`.vmdk"/>`, "")
	}
	for _, tc := range []struct{ charset, stored, text string }{
		{"windows-1252", "B\xfcro", "Büro"},
		{"ISO-8859-1", "B\xfcro", "Büro"},
		{"windows-1251", "\xc1\xfe", "Бю"},
		{"GBK", "\xcf\xb5", "系"},
		{"Shift_JIS", "\x95\x5c", "表"},
	} {
		for _, quote := range []string{`"`, "'"} {
			e, err := Parse([]byte(text(tc.charset, quote, tc.stored)))
			require.NoError(t, err, tc.charset)
			require.Equal(t, tc.text+".vmdk", e.Files[0].Href, tc.charset)
			require.Equal(t, text("UTF-8", quote, tc.text), string(e.Bytes()))
			e.SetHref("f", "é.vmdk")
			require.Equal(t, text("UTF-8", quote, "é"), string(e.Bytes()))
		}
	}
	ascii := text("us-ascii", `"`, "plain")
	e, err := Parse([]byte(ascii))
	require.NoError(t, err)
	require.Equal(t, ascii, string(e.Bytes()))
}

// Only the values that are set change, wherever they stand and whatever looks like them.
func TestEditsLeaveTheRest(t *testing.T) {
	e, err := Parse([]byte(odd))
	require.NoError(t, err)
	require.Equal(t, odd, string(e.Bytes()))
	e.SetFileSize("f1", 123456)
	e.SetFileSize("f2", 99) // states none
	require.NoError(t, e.SetCapacity("d1", 11<<30))
	e.SetPopulatedSize("d1", 77)
	e.SetPopulatedSize("d2", 77)
	want := strings.NewReplacer(`= '1000'`, `= '123456'`, `' &#49;0 '`, `'11'`, `o:populatedSize="5"`,
		`o:populatedSize="77"`).Replace(odd)
	require.Equal(t, want, string(e.Bytes()))
	require.Equal(t, odd, string(e.Fork().Bytes()))

	again, err := Parse(e.Bytes())
	require.NoError(t, err)
	require.Equal(t, int64(11<<30), again.Disks[0].Capacity)
	require.Equal(t, string(e.Shape()), string(again.Shape()))

	require.NoError(t, e.SetCapacity("d1", 11<<30+512), "set twice, and no multiple of the unit")
	want = strings.NewReplacer(`'11'`, `'11811160576'`, "byte * 2^30", "byte").Replace(want)
	require.Equal(t, want, string(e.Bytes()))
	require.NoError(t, e.SetCapacity("d2", 8192), "no unit is stated, bytes are meant")
	require.Contains(t, string(e.Bytes()), `o:fileRef="f2" capacity="8192"`)
	require.ErrorIs(t, e.SetCapacity("d3", 1), ondisk.ErrUnsupported)
}

// A capacity keeps its unit if that divides it, and is in bytes otherwise.
func TestCapacitiesKeepTheirUnit(t *testing.T) {
	for unit, want := range map[string]string{
		"byte": "17825792", "byte * 2^20": "17", "byte * 2^9": "34816", "byte * 2^10": "17408",
		"byte * 2 ^ 7": "139264", "byte * 10^3": "",
	} {
		e, err := Parse([]byte(strings.Replace(odd, "byte * 2^30", unit, 1)))
		require.NoError(t, err)
		require.NoError(t, e.SetCapacity("d1", 17<<20))
		if want == "" {
			unit, want = "byte", "17825792"
		}
		require.Contains(t, string(e.Bytes()), fmt.Sprintf(`o:capacity='%s' o:capacityAllocationUnits=%q`, want, unit))
	}
}

// old is an envelope of OVF 0.9 as VMware's tools wrote it from 2007 to 2009: sections by their type, and no name
// space on anything but the root and attributes.
const old = `<?xml version="1.0" encoding="UTF-8"?>
<ovf:Envelope xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
 xmlns:ovf="http://www.vmware.com/schema/ovf/1/envelope" ovf:version="0.9">
 <References><File ovf:href="a.vmdk" ovf:id="file1" ovf:size="1000"/></References>
 <Section xsi:type="ovf:DiskSection_Type">
  <Info>Disks</Info>
  <Disk ovf:capacity="8589934592" ovf:diskId="d1" ovf:fileRef="file1"
   ovf:format="http://www.vmware.com/specifications/vmdk.html#sparse" ovf:populatedSize="5"/>
 </Section>
 <Section xsi:type="ovf:AnnotationSection_Type"><Disk ovf:capacity="1" ovf:diskId="no"/></Section>
</ovf:Envelope>`

func TestOldEnvelopes(t *testing.T) {
	for name, text := range map[string]string{
		"of vmware": old,
		"with a default prefix": strings.NewReplacer("xmlns:ovf=",
			`xmlns="http://www.vmware.com/schema/ovf/1/envelope" xmlns:ovf=`, "<ovf:", "<", "</ovf:",
			"</").Replace(old),
		"of virtualbox": strings.ReplaceAll(old, "http://www.vmware.com/schema/ovf/1/envelope",
			"http://schemas.dmtf.org/ovf/envelope/1"),
		"of ovirt": strings.NewReplacer("http://www.vmware.com/schema/ovf/1/envelope",
			"http://schemas.dmtf.org/ovf/envelope/1/", `fileRef="file1"`, `fileRef="a.vmdk"`).Replace(old),
		"a type of no prefix": strings.ReplaceAll(old, `"ovf:DiskSection_Type"`, `"DiskSection_Type"`),
	} {
		t.Run(name, func(t *testing.T) {
			e, err := Parse([]byte(text))
			require.NoError(t, err)
			require.Len(t, e.Disks, 1)
			require.Equal(t, int64(8<<30), e.Disks[0].Capacity)
			require.Equal(t, "a.vmdk", e.File(e.Disks[0].FileRef).Href)
			e.SetFileSize("file1", 123456)
			require.NoError(t, e.SetCapacity("d1", 9<<30))
			e.SetPopulatedSize("d1", 77)
			require.Equal(t, strings.NewReplacer(`"1000"`, `"123456"`, `"8589934592"`, `"9663676416"`, `Size="5"`,
				`Size="77"`).Replace(text), string(e.Bytes()))
		})
	}
	e, err := Parse([]byte(strings.Replace(old, `ovf:capacity="8589934592"`, `ovf:size="8"`, 1)))
	require.NoError(t, err, "oVirt states a size in GiB")
	require.Equal(t, int64(-1), e.Disks[0].Capacity)
	require.ErrorIs(t, e.SetCapacity("d1", 1), ondisk.ErrUnsupported)
}

func TestUnits(t *testing.T) {
	for text, want := range map[string]int64{
		"": 1, "byte": 1, "byte * 2^30": 1 << 30, "byte*2^20": 1 << 20, "Byte * 1024": 1024, "byte * 10^9": 1e9,
		"byte * 2^10 * 2^10": 1 << 20, "MegaBytes": 1 << 20, "GigaBytes": 1 << 30, "byte * 2^0": 1,
	} {
		got, err := parseUnits(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"bit", "byte * 2^63", "byte * 2^-1", "byte * 0", "byte * ", "byte * 2^40 * 2^40",
		"2^30 * byte", "byte * 9^9999", "byte ^ 2",
	} {
		_, err := parseUnits(text)
		require.Error(t, err, text)
	}
}

// envelope returns a small one with the given insides of References and DiskSection.
func envelope(files, disks string) string {
	return fmt.Sprintf(
		`<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">`+
			`<References>%s</References><DiskSection>%s</DiskSection></Envelope>`, files, disks)
}

// What an envelope must not make us do, and what it cannot be.
func TestHostileEnvelopes(t *testing.T) {
	file := func(attrs string) string { return envelope(`<File ovf:id="f" ovf:href="x" `+attrs+`/>`, "") }
	disk := func(attrs string) string {
		return envelope(`<File ovf:id="f" ovf:href="x"/>`,
			`<Disk ovf:diskId="d" ovf:fileRef="f" ovf:capacity="1" `+attrs+`/>`)
	}
	for name, c := range map[string]struct {
		text string
		kind error
	}{
		"nothing":               {"", ondisk.ErrFormat},
		"no envelope":           {"<a/>", ondisk.ErrFormat},
		"two envelopes":         {envelope("", "") + envelope("", ""), ondisk.ErrFormat},
		"cut":                   {odd[:len(odd)/2], ondisk.ErrFormat},
		"of another name space": {`<Envelope xmlns="urn:x"/>`, ondisk.ErrFormat},
		"an entity of its own":  {envelope(`<File ovf:id="f" ovf:href="&x;"/>`, ""), ondisk.ErrFormat},
		"a document type": {
			`<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/passwd">]>` + envelope("", ""),
			ondisk.ErrReference,
		},
		"a million nested elements": {strings.Repeat("<a>", 1e6), ondisk.ErrFormat},
		"deep inside of the envelope": {strings.Replace(envelope("", ""), "<References>",
			"<References>"+strings.Repeat("<a>", 1e6), 1), ondisk.ErrLimit},
		"too long":            {envelope(strings.Repeat(" ", MaxText), ""), ondisk.ErrLimit},
		"too many attributes": {envelope("<a "+strings.Repeat(`b="" `, 1e6)+"/>", ""), ondisk.ErrLimit},
		"too many files":      {envelope(strings.Repeat("<File/>", maxItems+1), ""), ondisk.ErrLimit},
		"too many disks": {
			envelope("", strings.Repeat(`<Disk ovf:capacity="1"/>`, maxItems+1)),
			ondisk.ErrLimit,
		},
		"another encoding":   {`<?xml version="1.0" encoding="UTF-16"?>` + envelope("", ""), ondisk.ErrUnsupported},
		"a size below zero":  {file(`ovf:size="-1"`), ondisk.ErrFormat},
		"a size above 2^63":  {file(`ovf:size="9223372036854775808"`), ondisk.ErrFormat},
		"an attribute twice": {file(`ovf:size="1" size="2"`), ondisk.ErrFormat},
		"an id twice":        {envelope(strings.Repeat(`<File ovf:id="f" ovf:href="x"/>`, 2), ""), ondisk.ErrFormat},
		"an href twice": {
			envelope(`<File ovf:id="f" ovf:href="x"/><File ovf:id="g" ovf:href="x"/>`, ""),
			ondisk.ErrFormat,
		},
		"a disk twice": {
			envelope("", strings.Repeat(`<Disk ovf:diskId="d" ovf:capacity="1"/>`, 2)),
			ondisk.ErrFormat,
		},
		"a disk without a file": {
			envelope("", `<Disk ovf:diskId="d" ovf:fileRef="f" ovf:capacity="1"/>`),
			ondisk.ErrFormat,
		},
		"no capacity":           {envelope("", `<Disk ovf:diskId="d"/>`), ondisk.ErrFormat},
		"a unit that overflows": {disk(`ovf:capacityAllocationUnits="byte * 2^63"`), ondisk.ErrFormat},
		"a capacity that overflows": {strings.Replace(disk(`ovf:capacityAllocationUnits="byte * 2^62"`),
			`capacity="1"`, `capacity="2"`, 1), ondisk.ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			require.ErrorIs(t, err, c.kind)
			require.Less(t, len(err.Error()), 1500)
			require.NotContains(t, err.Error(), "\x1b")
			require.NotContains(t, err.Error(), "xml:", "the words of a library")
		})
	}
}

func FuzzOVF(f *testing.F) {
	f.Add([]byte(odd))
	f.Add([]byte(old))
	f.Add([]byte(envelope(`<File ovf:id="f" ovf:href="x" ovf:size="1" ovf:chunkSize="2" ovf:compression="gzip"/>`,
		`<Disk ovf:diskId="d" ovf:fileRef="f" ovf:capacity="1"/>`)))
	f.Add([]byte("<?xml version=\"1.0\" encoding=\"us-ascii\"?>\n<Envelope " +
		"xmlns='http://schemas.dmtf.org/ovf/envelope/2'><References/></Envelope>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := Parse(text)
		if err != nil {
			return
		}
		require.Equal(t, string(text), string(e.Bytes()))
		for _, x := range e.Files {
			e.SetFileSize(x.ID, 1<<40)
		}
		for _, d := range e.Disks {
			e.SetPopulatedSize(d.ID, 1<<41)
			if d.Capacity >= 0 {
				require.NoError(t, e.SetCapacity(d.ID, 1<<42))
			}
		}
		again, err := Parse(e.Bytes())
		require.NoError(t, err, "%q", e.Bytes())
		require.Equal(t, string(e.Shape()), string(again.Shape()))
		for i, x := range again.Files {
			require.True(t, x.Size == 1<<40 || x.Size == -1)
			require.Equal(t, e.Files[i].Href, x.Href)
		}
		for _, d := range again.Disks {
			require.True(t, d.Capacity == 1<<42 || d.Capacity == -1)
		}
	})
}

// The digests are those of "abc": FIPS 180-4, examples.
const (
	abc1   = "a9993e364706816aba3e25717850c26c9cd0d89d"
	abc256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	manual = "SHA1(vm.ovf)= " + abc1 +
		"\r\nSHA256 (disk (1).vmdk) = BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD\n\n" +
		"  SHA-256(a)=" + abc256 + "\nMD5(b)= 900150983cd24fb0d6963f7d28e17f72"
)

func TestManifest(t *testing.T) {
	m, err := ParseManifest([]byte(manual))
	require.NoError(t, err)
	require.Len(t, m.Digests, 4)
	var names []string
	for _, d := range m.Digests {
		names = append(names, d.Algorithm+" "+d.Name)
		if d.New != nil {
			h := d.New()
			h.Write([]byte("abc"))
			require.Equal(t, d.Sum, h.Sum(nil), d.Name)
		}
	}
	require.Equal(t, []string{"SHA1 vm.ovf", "SHA256 disk (1).vmdk", "SHA-256 a", "MD5 b"}, names)
	require.Nil(t, m.Digests[3].New)
}

// Lines keep their order, their spacing, their ends and the case of their digits.
func TestManifestKeepsItsStyle(t *testing.T) {
	m, err := ParseManifest([]byte(manual))
	require.NoError(t, err)
	same := func(n string) string { return n }
	require.Equal(t, manual, string(m.Rewrite(func(Digest) []byte { return nil }, same)))
	require.Equal(t, manual, string(m.Rewrite(func(d Digest) []byte { return d.Sum }, same)))
	sum := sha256.Sum256([]byte("\xff"))
	got := string(m.Rewrite(func(d Digest) []byte {
		if strings.HasPrefix(d.Name, "disk") {
			return sum[:]
		}
		return nil
	}, func(n string) string { return strings.Replace(n, "vm.ovf", "new.ovf", 1) }))
	// printf '\xff' | sha256sum
	digits := strings.ToUpper("a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89")
	want := strings.Replace(strings.Replace(manual, "vm.ovf", "new.ovf", 1), strings.ToUpper(abc256), digits, 1)
	require.Equal(t, want, got)
}

func TestHostileManifests(t *testing.T) {
	for text, kind := range map[string]error{
		"SHA1(x)":                           ondisk.ErrFormat,
		"SHA1(x)= " + abc256:                ondisk.ErrFormat,
		"SHA1(x)= 0":                        ondisk.ErrFormat,
		"\x00\x01":                          ondisk.ErrFormat,
		"SHA1(../x)= " + abc1:               ondisk.ErrReference,
		"SHA1(/etc/passwd)= " + abc1:        ondisk.ErrReference,
		`SHA1(..\x)= ` + abc1:               ondisk.ErrReference,
		"SHA1(http://x)= " + abc1:           ondisk.ErrReference,
		"SHA1(a/../../x)= " + abc1:          ondisk.ErrReference,
		strings.Repeat("\n", 1e6):           ondisk.ErrLimit,
		strings.Repeat(" ", MaxManifest+1):  ondisk.ErrLimit,
		strings.Repeat("(", MaxManifest-10): ondisk.ErrFormat,
	} {
		_, err := ParseManifest([]byte(text))
		require.ErrorIs(t, err, kind, "%.40q", text)
		require.Less(t, len(err.Error()), 1500)
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(manual))
	f.Add([]byte("SHA512(x)= " + strings.Repeat("0", 128) + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := ParseManifest(text)
		if err != nil {
			return
		}
		same := func(n string) string { return n }
		require.Equal(t, string(text), string(m.Rewrite(func(Digest) []byte { return nil }, same)))
		other := m.Rewrite(func(d Digest) []byte { return bytes.Repeat([]byte{0xa5}, len(d.Sum)) }, same)
		require.Len(t, other, len(text))
		again, err := ParseManifest(other)
		require.NoError(t, err)
		require.Len(t, again.Digests, len(m.Digests))
	})
}
